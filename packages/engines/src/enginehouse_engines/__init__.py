"""Adapters: each folder translates one kind of agent into events."""
