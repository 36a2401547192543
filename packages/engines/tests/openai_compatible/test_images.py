"""Images in a live session: sent, read from files, refused by a server, rebuilt from the record."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from enginehouse_engines.openai_compatible import create
from enginehouse_engines.openai_compatible.dialects import DIALECT, NO_IMAGES
from enginehouse_engines.openai_compatible.toolbox.tool import Outcome, ToolRefused
from enginehouse_protocol.capabilities import ModelInfo
from enginehouse_protocol.content import MAX_IMAGE_BYTES, Image, Text
from enginehouse_protocol.engine import Access, EngineHome, Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import MessageUser, Notice, StepStarted, ToolResult
from enginehouse_protocol.ids import new_message_id
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import MemoryHistory, TempWorkspace
from model_server import ModelServer, call, fault, in_order, reply

from .conftest import Start
from .listening import run
from .rebuilding import rebuilt

pytestmark = pytest.mark.anyio


def png(seed: int = 0) -> bytes:
    """A picture of one pixel, a different one for every seed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes([0, seed]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def looking(data: bytes) -> MessageUser:
    image = Image(media_type="image/png", data=data, name="dot.png")
    return MessageUser(message_id=new_message_id(), content=(Text(text="what is this?"), image))


def urls(messages: list[dict[str, Any]]) -> list[str]:
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [part["image_url"]["url"] for content in contents for part in content if part["type"] == "image_url"]


def reopened(history: MemoryHistory, *, blobs: bool = True) -> MemoryHistory:
    again = MemoryHistory(events=tuple(history.events))
    again.blobs = history.blobs if blobs else {}
    return again


async def test_images_go_out_as_data_and_every_request_can_be_rebuilt_from_record_and_blobs(live: Start) -> None:
    script = in_order(reply("A dot."), reply("", calls=[call("read_file", {"path": "b.png"})]), reply("Another."))
    async with live(script) as it:
        (it.workspace.directory / "b.png").write_bytes(png(2))
        assert (await it.port.run(it.session, looking(png(1)))).stop == "end"
        assert (await it.port.run(it.session, "and b.png?")).stop == "end"
        assert urls(it.sent()) == [url(png(1)), url(png(2))]
        (result,) = it.port.all(ToolResult)
        (image,) = result.content
        assert image == Image(
            media_type="image/png",
            sha256=it.port.history.keep(png(2)),
            size_bytes=len(png(2)),
            width=1,
            height=1,
            name="b.png",
        )
        assert [message["role"] for message in it.sent()[-3:]] == ["assistant", "tool", "user"]
        assert it.sent()[-2]["content"] == f"[image: b.png, 1×1, {len(png(2))} bytes]"
        bodies = [request.body for request in it.server.chats]
        assert bodies[2].startswith(bodies[1].removesuffix(b"]}"))
        rebuilt(it.port.history.events, bodies, it.port.history.blobs)
        assert it.port.all(Notice) == []


async def test_a_session_opened_again_shows_the_images_it_had(live: Start) -> None:
    async with live(reply("A dot.")) as first:
        await first.port.run(first.session, looking(png()))
    async with live(reply("Still a dot."), history=reopened(first.port.history)) as second:
        await second.port.run(second.session, "are you sure?")
        assert urls(second.sent()) == [url(png())]


async def test_an_image_whose_blob_is_gone_is_said_to_be_lost_and_the_session_goes_on(live: Start) -> None:
    async with live(reply("A dot.")) as first:
        await first.port.run(first.session, looking(png()))
    async with live(reply("I cannot see it."), history=reopened(first.port.history, blobs=False)) as second:
        assert (await second.port.run(second.session, "look again")).stop == "end"
        lost = f"what is this?\n[image: dot.png, 1×1, {len(png())} bytes; it is lost]"
        assert second.sent()[1] == {"role": "user", "content": lost}


@pytest.mark.parametrize(
    "status, words",
    [
        (400, "Invalid content type. image_url is only supported by certain models."),
        (400, "At most 0 image(s) may be provided in one request."),
        (422, "messages[1]: unknown variant `image_url`, expected `text`"),
        (400, "messages[1].content must be a string"),
        (404, "No endpoints found that support image input"),
        (413, "Request Entity Too Large"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
    ],
)
async def test_a_model_that_refuses_images_is_asked_once_told_what_they_are_and_spared_after_a_restart(
    live: Start, status: int, words: str
) -> None:
    script = in_order(fault(status, words), reply("I cannot see."), reply("Neither this."))
    async with live(script) as first:
        assert (await first.port.run(first.session, looking(png()))).stop == "end"
        (notice,) = first.port.all(Notice)
        assert notice.code == "provider.adapted"
        assert words in notice.text
        assert [bool(urls(first.sent(number))) for number in range(2)] == [True, False]
        in_words = f"what is this?\n[image: dot.png, 1×1, {len(png())} bytes; it cannot be shown to you]"
        assert first.sent()[-1] == {"role": "user", "content": in_words}
        dialects = [step.header.dialect for step in first.port.all(StepStarted) if step.header is not None]
        assert dialects == [DIALECT, DIALECT + NO_IMAGES]
        await first.port.run(first.session, looking(png(1)))
        assert first.port.all(Notice)[1].code == "provider.images_left_out"
        rebuilt(first.port.history.events, [each.body for each in first.server.chats], first.port.history.blobs)
    async with live(reply("Still not."), history=reopened(first.port.history)) as second:
        await second.port.run(second.session, "and now?")
        assert [urls(second.sent(number)) for number in range(len(second.server.chats))] == [[]]


async def test_another_model_is_shown_what_the_first_refused(live: Start) -> None:
    script = in_order(fault(400, "This model does not support images."), reply("I cannot see."), reply("A dot."))
    server = ModelServer(script, models=("scripted", "sees"))
    async with live(server) as it:
        await it.port.run(it.session, looking(png()))
        await it.session.apply(SessionSettings(model="sees"))
        await it.port.run(it.session, "and you?")
        assert [bool(urls(it.sent(number))) for number in range(3)] == [True, False, True]
        rebuilt(it.port.history.events, [each.body for each in server.chats], it.port.history.blobs)


@pytest.mark.parametrize(
    "message, words",
    [(looking(png()), "Unsupported value: 'temperature'"), ("no image here", "This model does not support images")],
)
async def test_a_refusal_that_is_about_something_else_stays_one(
    live: Start, message: MessageUser | str, words: str
) -> None:
    async with live(fault(400, words)) as it:
        with pytest.raises(EngineError, match=words):
            await it.port.run(it.session, message)
        assert len(it.server.chats) == 1


async def test_a_model_known_to_take_none_is_sent_words_and_the_person_is_told(live: Start) -> None:
    options = {"models": {"scripted": {"images": False}}}
    script = in_order(reply("I cannot see."), reply("", calls=[call("read_file", {"path": "b.png"})]), reply("No."))
    async with live(script, options=options) as it:
        (it.workspace.directory / "b.png").write_bytes(png(2))
        await it.port.run(it.session, looking(png()))
        (notice,) = it.port.all(Notice)
        assert (notice.level, notice.code) == ("warning", "provider.images_left_out")
        assert notice.text.startswith("scripted takes no images")
        await it.port.run(it.session, "and b.png?")
        (result,) = it.port.all(ToolResult)
        (text,) = result.content
        assert isinstance(text, Text)
        assert (result.status, "is a picture (PNG image, 1×1" in text.text) == ("error", True)
        assert urls(it.sent()) == []
        assert it.port.all(Notice) == [notice]


async def test_what_is_known_of_a_models_eyes_is_in_the_description(home: EngineHome) -> None:
    options = {"models": {"one": {"images": True}, "two": {"images": False}}}
    with anyio.fail_after(10):
        async with ModelServer(reply("Fine."), models=("one", "two", "three")) as server, create(home) as engine:
            provider = Provider(name="p", base_url=server.base_url, options=options)
            description = await engine.describe(Access(provider=provider))
    seen = (ModelInfo(name="one", images=True), ModelInfo(name="two", images=False), ModelInfo(name="three"))
    assert (description.problem, description.models) == (None, seen)


async def test_reading_an_image_gives_it_and_one_that_is_too_large_is_refused(tmp_path: Path) -> None:
    workspace = TempWorkspace(tmp_path / "project")
    (workspace.directory / "a.png").write_bytes(png())
    outcome = await run(workspace, "read_file", shows_images=True, path="a.png")
    assert outcome == Outcome(text="", images=(Image(media_type="image/png", data=png(), name="a.png"),))
    (workspace.directory / "big.png").write_bytes(png() + bytes(MAX_IMAGE_BYTES))
    with pytest.raises(ToolRefused, match="at most 20000000 can be shown"):
        await run(workspace, "read_file", shows_images=True, path="big.png")
