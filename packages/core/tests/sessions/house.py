"""A hub on a fresh profile with a scripted engine, as tests of sessions want it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel

from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import Body, Event, TurnCompleted, TurnFailed
from enginehouse_protocol.hub import (
    AnswerPermission,
    Attach,
    CreateSession,
    Delivery,
    EventsAfter,
    Launch,
    Nothing,
    SendMessage,
)
from enginehouse_protocol.ids import EngineName, SessionId
from enginehouse_protocol.permissions import Allow, Answer, Deny, PendingRequest
from enginehouse_protocol.settings import Mode, SessionSettings
from enginehouse_protocol.testing import ScriptedEngine

B = TypeVar("B", bound=Body)
PATIENCE_S = 10
SCRIPTED = EngineName("scripted")


class House:
    """A hub, its person, and what the person has heard."""

    def __init__(self, hub: Hub, project: Path) -> None:
        self.hub = hub
        self.project = project

    async def session(self, mode: Mode | None = "yolo", launch: Launch | None = None) -> SessionId:
        created = await self.hub.sessions_create(
            CreateSession(
                engine=SCRIPTED,
                directory=str(self.project),
                settings=SessionSettings(mode=mode),
                launch=launch or Launch(environment={"PATH": "/usr/bin:/bin"}),
            )
        )
        return created.id

    async def send(self, session_id: SessionId, text: str) -> None:
        await self.hub.sessions_send(SendMessage(session_id=session_id, content=(Text(text=text),), unattended="deny"))

    async def say(self, session_id: SessionId, text: str) -> list[Body]:
        """Send, wait for the turn to end, return the turn's durable bodies."""
        known = await self.hub.sessions_events(EventsAfter(session_id=session_id))
        async with self.watching(session_id, after=known.last_seq) as ear:
            await self.send(session_id, text)
            await ear.hear(TurnCompleted, TurnFailed)
            return [event.body for event in ear.events]

    @asynccontextmanager
    async def watching(
        self, session_id: SessionId, *, after: int = 0, can_answer: bool = False
    ) -> AsyncGenerator["Ear"]:
        async with (
            self.hub.sessions_attach(Attach(session_id=session_id, after=after, can_answer=can_answer)) as view,
            anyio.create_task_group() as tasks,
        ):
            ear = Ear()
            tasks.start_soon(ear.listen, view.batches())
            yield ear
            tasks.cancel_scope.cancel()

    async def pending(self) -> PendingRequest:
        with anyio.fail_after(PATIENCE_S):
            while True:
                found = (await self.hub.permissions_pending(Nothing())).requests
                if found:
                    return found[0]
                await anyio.lowlevel.checkpoint()

    async def answer(self, request: PendingRequest, decision: Allow | Deny, *, always: bool = False) -> None:
        answer = Answer(request_id=request.request_id, digest=request.digest, decision=decision, always=always)
        await self.hub.permissions_answer(
            AnswerPermission(session_id=SessionId(request.session_id), answer=answer, host="test")
        )


class Ear:
    """Everything one view has heard."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.error: Exception | None = None
        self._news = anyio.Event()
        self._looked_at = 0

    @property
    def events(self) -> list[Event]:
        return [item.event for item in self.deliveries if isinstance(item.event, Event)]

    def bodies(self, *kinds: type[B]) -> list[B]:
        return [item.event.body for item in self.deliveries if isinstance(item.event.body, kinds)]

    async def listen(self, batches: AsyncIterator[tuple[Delivery, ...]]) -> None:
        try:
            async for batch in batches:
                self.deliveries += batch
                self._news.set()
                self._news = anyio.Event()
        except Exception as error:  # noqa: BLE001 a test looks at it
            self.error = error
        self._news.set()

    async def hear(self, *kinds: type[B], where: Callable[[B], bool] = lambda _: True) -> B:
        """The next body of these kinds that was not asked for before."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                while self._looked_at < len(self.deliveries):
                    body = self.deliveries[self._looked_at].event.body
                    self._looked_at += 1
                    if isinstance(body, kinds) and where(body):
                        return body
                await self._news.wait()


@asynccontextmanager
async def house(
    tmp_path: Path,
    engine: ScriptedEngine,
    *,
    plugins: Sequence[object] = (),
    settings: str = "",
    make_project: bool = True,
    kept_s: float = 10.0,
) -> AsyncGenerator[House]:
    project = tmp_path / "project"
    if make_project:
        project.mkdir(exist_ok=True)
    folders = Folders(tmp_path / "profile")
    if settings:
        folders.profile.mkdir(mode=0o700, exist_ok=True)
        folders.settings.write_text(settings)
        folders.settings.chmod(0o600)
    async with Hub(
        folders=folders,
        factories={SCRIPTED: lambda home: engine},
        what="a test",
        plugins=plugins,
        kept_s=kept_s,
        kept_with_engine_s=kept_s,
    ) as hub:
        yield House(hub, project)
