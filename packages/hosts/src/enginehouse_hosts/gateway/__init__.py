"""The hub's methods served over byte streams: stdio, the private local socket, or whatever else carries lines.

Rule: it adds connections and views to a `HubApi` and nothing else; it is the same whichever hub stands behind it.
"""

from enginehouse_hosts.gateway.gateway import Gateway

__all__ = ["Gateway"]
