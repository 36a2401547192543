"""Servers of models on this machine, found by asking the usual ports.

Rule: loopback only, without a key, without redirects, and nothing is waited for longer than its deadline. Whatever
answers there may be anything: only what lists models is one.
"""

import http.client
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from enginehouse_engines.openai_compatible.known_providers import KNOWN, KnownProvider
from enginehouse_protocol.permissions import JsonObject

DEADLINE_S = 2.0
_CONNECT_S = 0.5
_MOST_BYTES = 4 << 20
_BY_OWNER = {"library": "ollama", "llamacpp": "llamacpp", "vllm": "vllm", "organization_owner": "lmstudio"}
"""What `owned_by` of a listed model gives away; several of these servers are moved to each other's ports."""


class LocalServer(NamedTuple):
    known: KnownProvider
    """The server it is, or the one that is usual on this port."""
    base_url: str
    models: tuple[str, ...]


def usual_addresses() -> tuple[str, ...]:
    return tuple(known.base_url for known in KNOWN.values() if known.local)


async def local_servers(addresses: Sequence[str] | None = None) -> list[LocalServer]:
    """All that answer in time, in the order of `addresses`."""
    asked = usual_addresses() if addresses is None else tuple(addresses)
    found: dict[str, LocalServer] = {}

    async def ask(address: str) -> None:
        server = await anyio.to_thread.run_sync(_listed, address, abandon_on_cancel=True)
        if server is not None:
            found[address] = server

    with anyio.move_on_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for address in asked:
                tasks.start_soon(ask, address)
    return [found[address] for address in asked if address in found]


def _listed(address: str) -> LocalServer | None:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_S)
    try:
        connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(DEADLINE_S)
        connection.request("GET", f"{parts.path}/models", headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return None
        body: Any = json.loads(response.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    entries: Any = cast(JsonObject, body).get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return None
    models: list[str] = []
    owners: list[str] = []
    for entry in cast(list[Any], entries):
        if isinstance(entry, dict) and isinstance(name := cast(JsonObject, entry).get("id"), str) and name:
            models.append(name)
            owners.append(str(cast(JsonObject, entry).get("owned_by", "")))
    return LocalServer(_server_of(address, owners), address, tuple(models))


def _server_of(address: str, owners: Sequence[str]) -> KnownProvider:
    for owner in owners:
        if owner in _BY_OWNER:
            return KNOWN[_BY_OWNER[owner]]
    return next((known for known in KNOWN.values() if known.base_url == address), KNOWN["llamacpp"])
