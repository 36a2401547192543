"""A host as a process of its own: `python -m integration.host_process`. A test tells it over stdin what to do.

Rule: it reaches the hub the way the command line does, and whatever happens to the hub is not its business. What it
cannot get over it says, and ends.
"""

import os
import random
import sys
import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from enginehouse.connecting import connected
from enginehouse.environment import Flags, start_of
from enginehouse_core.profile.folders import Folders
from enginehouse_hosts.client import RemoteHub
from enginehouse_protocol.content import Text
from enginehouse_protocol.errors import AlreadyDecided, RequestNotFound
from enginehouse_protocol.events import PermissionRequested
from enginehouse_protocol.hub import AnswerPermission, Attach, CreateSession, ResumeQueue, SendMessage
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.permissions import Allow, Answer, Deny
from integration.hearing import Hearing
from integration.host_words import (
    ANSWERED,
    HEARD,
    Answered,
    AnySaid,
    AnyWord,
    Create,
    Created,
    Done,
    Drive,
    Failed,
    Look,
    Numbered,
    Over,
    Reply,
    Send,
    Sent,
    Shows,
    Views,
)

_SPIN_S = 0.003
_decoder = msgspec.json.Decoder(Numbered)


def _print(first: bytes, line: bytes) -> None:
    sys.stdout.buffer.write(first + line + b"\n")
    sys.stdout.buffer.flush()


def _say(number: int, said: AnySaid) -> None:
    _print(ANSWERED, msgspec.json.encode(Reply(number=number, said=said)))


class Host:
    def __init__(self, hub: RemoteHub, folders: Folders, tasks: TaskGroup) -> None:
        self._hub = hub
        self._folders = folders
        self._tasks = tasks
        self._hearings: list[Hearing] = []
        self.launch = start_of(Flags(), folders, os.environ).launch

    async def answer(self, number: int, word: AnyWord) -> None:
        _say(number, await self._do(word))

    async def _do(self, word: AnyWord) -> AnySaid:
        match word:
            case Create():
                return await self._create(word)
            case Look():
                async with anyio.create_task_group() as attaching:
                    for number in range(word.views):
                        attaching.start_soon(self._tasks.start, self._look, word, random.Random(word.seed + number))
                return Done()
            case Send():
                return await self._send(word)
            case Drive():
                await self._drive(word)
                return Done()
            case Shows(size_bytes=size_bytes):
                return await self._when_all(lambda hearing: hearing.shows(size_bytes))
            case Over(turns=turns):
                return await self._when_all(lambda hearing: hearing.turns_ended >= turns and hearing.idle)

    async def _create(self, word: Create) -> Created:
        start = await anyio.to_thread.run_sync(start_of, Flags(mode=word.mode), self._folders, os.environ)
        info = await self._hub.sessions_create(
            CreateSession(
                engine=start.engine, directory=await anyio.to_thread.run_sync(os.getcwd), settings=start.settings,
                launch=start.launch,
            )
        )  # fmt: skip
        return Created(session_id=info.id)

    async def _look(self, word: Look, dice: random.Random, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        hearing = Hearing((lambda line: _print(HEARD, line)) if word.aloud else None)
        answers = word.answer_within_s is not None
        async with self._hub.sessions_attach(Attach(session_id=word.session_id, can_answer=answers)) as view:
            self._hearings.append(hearing)
            task_status.started()
            async with anyio.create_task_group() as tasks:
                if word.answer_within_s is not None:
                    tasks.start_soon(self._answer_requests, hearing, word.session_id, word.answer_within_s, dice)
                await hearing.listen(view)
                tasks.cancel_scope.cancel()

    async def _send(self, word: Send) -> Sent:
        message = SendMessage(session_id=word.session_id, content=(Text(text=word.text),), launch=self.launch)
        if (early := word.at_s - _SPIN_S - time.monotonic()) > 0:
            await anyio.sleep(early)
        while time.monotonic() < word.at_s:  # a sleep is not exact enough
            pass
        receipt = await self._hub.sessions_send(message)
        return Sent(message_id=receipt.message_id, seq=receipt.seq)

    async def _drive(self, word: Drive) -> None:
        hearing = self._hearings[0]
        while word.until not in hearing.said:
            await hearing.until(lambda: hearing.at_rest)
            if word.until in hearing.said:
                return
            if hearing.held:
                await self._hub.queue_resume(ResumeQueue(session_id=word.session_id, launch=self.launch))
                await hearing.news()
                continue
            sent = await self._send(Send(session_id=word.session_id, text=word.text))
            await hearing.until(lambda seq=sent.seq: hearing.last_seq >= seq)

    async def _when_all(self, holds: Callable[[Hearing], bool]) -> Views:
        for hearing in self._hearings:
            await hearing.until(lambda hearing=hearing: holds(hearing))
        return Views(views=tuple(hearing.heard for hearing in self._hearings))

    async def _answer_requests(
        self, hearing: Hearing, session_id: SessionId, within_s: float, dice: random.Random
    ) -> None:
        """Each request once, at some moment, whatever others do; one in three is denied."""
        asked: set[str] = set()
        async with anyio.create_task_group() as answering:
            while True:
                for request in hearing.requests.values():
                    if request.request_id not in asked:
                        asked.add(request.request_id)
                        decision = Deny(reason="not now") if dice.random() < 1 / 3 else Allow()
                        delay_s = dice.random() * within_s
                        answering.start_soon(self._answer_request, session_id, request, decision, delay_s)
                await hearing.news()

    async def _answer_request(
        self, session_id: SessionId, request: PermissionRequested, decision: Allow | Deny, delay_s: float
    ) -> None:
        await anyio.sleep(delay_s)
        answer = Answer(request_id=request.request_id, digest=request.input_digest, decision=decision)
        outcome = "counted"
        try:
            await self._hub.permissions_answer(AnswerPermission(session_id=session_id, answer=answer, host=""))
        except (AlreadyDecided, RequestNotFound) as error:
            outcome = error.code
        _say(0, Answered(request_id=request.request_id, outcome=outcome))


async def _obey() -> None:
    folders = Folders.of(os.environ)
    async with connected(folders, os.environ, can_answer=True) as hub, anyio.create_task_group() as tasks:
        host = Host(hub, folders, tasks)
        while line := await anyio.to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
            told = _decoder.decode(line)
            tasks.start_soon(host.answer, told.number, told.word)
        tasks.cancel_scope.cancel()


def main() -> None:
    code = 0
    try:
        anyio.run(_obey)
    except BaseExceptionGroup as group:
        _say(0, Failed(why="; ".join(f"{type(each).__name__}: {each}" for each in _leaves(group))))
        code = 1
    except Exception as error:  # noqa: BLE001 the process ends here
        _say(0, Failed(why=f"{type(error).__name__}: {error}"))
        code = 1
    os._exit(code)  # a thread may still read stdin


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else [each])
    ]


if __name__ == "__main__":
    main()
