"""What is on disk of the one session of a profile, and making it long without a long wait.

Rule: nothing here goes through the host under test: it finds the session as after any other day, and is judged by the
record whatever it says itself.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio

from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import Event, TurnCompleted
from enginehouse_protocol.hub import Attach, CreateSession, Launch, SendMessage
from enginehouse_protocol.ids import EngineName, SessionId
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import Say, ScriptedEngine

DEFAULT_ENGINE = EngineName("openai_compatible")
_WRITTEN_WITHIN_S = 60


async def remembered(
    profile: Path,
    project: Path,
    turns: Sequence[tuple[str, str]],
    *,
    host: str,
    engine: EngineName = DEFAULT_ENGINE,
) -> SessionId:
    """Write one turn for each question and its answer, by a real hub in this process whose engine answers at once; the
    session is said to be one of `engine`."""
    profile.mkdir(mode=0o700, exist_ok=True)
    scripted = ScriptedEngine([[Say(answer)] for _, answer in turns], name=engine)
    with anyio.fail_after(_WRITTEN_WITHIN_S):
        async with Hub(folders=Folders(profile), factories={engine: lambda _home: scripted}, what="a test") as hub:
            settings = SessionSettings(model="scripted")
            created = await hub.sessions_create(
                CreateSession(engine=engine, directory=str(project), settings=settings, launch=Launch(), host=host)
            )
            async with hub.sessions_attach(Attach(session_id=created.id)) as view:
                for question, _ in turns:
                    await hub.sessions_send(
                        SendMessage(session_id=created.id, content=(Text(text=question),), host=host)
                    )
                left = len(turns)
                async for batch in view.batches():
                    left -= sum(isinstance(delivery.event.body, TurnCompleted) for delivery in batch)
                    if left == 0:
                        break
    return created.id


def session_of(profile: Path) -> SessionId | None:
    """Blocks, as `recorded` does."""
    return next(iter(Archive(Folders(profile).transcripts).ids()), None)


def recorded(profile: Path) -> list[Event]:
    if (session_id := session_of(profile)) is None:
        return []
    events = (decode_recorded(line) for line in Archive(Folders(profile).transcripts).lines_after(session_id, 0))
    return [event for event in events if isinstance(event, Event)]
