"""`enginehouse providers test`: a server put through its paces.

Rule: stdout gets the findings, stderr what is being done meanwhile. Nothing is stored.
"""

import argparse
import os

import anyio
import msgspec

from enginehouse.environment import DEFAULT_ENGINE, NO_MODEL, launch_of, secrets_in
from enginehouse.output import put, put_lines, remark
from enginehouse_core.profile.folders import Folders
from enginehouse_engines.openai_compatible.certify import Certificate, Finding, Outcome, certified
from enginehouse_engines.openai_compatible.options import options_of
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.engine import Access, Provider, Secret
from enginehouse_protocol.errors import UsageError

_MARKS: dict[Outcome, str] = {"works": "✓", "tolerated": "~", "missing": "·", "broken": "✗", "skipped": " "}
_COUNTED: tuple[Outcome, ...] = ("works", "tolerated", "missing", "broken", "skipped")


def check_provider(arguments: argparse.Namespace) -> int:
    """Exit code 1: an agent cannot work with this server."""
    access = _access(arguments)
    certificate = anyio.run(_tested, access, arguments.model)
    if arguments.json:
        put_lines(msgspec.json.encode(certificate) + b"\n")
    else:
        _show(certificate)
    return 0 if certificate.usable else 1


async def _tested(access: Access, model: str | None) -> Certificate:
    def tell(what: str) -> None:
        remark(f"… {what}")

    return await certified(access, options_of(access.provider), model, tell=tell)


def _access(arguments: argparse.Namespace) -> Access:
    """Raises: UsageError: there is nothing to test, or another engine's."""
    environment = dict(os.environ)
    folders = Folders.of(environment)
    if arguments.base_url is not None:
        if arguments.name is not None:
            raise UsageError("say NAME or --base-url, not both")
        # No key is shown to an address it was not given for. The rest (proxy, certificates) is the person's.
        shown = {name: value for name, value in environment.items() if name not in secrets_in(environment)}
        return Access(provider=Provider(name="tested", base_url=arguments.base_url), environment=shown)
    launch = launch_of(DEFAULT_ENGINE, folders, environment, provider=arguments.name)
    if launch.provider is None:
        raise UsageError(NO_MODEL)
    secret = Secret(launch.key, launch.secrets[launch.key]) if launch.key else None
    return Access(provider=launch.provider, secret=secret, environment=launch.environment)


def _show(certificate: Certificate) -> None:
    streams = Streams(os.environ)
    styles = Styles(coloured=streams.coloured and streams.answer_is_terminal)
    put(styles("title", f"{one_line(certificate.address)}, model {one_line(certificate.model)}") + "\n")
    group = ""
    for found in certificate.findings:
        if found.group != group:
            group = found.group
            put(f"\n{group}\n")
        put(_line(found, styles) + "\n")
    counts = {outcome: sum(each.outcome == outcome for each in certificate.findings) for outcome in _COUNTED}
    put("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
    put(f" ({certificate.requests} requests)\n")
    verdict = "An agent can work with this server." if certificate.usable else "An agent cannot work with this server."
    put(styles("good" if certificate.usable else "bad", verdict) + "\n")


def _line(found: Finding, styles: Styles) -> str:
    about = f": {one_line(found.about, 300)}" if found.about else ""
    outcome = "" if found.outcome == "works" else f" [{found.outcome}]"
    mark = _MARKS[found.outcome]
    match found.outcome:
        case "works":
            mark = styles("good", mark)
        case "broken":
            mark = styles("bad", mark)
        case _:
            mark = styles("faint", mark)
    return f"  {mark} {found.title}{outcome}{about}"
