"""Images of messages and tool results: what is stored before what names it, what is refused, what comes back."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginehouse_core.sessions.images import keep_images
from enginehouse_core.transcript.blobs import load_blob
from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription
from enginehouse_protocol.content import MAX_IMAGE_BYTES, MAX_IMAGES, Content, Image, Text
from enginehouse_protocol.errors import MalformedData, UsageError
from enginehouse_protocol.events import MessageQueued, MessageUser, Notice, ToolResult, ToolUse, TurnCompleted
from enginehouse_protocol.hub import EditQueued, EventsAfter, SendMessage, SessionRef, WithdrawQueued
from enginehouse_protocol.ids import CallId, EngineName, SessionId
from enginehouse_protocol.testing import Emit, Gate, Say, ScriptedEngine, Wait

from .house import House, house

pytestmark = pytest.mark.anyio
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAADUlEQVR42mP8z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC")
GIF = b"GIF89a\x03\x00\x04\x00" + bytes(20)
DOT = Image(media_type="image/png", data=PNG, name="dot.png")
KEPT = Image(
    media_type="image/png",
    sha256=hashlib.sha256(PNG).hexdigest(),
    size_bytes=len(PNG),
    width=2,
    height=1,
    name="dot.png",
)


def looking(turns: Any = (), *, images: bool = True) -> ScriptedEngine:
    return ScriptedEngine(
        turns,
        description=EngineDescription(
            name=EngineName("scripted"), title="Scripted", version="1", abilities=EngineAbilities(images=images)
        ),
    )


def sending(session_id: SessionId, *content: Content) -> SendMessage:
    return SendMessage(session_id=session_id, content=content, unattended="deny")


def blobs_of(tmp_path: Path, session_id: SessionId) -> Path:
    return tmp_path / "profile" / "transcripts" / session_id / "blobs"


async def recorded(home: House, session_id: SessionId, *kinds: type[Any]) -> list[Any]:
    page = await home.hub.sessions_events(EventsAfter(session_id=session_id))
    return [event.body for event in page.events if isinstance(event.body, kinds)]


async def test_an_image_of_a_message_is_a_private_blob_and_the_record_only_names_it(tmp_path: Path) -> None:
    engine = looking([[Say("A dot.")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.hub.sessions_send(sending(session_id, Text(text="what is this?"), DOT))
            queued = await ear.hear(MessageQueued)
            user = await ear.hear(MessageUser)
            await ear.hear(TurnCompleted)  # the engine is opened after its message is recorded
        assert queued.content == user.content == (Text(text="what is this?"), KEPT)
        blob = blobs_of(tmp_path, session_id) / KEPT.sha256
        assert blob.read_bytes() == PNG
        assert blob.stat().st_mode & 0o777 == 0o600
        assert blob.parent.stat().st_mode & 0o777 == 0o700
        transcript = blob.parent.parent / "transcript.jsonl"
        assert base64.b64encode(PNG) not in transcript.read_bytes()
        (opening,) = engine.openings
        assert await opening.history.blob(KEPT.sha256) == PNG


async def test_an_image_of_a_tool_result_is_kept_the_same_way(tmp_path: Path) -> None:
    use = ToolUse(call_id=CallId("c_1"), name="look", kind="read", title="look", input={})
    result = ToolResult(call_id=use.call_id, status="ok", content=(Text(text="here"), DOT))
    async with house(tmp_path, looking([[Emit(use), Emit(result)]])) as home:
        session_id = await home.session()
        bodies = await home.say(session_id, "look")
        (kept,) = [body for body in bodies if isinstance(body, ToolResult)]
        assert kept == replace(result, content=(Text(text="here"), KEPT))
        assert load_blob(blobs_of(tmp_path, session_id), KEPT.sha256) == PNG


async def test_a_queued_message_keeps_gives_back_and_takes_again_its_images(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, looking([[Wait(gate)], [Say("Seen.")]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "wait")
            await ear.hear(MessageUser)
            receipt = await home.hub.sessions_send(sending(session_id, DOT))
            (waiting,) = (await home.hub.queue_list(SessionRef(session_id=session_id))).messages
            assert waiting.content == (KEPT,)
            gif = Image(media_type="image/gif", data=GIF, name="/home/me/loop.gif")
            edit = EditQueued(
                session_id=session_id, message_id=receipt.message_id, content=(Text(text="both"), *waiting.content, gif)
            )
            await home.hub.queue_edit(edit)
            back = await home.hub.queue_withdraw(WithdrawQueued(session_id=session_id, message_id=receipt.message_id))
            loop = Image(
                media_type="image/gif",
                sha256=hashlib.sha256(GIF).hexdigest(),
                size_bytes=len(GIF),
                width=3,
                height=4,
                name="loop.gif",
            )
            assert back.content == (Text(text="both"), KEPT, loop)
            await home.hub.sessions_send(sending(session_id, *back.content))
            gate.open()
            said = await ear.hear(MessageUser, where=lambda body: body.source == "queue")
        assert said.content == back.content


async def test_an_engine_that_takes_no_images_is_not_sent_any(tmp_path: Path) -> None:
    async with house(tmp_path, looking(images=False)) as home:
        session_id = await home.session()
        with pytest.raises(UsageError, match="'scripted' takes no images"):
            await home.hub.sessions_send(sending(session_id, Text(text="look"), DOT))
        assert await recorded(home, session_id, MessageQueued, Notice) == []
        assert not blobs_of(tmp_path, session_id).exists()


LARGE = Image(media_type="image/png", data=PNG + bytes(MAX_IMAGE_BYTES))
ELSEWHERE = replace(KEPT, sha256="0" * 64)


@pytest.mark.parametrize(
    "content, problem",
    [
        ((replace(DOT, media_type="image/jpeg"),), "said to be image/jpeg, and its first bytes are image/png"),
        ((Image(media_type="image/png", data=b"<svg/>"),), "none: its first bytes"),
        ((DOT, LARGE), f"has {len(PNG) + MAX_IMAGE_BYTES} bytes; at most {MAX_IMAGE_BYTES}"),
        ((DOT,) * (MAX_IMAGES + 1), f"{MAX_IMAGES + 1} images in one message; at most {MAX_IMAGES}"),
        ((ELSEWHERE,), "this session has no such blob"),
        ((replace(KEPT, sha256="../../transcript.jsonl"),), "this session has no such blob"),
    ],
    ids=["other kind", "no image", "too large", "too many", "of no blob", "of no digest"],
)
async def test_what_is_no_image_is_refused_before_anything_is_stored(
    tmp_path: Path, content: tuple[Content, ...], problem: str
) -> None:
    async with house(tmp_path, looking([[Say("Yes.")]])) as home:
        session_id = await home.session()
        with pytest.raises(MalformedData, match=problem):
            await home.hub.sessions_send(sending(session_id, *content))
        assert not blobs_of(tmp_path, session_id).exists()
        assert await recorded(home, session_id, MessageQueued) == []
        await home.say(session_id, "and now?")


def test_a_reference_is_described_by_its_bytes_not_by_its_sender(tmp_path: Path) -> None:
    keep_images(tmp_path, (DOT,))
    lie = replace(KEPT, size_bytes=1, width=9, height=None, name="other.png")
    assert keep_images(tmp_path, (lie,)) == (replace(KEPT, name="other.png"),)
    with pytest.raises(MalformedData, match="said to be image/gif"):
        keep_images(tmp_path, (replace(KEPT, media_type="image/gif"),))


def test_images_that_together_fit_into_no_line_are_refused(tmp_path: Path) -> None:
    large = Image(media_type="image/png", data=PNG + bytes(15_000_000))
    with pytest.raises(MalformedData, match="of images in one message; at most 40000000"):
        keep_images(tmp_path, (large, large, large))
