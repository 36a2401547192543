"""`enginehouse doctor`: what works on this machine, what does not, and what to do about it.

Rule: it changes nothing, waits for nothing longer than a deadline, and goes on after every finding.
"""

import argparse
import os
import platform
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import anyio

from enginehouse import __version__
from enginehouse.engines_in_use import asked_engines
from enginehouse.environment import BASE_URL, KEY
from enginehouse.hub_place import STOP, hub_place
from enginehouse.output import clock, flush, put
from enginehouse_core.keeper import hands_orphans_over
from enginehouse_core.profile.check import check_profile
from enginehouse_core.profile.defaults import defaults
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.lock import holder_of
from enginehouse_hosts.terminal.address import without_login
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.local_socket import status

_DEADLINE_S = 5.0
_MARKS = {"good": "✓", "note": "·", "bad": "✗"}


class Finding(NamedTuple):
    """`bad`: something will not work. `note`: good to know."""

    kind: Literal["good", "note", "bad"]
    what: str
    about: str


def examine(_: argparse.Namespace) -> int:
    """Exit code 1: something is bad."""
    streams = Streams(os.environ)
    styles = Styles(coloured=streams.coloured and streams.answer_is_terminal)
    bad = False
    for found in _findings():
        name = {"good": "good", "bad": "bad"}.get(found.kind, "faint")
        put(f"{styles(name, _MARKS[found.kind])} {one_line(found.what, 2_000)}: {one_line(found.about, 2_000)}\n")  # type: ignore[arg-type]
        flush()
        bad = bad or found.kind == "bad"
    return 1 if bad else 0


def _findings() -> Iterator[Finding]:
    yield Finding("good", "enginehouse", __version__)
    yield _python()
    yield Finding("good" if sys.platform in ("linux", "darwin") else "bad", "platform", platform.platform())
    try:
        folders = Folders.of(os.environ)
    except EnginehouseError as error:
        yield Finding("bad", "profile", str(error))
        return
    yield from _profile(folders)
    yield _hub(folders)
    yield _keeper()
    yield _sandbox()
    yield from _model_address()
    yield from _engines(folders)


def _python() -> Finding:
    return Finding("good", "python", f"{platform.python_version()} at {sys.executable}")


def _profile(folders: Folders) -> Iterator[Finding]:
    if not folders.profile.exists():
        yield Finding("note", "profile", f"{folders.profile}, made by the first run")
    else:
        holder = holder_of(folders.profile)
        yield Finding("good", "profile", f"{folders.profile}" + (f", in use by {holder}" if holder else ""))
    try:
        for found in check_profile(folders):
            yield Finding("bad" if found.severity == "error" else "note", found.path, found.message)
        yield Finding("good", "log", str(folders.log))
    except EnginehouseError as error:
        yield Finding("bad", "profile", str(error))


def _hub(folders: Folders) -> Finding:
    """Whether one runs, and whether nobody else can reach where it does."""
    place = hub_place(folders)
    try:
        found = anyio.run(status, place)
    except EnginehouseError as error:
        return Finding("bad", "hub", str(error))
    if found is None:
        return Finding("good", "hub", "not running; the first command that needs it starts it")
    who = f"process {found.pid}, version {found.version}, since {clock(found.since_ms)}"
    if not found.answers:
        return Finding("bad", "hub", f"{who}, does not answer; see {place.log}, or try `{STOP}`")
    if found.version != __version__:
        return Finding("note", "hub", f"{who}; it is replaced by {__version__} when it is idle, or after `{STOP}`")
    return Finding("good", "hub", who)


def _keeper() -> Finding:
    if hands_orphans_over():
        return Finding("good", "keeper", "no process is left behind")
    if sys.platform != "linux":
        return Finding(
            "note", "keeper", "this system does not hand orphans over; what leaves its group is found by a marker"
        )
    return Finding(
        "bad", "keeper", "this kernel does not hand orphans over; a process that detaches itself may survive"
    )


def _sandbox() -> Finding:
    return Finding("note", "sandbox", "none yet: every command counts as dangerous, and is asked unless told otherwise")


def _model_address() -> Iterator[Finding]:
    """Whether the server answers at all; what it offers is the engine's to ask."""
    yield Finding("good" if os.environ.get(KEY) else "note", KEY, "set" if os.environ.get(KEY) else "not set")
    base_url = os.environ.get(BASE_URL, "")
    if not base_url:
        yield Finding("note", BASE_URL, "not set; the engine's own address is used")
        return
    try:
        address = urlsplit(base_url)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError:  # whose words may hold the login
        yield Finding("bad", BASE_URL, f"{without_login(base_url)!r} is no address")
        return
    if address.scheme not in ("http", "https") or not address.hostname:
        yield Finding("bad", BASE_URL, f"{without_login(base_url)!r} must begin with http:// or https://")
        return
    place = f"{address.hostname}:{port}"
    problem = _problem_of_reaching(address.hostname, port, encrypted=address.scheme == "https")
    if problem is None:
        yield Finding("good", BASE_URL, f"{place} can be reached")
        return
    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"))
    yield Finding("note" if proxied else "bad", BASE_URL, f"{place} cannot be reached directly: {problem}")


def _problem_of_reaching(host: str, port: int, *, encrypted: bool) -> str | None:
    """In a thread that is left to itself when it is late: looking a name up cannot be given a deadline."""
    found: list[str | None] = []

    def reach() -> None:
        try:
            with socket.create_connection((host, port), timeout=_DEADLINE_S) as connection:
                if encrypted:
                    with ssl.create_default_context().wrap_socket(connection, server_hostname=host):
                        pass
        except (OSError, ValueError) as error:  # ValueError: a name that no host can have
            found.append(str(error))
        else:
            found.append(None)

    thread = threading.Thread(target=reach, daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    return found[0] if found else f"no answer within {_DEADLINE_S:g} s"


def _engines(folders: Folders) -> Iterator[Finding]:
    """One that nobody set up is no fault of this machine."""
    found = asked_engines()
    wanted = _usual_engine(folders)
    usable = any(each.problem is None for each in found)
    for each in found:
        if each.problem is None and each.description is not None:
            models = len(each.description.models)
            offers = f", {models} model{'s' if models > 1 else ''}" if models else ""
            yield Finding("good", f"engine {each.name}", each.description.title + offers)
        else:
            kind = "bad" if each.configured or each.name == wanted or not usable else "note"
            yield Finding(kind, f"engine {each.name}", each.problem or "no answer")


def _usual_engine(folders: Folders) -> str | None:
    """The one the person chose for new sessions."""
    try:
        return defaults(folders, os.environ).engine
    except EnginehouseError:
        return None  # what is wrong with the profile is a finding of its own
