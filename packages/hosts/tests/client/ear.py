"""Somebody who listens to a view, as fast or as slowly as a test wants."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from enginehouse_protocol.events import Event, LiveState, MessageDelta
from enginehouse_protocol.hub import Attach, Delivery, HubApi, View
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.testing import Gate


class Ear:
    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.error: Exception | None = None
        self.over = False
        self.busy: Gate | None = None
        """After the next batch it is busy until this opens. Passed once."""
        self._news = anyio.Event()

    @property
    def seqs(self) -> list[int]:
        return [delivery.event.seq for delivery in self.deliveries if isinstance(delivery.event, Event)]

    @property
    def states(self) -> list[LiveState]:
        return [delivery.event.body for delivery in self.deliveries if isinstance(delivery.event.body, LiveState)]

    @property
    def texts(self) -> list[str]:
        return [each.event.body.text for each in self.deliveries if isinstance(each.event.body, MessageDelta)]

    async def listen(self, view: View) -> None:
        try:
            async for batch in view.batches():
                self.deliveries += batch
                self._tell()
                if self.busy is not None:
                    gate, self.busy = self.busy, None
                    await gate.passed()
        except Exception as error:  # noqa: BLE001 a test looks at it
            self.error = error
        self.over = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            await self._news.wait()

    async def until_seq(self, seq: int) -> None:
        await self.until(lambda: seq in self.seqs)

    async def until_over(self) -> None:
        await self.until(lambda: self.over)


@asynccontextmanager
async def listening(hub: HubApi, session_id: SessionId, after: int = 0) -> AsyncGenerator[Ear]:
    async with hub.sessions_attach(Attach(session_id=session_id, after=after)) as view:
        ear = Ear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ear.listen, view)
            yield ear
            tasks.cancel_scope.cancel()
