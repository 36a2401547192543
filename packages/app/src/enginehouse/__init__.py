"""Composition root: wires engines, core and hosts together. Importing this costs nothing."""

__version__ = "0.1.0"
