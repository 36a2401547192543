"""`enginehouse hub`: the process all hosts of a profile share; being it, asking after it, ending it, reading its logs.

Rule: only `serve` makes anything. The other verbs never start a hub, and work with one of any version.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Literal

import anyio
import msgspec

from enginehouse.hub_place import hub_place
from enginehouse.output import clock, put, remark
from enginehouse_core.profile.folders import Folders
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.hub import ListSessions, Nothing, SessionInfo
from enginehouse_protocol.local_socket import Status, ask_to_stop, status

NOT_RUNNING = 3
"""What `status` of a service ends with, by an old convention, when there is none."""
_ANSWER_S = 5.0
_PATIENCE_S = 1.0
_WORKING = ("running", "awaiting_permission")


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Something only a person can answer."""

    session_id: str
    kind: Literal["permission", "question"]
    title: str


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub does. `problem`: it could not be asked."""

    sessions: tuple[SessionInfo, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    problem: str | None = None


def serve(arguments: argparse.Namespace) -> int:
    from enginehouse.hub_process import run_process

    return run_process(Folders.of(os.environ), arguments.idle_after)


def show_status(arguments: argparse.Namespace) -> int:
    """Exit code 3: none runs."""
    found, work = anyio.run(_ask, Folders.of(os.environ), dict(os.environ))
    if arguments.json:
        put(msgspec.json.encode(_as_object(found, work)).decode() + "\n")
    elif found is None:
        put("no hub runs; the first command that needs one starts it\n")
    else:
        put("".join(f"{line}\n" for line in _told(found, work)))
    return NOT_RUNNING if found is None else 0


def stop(_: argparse.Namespace) -> int:
    folders = Folders.of(os.environ)
    outcome = anyio.run(_stop, folders)
    if outcome == "not_running":
        remark(f"no hub runs for {folders.profile}")
    else:
        put("the hub has ended\n")
    return 0


def logs(arguments: argparse.Namespace) -> int:
    from enginehouse.hub_logs import follow, show

    folders = Folders.of(os.environ)
    ends = show(folders, arguments.lines)
    if arguments.follow:
        follow(ends)
    return 0


async def _ask(folders: Folders, environment: Mapping[str, str]) -> tuple[Status | None, Work]:
    found = await status(hub_place(folders))
    return found, await _work(folders, environment) if found is not None and found.answers else Work()


async def _work(folders: Folders, environment: Mapping[str, str]) -> Work:
    """Bounded, and never a reason for the rest not to be told: the hub may be of another version, or end right now."""
    from enginehouse.connecting import connected

    try:
        with anyio.fail_after(_ANSWER_S):
            async with connected(folders, environment, can_answer=False, start=False) as hub:
                listed = await hub.sessions_list(ListSessions())
                requests = (await hub.permissions_pending(Nothing())).requests
                questions = (await hub.questions_pending(Nothing())).questions
    except* (EnginehouseError, TimeoutError) as group:
        work = Work(problem=f"it cannot be asked what it does: {_first(group)}")
    else:
        work = Work(
            sessions=tuple(info for info in listed.sessions if info.state in _WORKING),
            waiting=(
                *(Waiting(session_id=each.session_id, kind="permission", title=each.title) for each in requests),
                *(Waiting(session_id=each.session_id, kind="question", title=each.question.text) for each in questions),
            ),
        )
    return work


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or f"no answer within {_ANSWER_S:g} s"


def _told(found: Status, work: Work) -> list[str]:
    who = "a process that has just begun" if found.pid is None else f"process {found.pid}"
    lines = [f"hub {found.version} runs as {who} since {clock(found.since_ms)}"]
    if not found.answers:
        return [f"{lines[0]}, and does not answer"]
    count = found.connections or 0
    lines.append(f"{count} connection{'' if count == 1 else 's'}, {'idle' if found.idle else 'in use'}")
    if work.problem:
        lines.append(one_line(work.problem, 2_000))
    lines += [
        f"  {info.id}  {info.state.replace('_', ' ')}  {one_line(info.title)}  {one_line(info.directory)}"
        for info in work.sessions
    ]
    lines += [f"  {each.session_id}  waits for you: {one_line(each.title)}" for each in work.waiting]
    if work.waiting:
        lines.append("`enginehouse inbox` shows what waits, and answers it")
    return lines


def _as_object(found: Status | None, work: Work) -> dict[str, object]:
    """`pid` is null in the first moments of a hub; `idle` and `connections` are, where it does not answer."""
    if found is None:
        return {"running": False}
    return {"running": True, **vars(found), **msgspec.structs.asdict(work)}


async def _stop(folders: Folders) -> str:
    place = hub_place(folders)
    outcome = ""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_say_that_it_takes_time)
        outcome = await ask_to_stop(place)
        tasks.cancel_scope.cancel()
    return outcome


async def _say_that_it_takes_time() -> None:
    await anyio.sleep(_PATIENCE_S)
    remark("waiting for the hub to end what it does; Ctrl-C leaves it to that")
