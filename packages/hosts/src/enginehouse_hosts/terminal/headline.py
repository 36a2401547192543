"""The first line of a conversation: with what, how and where it is held.

Rule: the mode always stands in it, for it decides what happens without asking; and no address with a login in it.
"""

from enginehouse_hosts.terminal.address import host_of
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.hub import SessionInfo
from enginehouse_protocol.settings import SessionSettings

YOLO = "yolo: nothing is asked, every command runs with all your rights, and nothing contains it"


def headline(info: SessionInfo, settings: SessionSettings, provider: Provider | None, directory: str | None) -> str:
    """`settings` are those the turn runs with; `directory` is where the session goes on, when that is new."""
    said = [f"session {info.id} on {one_line(info.engine)}"]
    if model := settings.model or (provider.model if provider else None):
        said.append(one_line(model))
    if settings.effort:
        said.append(f"effort {one_line(settings.effort)}")
    said.append(f"mode {(settings.mode or 'default').replace('_', '-')}")
    if provider is not None and provider.base_url:
        said.append(host_of(provider.base_url))
    said.append(one_line(directory or info.directory))
    return " · ".join(said)
