"""`enginehouse inbox`: everything that waits for a person, over all sessions, and answering it from anywhere.

Rule: an answer is to what was shown: it carries the id and the digest that were listed, and whoever was first is told.
Looking starts no hub: where none runs, nothing waits.
"""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from enginehouse.connecting import connected
from enginehouse.named_session import hub_runs
from enginehouse.output import agreed, clock, put_listing, remark
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_hosts.terminal.asking import HOST, understood
from enginehouse_hosts.terminal.card import card_of, use_of
from enginehouse_hosts.terminal.editing import NotEdited, parsed
from enginehouse_hosts.terminal.exit_codes import COMPLETED
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.errors import AlreadyDecided, EnginehouseError, RequestNotFound, UsageError
from enginehouse_protocol.events import PermissionRequested
from enginehouse_protocol.hub import AnswerPermission, AnswerQuestion, Nothing, PendingQuestion
from enginehouse_protocol.ids import RequestId, SessionId, is_id
from enginehouse_protocol.permissions import Allow, Answer, Deny, JsonObject, PendingRequest

_VERDICTS = ("allow", "deny", "always")
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True)
class _Waiting:
    """One thing that waits."""

    what: PendingRequest | PendingQuestion

    @property
    def id(self) -> str:
        return self.what.request_id if isinstance(self.what, PendingRequest) else self.what.question.question_id

    @property
    def session_id(self) -> SessionId:
        return SessionId(self.what.session_id)


def list_inbox(arguments: argparse.Namespace) -> int:
    environment = dict(os.environ)
    folders = Folders.of(environment)
    waiting = anyio.run(_waiting, folders, environment)
    titles = {session_id: _title(folders, session_id) for session_id in {each.session_id for each in waiting}}
    put_listing(
        ("id", "what", "risk", "waits", "expires", "session", "title"),
        [(*_row(each), each.session_id, titles[each.session_id]) for each in waiting],
        [_object(each, titles[each.session_id]) for each in waiting],
        as_json=arguments.json,
        none="nothing waits for you",
    )
    return COMPLETED


def answer(arguments: argparse.Namespace) -> int:
    environment = dict(os.environ)
    folders = Folders.of(environment)
    asked = _chosen(anyio.run(_waiting, folders, environment), arguments.id, Archive(folders.transcripts))
    reply: AnswerPermission | AnswerQuestion
    if isinstance(asked.what, PendingRequest):
        reply = _decision(asked.what, arguments)
    else:
        reply = _reply(asked.what, arguments)
    anyio.run(_deliver, folders, environment, reply)
    return COMPLETED


async def _waiting(folders: Folders, environment: Mapping[str, str]) -> list[_Waiting]:
    """Oldest first."""
    if not await hub_runs(folders):
        return []
    async with connected(folders, environment, can_answer=False, start=False) as hub:
        requests = (await hub.permissions_pending(Nothing())).requests
        questions = (await hub.questions_pending(Nothing())).questions
    return sorted((_Waiting(each) for each in (*requests, *questions)), key=lambda each: each.id.partition("_")[2])


async def _deliver(folders: Folders, environment: Mapping[str, str], reply: AnswerPermission | AnswerQuestion) -> None:
    async with connected(folders, environment, can_answer=True, start=False) as hub:
        if isinstance(reply, AnswerPermission):
            await hub.permissions_answer(reply)
        else:
            await hub.questions_answer(reply)


# --- listing ----------------------------------------------------------------------------------------------------------


def _row(waiting: _Waiting) -> tuple[str, str, str, str, str]:
    since = _made_at_ms(waiting.id)
    age = _age(time.time() - since / 1000) if since else ""
    if isinstance(waiting.what, PendingRequest):
        request = waiting.what
        return waiting.id, request.title or request.kind, request.risk, age, clock(request.expires_at_ms)
    question = waiting.what.question
    options = "".join(f"  {number}. {one_line(each.label)}" for number, each in enumerate(question.options, 1))
    return waiting.id, f"? {one_line(question.text)}{options}", "", age, ""


def _object(waiting: _Waiting, title: str) -> JsonObject:
    told: dict[str, Any] = {
        "id": waiting.id,
        "session_id": waiting.session_id,
        "session_title": title,
        "since_ms": _made_at_ms(waiting.id),
    }
    if isinstance(waiting.what, PendingRequest):
        return {"kind": "permission", **told, "request": msgspec.to_builtins(waiting.what)}
    return {"kind": "question", **told, "question": msgspec.to_builtins(waiting.what.question)}


def _title(folders: Folders, session_id: SessionId) -> str:
    try:
        return Archive(folders.transcripts).info(session_id).title
    except EnginehouseError:
        return ""


def _made_at_ms(an_id: str) -> int | None:
    """An id made by Enginehouse begins with the moment it was made; None for any other."""
    if not is_id(an_id):
        return None
    number = 0
    for letter in an_id.partition("_")[2]:
        number = number << 5 | _DIGITS.index(letter)
    return number >> 80


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


# --- answering --------------------------------------------------------------------------------------------------------


def _chosen(waiting: list[_Waiting], text: str, archive: Archive) -> _Waiting:
    """Raises: UsageError, RequestNotFound; AlreadyDecided: a settled one was named in full, and this became of it."""
    found = [each for each in waiting if text and each.id.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{text!r} is the beginning of {len(found)} ids; give more of it")
    if is_id(text) and (outcome := archive.outcome_of(RequestId(text))):
        raise AlreadyDecided(f"{text} is settled already: {outcome}")
    raise RequestNotFound(
        f"nothing that waits has an id beginning with {text!r}; it may have been answered or have expired, and "
        "`enginehouse inbox` lists what waits"
    )


def _decision(request: PendingRequest, arguments: argparse.Namespace) -> AnswerPermission:
    """Raises: UsageError."""
    verdict = " ".join(arguments.answers).lower()
    if verdict not in _VERDICTS:
        raise UsageError(f"a permission request is answered with allow, deny or always, not {verdict!r}")
    if arguments.reason is not None and verdict != "deny":
        raise UsageError("--reason is for deny: the model reads why it may not")
    if arguments.input is not None and verdict != "allow":
        raise UsageError("--input is for allow: it is what runs instead")
    decision: Allow | Deny
    if verdict == "deny":
        decision = Deny(reason=well_formed(arguments.reason or "").strip() or "the person said no")
    else:
        if verdict == "always" and request.always_rule is None:
            raise UsageError("this request cannot be answered with always; allow lets it happen once")
        decision = Allow(input=None if arguments.input is None else _input(arguments.input))
        _confirm(request, decision, always=verdict == "always", sure=arguments.yes)
    return AnswerPermission(
        session_id=SessionId(request.session_id),
        answer=Answer(
            request_id=request.request_id, digest=request.digest, decision=decision, always=verdict == "always"
        ),
        host=HOST,
    )


def _input(text: str) -> JsonObject:
    try:
        return parsed(well_formed(text).encode())
    except NotEdited as problem:
        raise UsageError(f"--input: {problem}") from problem


def _confirm(request: PendingRequest, decision: Allow, *, always: bool, sure: bool) -> None:
    """Show all of what would run. Raises: UsageError: nobody said yes."""
    asked = PermissionRequested(
        request_id=request.request_id,
        call_id=request.call_id,
        kind=request.kind,
        title=request.title,
        risk=request.risk,
        reasons=request.reasons,
        input_digest=request.digest,
        expires_at_ms=request.expires_at_ms,
        input=decision.input,
    )
    card = card_of(asked, use_of(request), Styles(coloured=False), edited=decision.input is not None, whole=True)
    remark("\n".join(card.lines))
    question = f"Allow this, and always in its project: {request.always_rule}?" if always else "Allow this?"
    if not sure and not agreed(question):
        raise UsageError("nothing was answered; say --yes to allow without being asked once more")


def _reply(asked: PendingQuestion, arguments: argparse.Namespace) -> AnswerQuestion:
    """Raises: UsageError."""
    if arguments.reason is not None or arguments.input is not None:
        raise UsageError("--reason and --input are for permission requests; this is a question")
    question = asked.question
    given = [well_formed(each) for each in arguments.answers]
    one_by_one = msgspec.structs.replace(question, multiple=False)
    answers: list[str] = []
    for each in given if question.multiple else [" ".join(given)]:
        meant = understood(one_by_one, each)
        if meant is None:
            options = "; ".join(
                f"{number}. {one_line(option.label)}" for number, option in enumerate(question.options, 1)
            )
            raise UsageError(f"{each!r} is none of the answers there are: {options}")
        answers += meant
    return AnswerQuestion(
        session_id=asked.session_id, question_id=question.question_id, answers=tuple(answers), host=HOST
    )
