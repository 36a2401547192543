"""What is asked again after a crash, a full disk or a lost connection: done once, and never left lying."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from sessions.house import SCRIPTED, House, house

from enginehouse_core.transcript.load import open_transcript
from enginehouse_core.transcript.log import SessionLog
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import Opening, Turn
from enginehouse_protocol.errors import FileUnusable, TranscriptUnavailable, UsageError
from enginehouse_protocol.events import (
    LiveState,
    MessageQueued,
    PermissionDecided,
    SessionStateChanged,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.hub import (
    Attach,
    CreateSession,
    EventsAfter,
    Launch,
    ResumeQueue,
    SendMessage,
    SessionRef,
    WithdrawQueued,
)
from enginehouse_protocol.ids import SessionId, new_message_id, new_session_id
from enginehouse_protocol.permissions import Allow
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import Do, Gate, Hang, RequestTurn, Say, ScriptedEngine, UseTool

pytestmark = pytest.mark.anyio
LAUNCH = Launch(
    environment={"PATH": "/my/bin:/usr/bin:/bin"}, secrets={"OPENAI_API_KEY": "sk-of-this-shell"}, key="OPENAI_API_KEY"
)


def message(session_id: SessionId, text: str = "go on") -> SendMessage:
    return SendMessage(
        session_id=session_id, content=(Text(text=text),), launch=LAUNCH, message_id=new_message_id(), unattended="deny"
    )


def cut_off_after_queueing(profile: Path, sent: SendMessage) -> None:
    """What a hub leaves that is killed once the message is on disk and before anybody hears so."""
    folder = profile / "transcripts" / sent.session_id
    file, loaded = open_transcript(folder, sent.session_id)
    log = SessionLog(sent.session_id, folder, file, loaded.fold.last_seq, loaded.index)
    assert sent.message_id is not None
    file.append([log.stamp(MessageQueued(message_id=sent.message_id, content=sent.content), None).line])
    file.close()


async def test_a_message_sent_again_after_a_crash_runs_with_what_its_sender_brings(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])) as home:
        session_id = await home.session(launch=LAUNCH)
    sent = message(session_id)
    cut_off_after_queueing(tmp_path / "profile", sent)
    engine = ScriptedEngine([[Say("done")]])
    async with house(tmp_path, engine) as home, home.watching(session_id) as ear:
        await home.hub.sessions_send(sent)
        await ear.hear(TurnCompleted)
        assert [body.message_ids for body in ear.bodies(TurnStarted)] == [(sent.message_id,)]
        (opening,) = engine.openings
        assert opening.access.secret is not None
        assert opening.access.secret.reveal() == "sk-of-this-shell"
        assert opening.access.environment["PATH"].startswith("/my/bin")


async def test_a_session_created_again_after_a_restart_knows_its_key(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("done")]])
    create = CreateSession(
        engine=SCRIPTED,
        directory=str(tmp_path / "project"),
        settings=SessionSettings(),
        launch=LAUNCH,
        session_id=new_session_id(),
    )
    async with house(tmp_path, engine) as home:
        await home.hub.sessions_create(create)
    async with house(tmp_path, engine) as home:
        created = await home.hub.sessions_create(create)
        await home.say(created.id, "go")
        assert engine.openings[0].access.secret is not None
        (tmp_path / "elsewhere").mkdir()
        other = CreateSession(
            engine=SCRIPTED,
            directory=str(tmp_path / "elsewhere"),
            settings=SessionSettings(),
            launch=LAUNCH,
            session_id=created.id,
        )
        with pytest.raises(UsageError, match="another session"):
            await home.hub.sessions_create(other)


async def test_a_creation_that_was_cut_off_is_no_session_until_it_is_asked_for_again(tmp_path: Path) -> None:
    session_id = new_session_id()
    async with house(tmp_path, ScriptedEngine([[Say("done")]])) as home:
        (tmp_path / "profile" / "transcripts" / session_id).mkdir(mode=0o700)
        create = CreateSession(
            engine=SCRIPTED,
            directory=str(home.project),
            settings=SessionSettings(mode="yolo"),
            launch=LAUNCH,
            session_id=session_id,
        )
        assert (await home.hub.sessions_create(create)).id == session_id
        assert isinstance((await home.say(session_id, "go"))[-1], TurnCompleted)


async def test_a_launch_that_names_a_key_it_has_not_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])) as home:
        with pytest.raises(UsageError, match="OPENAI_API_KEY"):
            await home.session(launch=Launch(key="OPENAI_API_KEY"))


# --- a disk that was full -----------------------------------------------------------------------------------------


@pytest.fixture
async def refused(tmp_path: Path, small_disk: Path) -> AsyncIterator[tuple[House, SessionId, SendMessage]]:
    """A message whose record the disk refused; then there is space."""
    async with house(tmp_path, ScriptedEngine([[Say("ok")] for _ in range(400)])) as home:
        session_id = await home.session(launch=LAUNCH)
        while True:
            sent = message(session_id, "x" * 60_000)
            try:
                await home.hub.sessions_send(sent)
            except TranscriptUnavailable:
                break
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        yield home, session_id, sent


async def test_the_same_message_goes_through_once_there_is_space(
    refused: tuple[House, SessionId, SendMessage],
) -> None:
    home, session_id, sent = refused
    receipt = await home.hub.sessions_send(sent)
    assert receipt.message_id == sent.message_id
    known = await home.hub.sessions_events(EventsAfter(session_id=session_id, after=receipt.seq - 1))
    assert isinstance(known.events[0].body, MessageQueued)


async def test_resuming_the_queue_goes_on_once_there_is_space(refused: tuple[House, SessionId, SendMessage]) -> None:
    home, session_id, _ = refused
    await home.hub.queue_resume(ResumeQueue(session_id=session_id))
    with anyio.fail_after(20):
        while home.hub.busy:
            await anyio.lowlevel.checkpoint()
    assert not (await home.hub.queue_list(SessionRef(session_id=session_id))).messages


# --- the queue, told as it is -------------------------------------------------------------------------------------


async def test_a_queue_that_was_emptied_holds_nothing_back(tmp_path: Path) -> None:
    hang, later = Hang(), Gate()
    engine = ScriptedEngine([[RequestTurn("background", later), hang], [Say("by itself")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "hang")
            await hang.gate.reached()
            sent = message(session_id)
            await home.hub.sessions_send(sent)
            await ear.hear(SessionStateChanged, where=lambda state: state.state == "running" and state.queued == 1)
            await home.hub.sessions_interrupt(SessionRef(session_id=session_id))
            assert sent.message_id is not None
            await home.hub.queue_withdraw(WithdrawQueued(session_id=session_id, message_id=sent.message_id))
            await ear.hear(SessionStateChanged, where=lambda state: not state.held and not state.queued)
            async with home.watching(session_id, after=ear.events[-1].seq) as late:
                live = await late.hear(LiveState)
                assert (live.state.queued, live.state.held, live.queue) == (0, False, ())


async def test_a_view_of_a_closed_session_ends_after_the_present(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])) as home:
        session_id = await home.session()
        await home.hub.sessions_close(SessionRef(session_id=session_id))
        async with home.hub.sessions_attach(Attach(session_id=session_id)) as view:
            with anyio.fail_after(5):
                heard = [delivery async for batch in view.batches() for delivery in batch]
        assert isinstance(heard[-1].event.body, LiveState)
        assert heard[-1].event.body.state.state == "closed"


async def test_a_project_moves_only_to_where_there_is_a_directory(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])) as home:
        session_id = await home.session()
        home.project.rename(tmp_path / "moved")
        moved = SendMessage(session_id=session_id, content=(Text(text="x"),), directory=str(tmp_path / "nowhere"))
        with pytest.raises(FileUnusable, match="no such directory"):
            await home.hub.sessions_send(moved)


async def test_a_host_that_comes_back_in_time_is_asked_what_came_up_meanwhile(tmp_path: Path) -> None:
    gone = anyio.Event()

    async def until_gone(_: Opening, __: Turn) -> None:
        await gone.wait()

    engine = ScriptedEngine([[Do(until_gone), UseTool("rm", {"command": "rm -rf x"}, kind="execute", result="gone")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session(mode="default")
        async with home.watching(session_id, can_answer=True):
            await home.send(session_id, "clean up")  # denied when nobody is there
        gone.set()
        async with home.watching(session_id, can_answer=True) as ear:
            await home.answer(await home.pending(), Allow())
            await ear.hear(TurnCompleted)
            (decided,) = ear.bodies(PermissionDecided)
            assert decided.by == "person"
