"""Nothing is lost, nothing leaks: what a session keeps, and what it must never write down."""

import base64
import os
import subprocess
from pathlib import Path

import pytest
from sessions.house import house

from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.content import SpilledText, Text, content_text
from enginehouse_protocol.errors import ProfileLocked, SessionMoved, SessionNotFound, TranscriptUnavailable, UsageError
from enginehouse_protocol.events import (
    Body,
    Event,
    MessageDelta,
    MessageUser,
    Notice,
    PermissionDecided,
    SessionStateChanged,
    ToolOutput,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
)
from enginehouse_protocol.hub import EventsAfter, Launch, ListSessions, SendMessage, SessionRef
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.permissions import Deny
from enginehouse_protocol.testing import Gate, Say, ScriptedEngine, UseTool, Wait

pytestmark = pytest.mark.anyio

SECRET = "correct-horse-battery-7"
LAUNCH = Launch(environment={"PATH": "/usr/bin:/bin"}, secrets={"OPENAI_API_KEY": SECRET}, key="OPENAI_API_KEY")


@pytest.fixture(autouse=True)
def private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything Enginehouse keeps, in one place that can be searched."""
    for name in ("DATA", "CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def files_with(folder: Path, needle: bytes) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and needle in path.read_bytes()
    ]


def result_text(bodies: list[Body]) -> str:
    return "\n".join(content_text(body.content) for body in bodies if isinstance(body, ToolResult))


async def test_a_secret_reaches_no_file_and_no_view(tmp_path: Path) -> None:
    half = len(SECRET) // 2
    engine = ScriptedEngine(
        [
            [
                Say(f"it is {SECRET}.", pieces=("it is ", SECRET[:half], SECRET[half:], ".")),
                UseTool("bash", {"command": f"printf '%s' '{SECRET}' | base64"}, kind="execute"),
                UseTool("bash", {"command": "cat leaked"}, kind="execute"),
            ]
        ]
    )
    async with house(tmp_path, engine) as home:
        (home.project / "leaked").write_text(f"KEY={SECRET}\n")
        session_id = await home.session(launch=LAUNCH)
        async with home.watching(session_id) as ear:
            await home.hub.sessions_send(
                SendMessage(session_id=session_id, content=(Text(text=f"my key is {SECRET}"),), launch=LAUNCH)
            )
            await ear.hear(TurnCompleted)
        lines = b"\n".join(item.line for item in ear.deliveries)
        text = "".join(delta.text for delta in ear.bodies(MessageDelta))
        assert text == "it is «secret:OPENAI_API_KEY»."
    home.project.joinpath("leaked").unlink()
    for needle in (SECRET.encode(), base64.b64encode(SECRET.encode())[:-4]):
        assert needle not in lines
        assert files_with(tmp_path, needle) == []
    assert "«secret:OPENAI_API_KEY»" in lines.decode()


async def test_a_mask_never_reaches_a_file_or_a_command(tmp_path: Path) -> None:
    use = UseTool("write_file", {"path": ".env", "content": "K=«secret:OPENAI_API_KEY»"}, kind="edit", paths=(".env",))
    async with house(tmp_path, ScriptedEngine([[use]])) as home:
        session_id = await home.session(launch=LAUNCH)
        bodies = await home.say(session_id, "go")
        (decided,) = (body for body in bodies if isinstance(body, PermissionDecided))
        assert isinstance(decided.decision, Deny)
        assert "OPENAI_API_KEY" in decided.decision.reason
        assert not (home.project / ".env").exists()


async def test_a_key_nobody_told_us_about_is_flagged_and_kept(tmp_path: Path) -> None:
    unknown = "ghp_" + "a1B2" * 9
    async with house(tmp_path, ScriptedEngine([[Say("ok")]])) as home:
        bodies = await home.say(await home.session(), f"use {unknown}")
        assert "secret.suspected" in [body.code for body in bodies if isinstance(body, Notice)]
        user = next(body for body in bodies if isinstance(body, MessageUser))
        assert unknown in content_text(user.content)


async def test_twenty_megabytes_of_output_are_a_blob_the_agent_can_read(tmp_path: Path) -> None:
    command = "head -c 20000000 /dev/zero | tr '\\0' 'é' | head -c 20000000; echo END"
    async with house(tmp_path, ScriptedEngine([[UseTool("bash", {"command": command}, kind="execute")]])) as home:
        session_id = await home.session()
        bodies = await home.say(session_id, "go")
        result = next(body for body in bodies if isinstance(body, ToolResult))
        spilled = next(part for part in result.content if isinstance(part, SpilledText))
        assert spilled.tail.endswith("END\n")
        page = await home.hub.sessions_events(EventsAfter(session_id=session_id))
        assert page.last_seq == page.events[-1].seq
        folders = Folders(tmp_path / "profile")
        lines = (folders.transcripts / session_id / "transcript.jsonl").read_bytes().splitlines()
        assert max(len(line) for line in lines) < 1 << 20
        blob = folders.transcripts / session_id / "blobs" / spilled.sha256
        assert blob.stat().st_size == spilled.size_bytes
        assert (folders.data / "scratch" / session_id / spilled.blob_name).read_bytes() == blob.read_bytes()


@pytest.mark.parametrize(
    "text", ["a\u2028b\u2029c", "nul \0 byte", "\udcff half \ud83d", "\ud83d\ude00 pair", "\r\n\x1b[31m"]
)
async def test_hard_text_is_one_valid_record(tmp_path: Path, text: str) -> None:
    async with house(tmp_path, ScriptedEngine([[Say(text)]])) as home:
        session_id = await home.session()
        bodies = await home.say(session_id, text)
        kept = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        user = next(body for body in bodies if isinstance(body, MessageUser))
        assert content_text(user.content) == kept
        said = [body.code for body in bodies if isinstance(body, Notice)]
        assert ("text.repaired" in said) == (kept != text)
        assert Archive(Folders(tmp_path / "profile").transcripts).check(session_id).damage == ()


async def test_not_a_number_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    bad = UseTool("x", {"n": float("nan")}, kind="read", result="1")
    async with house(tmp_path, ScriptedEngine([[bad], [Say("ok")]])) as home:
        session_id = await home.session()
        bodies = await home.say(session_id, "go")
        assert isinstance(bodies[-1], TurnFailed)
        assert not [body for body in bodies if isinstance(body, ToolUse)]
        assert isinstance((await home.say(session_id, "again"))[-1], TurnCompleted)


async def test_a_full_disk_stops_the_turn_keeps_what_was_said_and_goes_on_with_space(
    tmp_path: Path, small_disk: Path
) -> None:
    filler = [Say("x" * 40_000) for _ in range(30)]
    async with house(tmp_path, ScriptedEngine([filler, [Say("fine")]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "fill it")
            state = await ear.hear(SessionStateChanged, where=lambda body: bool(body.read_only))
            assert "the disk is full" in state.read_only
        heard = [item.line for item in ear.deliveries if isinstance(item.event, Event)]
        with pytest.raises(TranscriptUnavailable, match="full"):
            while True:
                await home.send(session_id, "y" * 20_000)
        assert list(Archive(small_disk / "transcripts").lines_after(session_id, 0))[: len(heard)] == heard
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        async with home.watching(session_id) as ear:
            await home.send(session_id, "and now?")
            await ear.hear(MessageUser, where=lambda body: body.content == (Text(text="and now?"),))
            await ear.hear(TurnCompleted)
        events = (await home.hub.sessions_events(EventsAfter(session_id=session_id))).events
        assert {e.body.code for e in events if isinstance(e.body, TurnFailed)} == {"interrupted"}
        check = Archive(small_disk / "transcripts").check(session_id)
        assert check.damage == ()


async def test_a_moved_project_is_found_by_id_offered_by_place_and_confirmed_by_a_person(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("a")], [Say("b")]])) as home:
        session_id = await home.session()
        await home.say(session_id, "one")
        moved = tmp_path / "moved"
        home.project.rename(moved)
        (listed,) = (await home.hub.sessions_list(ListSessions(directory=str(moved)))).sessions
    async with house(tmp_path, make_project=False, engine=ScriptedEngine([[Say("b")]])) as home:
        (listed,) = (await home.hub.sessions_list(ListSessions(directory=str(moved)))).sessions
        assert (listed.id, listed.moved_here) == (session_id, True)
        with pytest.raises(SessionMoved, match=str(home.project)):
            await home.send(session_id, "two")
        await home.hub.sessions_send(
            SendMessage(session_id=session_id, content=(Text(text="two"),), directory=str(moved), launch=LAUNCH)
        )
        (listed,) = (await home.hub.sessions_list(ListSessions(directory=str(moved)))).sessions
        assert (listed.directory, listed.moved_here) == (str(moved), False)


async def test_a_session_does_not_wander_into_another_directory_while_its_own_is_there(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("a")]])) as home:
        session_id = await home.session()
        with pytest.raises(UsageError, match="still there"):
            await home.hub.sessions_send(
                SendMessage(session_id=session_id, content=(Text(text="x"),), directory=str(tmp_path))
            )


async def test_a_directory_that_disappears_ends_the_turn_with_the_reason(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, ScriptedEngine([[Wait(gate)], [Say("b")]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "one")
            await gate.reached()
            await home.send(session_id, "two")
            home.project.rename(tmp_path / "gone")
            gate.open()
            assert (await ear.hear(TurnFailed)).code == "workspace.missing"


async def test_five_projects_with_similar_paths_have_five_lists(tmp_path: Path) -> None:
    names = ["a/b-c", "a-b/c", "a_b/c", "외주", "개인", "x" * 200]
    async with house(tmp_path, ScriptedEngine([])) as home:
        made: dict[str, SessionId] = {}
        for name in names:
            home.project = tmp_path / name
            home.project.mkdir(parents=True)
            made[name] = await home.session()
        for name in names:
            (listed,) = (await home.hub.sessions_list(ListSessions(directory=str(tmp_path / name)))).sessions
            assert listed.id == made[name]


async def test_a_second_hub_on_one_profile_is_refused_naming_the_first(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])):
        with pytest.raises(ProfileLocked, match="a test"):
            async with Hub(folders=Folders(tmp_path / "profile"), factories={}, what="second"):
                pass


async def test_nothing_is_written_under_an_id_whose_history_cannot_be_read(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("a")]])) as home:
        session_id = await home.session()
        await home.say(session_id, "one")
    folder = tmp_path / "profile" / "transcripts" / session_id
    folder.rename(tmp_path / "elsewhere")
    async with house(tmp_path, make_project=False, engine=ScriptedEngine([[Say("b")]])) as home:
        with pytest.raises(SessionNotFound):
            await home.send(session_id, "two")
    assert not folder.exists()


async def test_listing_twice_changes_no_date_and_no_id(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("a")])) as home:
        for _ in range(3):
            await home.say(await home.session(), "one")
    archive = Archive(Folders(tmp_path / "profile").transcripts)
    first = archive.list(None)
    for _ in range(2):
        async with house(tmp_path, make_project=False, engine=ScriptedEngine([])) as home:
            assert await home.hub.sessions_list(ListSessions()) == first
    assert archive.list(None) == first


async def test_a_tools_output_passes_by_as_it_is_printed(tmp_path: Path) -> None:
    async with house(
        tmp_path, ScriptedEngine([[UseTool("bash", {"command": "echo one; echo two"}, kind="execute")]])
    ) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await ear.hear(TurnCompleted)
        assert "".join(body.text for body in ear.bodies(ToolOutput)) == "one\ntwo\n"


async def test_a_deleted_session_leaves_no_byte_behind(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("hush-hush-7")]])) as home:
        session_id = await home.session()
        await home.say(session_id, "one")
        await home.hub.sessions_delete(SessionRef(session_id=session_id))
        assert files_with(tmp_path, b"hush-hush-7") == []
        assert os.listdir(tmp_path / "profile" / "transcripts") == []
