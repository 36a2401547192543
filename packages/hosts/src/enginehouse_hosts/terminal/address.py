"""A web address as it may be shown and recorded.

Rule: whatever could be a login is cut off, also where the address is so wrong that no parser would find one.
"""

from enginehouse_hosts.terminal.plain_text import one_line


def without_login(address: str) -> str:
    """The address, without what stands before its last `@`, its query and its fragment."""
    before, login, rest = address.rpartition("@")
    scheme, separator, _ = before.partition("://")
    rest = rest.partition("#")[0].partition("?")[0]
    return one_line(f"{scheme}://{rest}" if login and separator and scheme in ("http", "https") else rest)


def host_of(address: str) -> str:
    """The host and its port: where it is, in one word."""
    shown = without_login(address)
    return (shown.partition("://")[2] or shown).partition("/")[0]
