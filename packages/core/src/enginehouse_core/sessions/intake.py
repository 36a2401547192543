"""What every body passes before it is recorded or shown: valid text, no secrets, not too large.

Rule: one place for durable and transient alike. A body that needs nothing is stamped at once and encoded once; only
one that does need something is taken apart.
"""

from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import anyio.to_thread
import msgspec

from enginehouse_core.masking import Masker, StreamMasker
from enginehouse_core.sessions.images import has_images, keep_images
from enginehouse_core.transcript.blobs import store_blob, write_whole
from enginehouse_core.transcript.log import SessionLog
from enginehouse_protocol.codec import map_text, refuse_nonfinite, well_formed
from enginehouse_protocol.content import FileChange, LongText, SpilledText, Text
from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.events import (
    AnyBody,
    MessageAssistant,
    MessageDelta,
    MessageQueued,
    PermissionDecided,
    PermissionRequested,
    Reasoning,
    ReasoningDelta,
    StepHeader,
    StepStarted,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import TurnId
from enginehouse_protocol.permissions import Allow, JsonObject

RECORD_BYTES = 1 << 20
"""The largest record; what is longer is spilled to a blob."""
_SPILL_OVER = 16 << 10  # characters: in a body too large, every text longer than this goes to a blob
_KEPT_END = 4 << 10  # characters of head and of tail that stay in the record
_WORKER_BYTES = 256 << 10

Streamed = MessageDelta | ReasoningDelta | ToolOutput


class Intake:
    """One session's way into its record. `masker` may be replaced when the session learns new secrets."""

    def __init__(self, masker: Masker, blobs: Path, scratch: Path) -> None:
        self.masker = masker
        self.repaired_text = 0
        """How many bodies held ill-formed Unicode, replaced by U+FFFD since the last time somebody looked."""
        self._blobs = blobs
        self._scratch = scratch
        self._streams: dict[tuple[type[Streamed], str], StreamMasker] = {}

    async def with_images_kept(self, body: AnyBody) -> AnyBody:
        """The body with its images by reference, their blobs on disk. Before `record`, for a disk may be slow.

        What a message says when its turn comes was taken in with the queue, so it is not looked at again.

        Raises:
            MalformedData, TranscriptUnavailable
        """
        if not isinstance(body, MessageQueued | ToolResult) or not has_images(body.content):
            return body
        content = await anyio.to_thread.run_sync(keep_images, self._blobs, body.content)
        return msgspec.structs.replace(body, content=content)

    async def record(self, log: SessionLog, body: AnyBody, turn_id: TurnId | None) -> Delivery:
        """Put `body` on the log as it may be kept, and return it as it was kept.

        Raises:
            TranscriptUnavailable: nothing can be recorded.
            MalformedData: a number JSON cannot carry, or a body too large even after spilling.
        """
        _refuse_nonfinite(body)
        try:
            stamped = log.stamp(body, turn_id)
        except UnicodeEncodeError:
            self.repaired_text += 1
            body = map_text(body, well_formed)
            stamped = log.stamp(body, turn_id)
        if self._must_mask(stamped):
            body = await self._masked(body, len(stamped.line))
            stamped = log.stamp(body, turn_id)
        if len(stamped.line) > RECORD_BYTES:
            body = await self._spilled(body)
            stamped = log.stamp(body, turn_id)
            if len(stamped.line) > RECORD_BYTES:
                raise MalformedData(
                    f"a record of {len(stamped.line)} bytes that cannot be spilled any further; at most {RECORD_BYTES}"
                )
        log.put(stamped)
        return stamped

    async def pass_on(self, log: SessionLog, body: Streamed, turn_id: TurnId | None) -> None:
        """Put a piece of a stream on the log, masked across the borders of pieces. A tail may be held back."""
        body = self._masked_stream(body)
        if body.text:
            await self.record(log, body, turn_id)

    def rest_of_stream(self, key: str) -> list[Streamed]:
        """What was held back because it might have begun a secret; the streams of this message or tool use are over."""
        rest: list[Streamed] = []
        for kind in (MessageDelta, ReasoningDelta, ToolOutput):
            masker = self._streams.pop((kind, key), None)
            if masker and (text := masker.flush()):
                rest.append(_streamed(kind, key, text))
        return rest

    def _masked_stream(self, body: Streamed) -> Streamed:
        if not self.masker:
            return body
        key = (type(body), body.call_id if isinstance(body, ToolOutput) else body.message_id)
        masker = self._streams.get(key)
        if masker is None:
            masker = self._streams[key] = self.masker.stream()
        text = masker.feed(body.text)
        return body if text is body.text else msgspec.structs.replace(body, text=text)

    def _must_mask(self, stamped: Delivery) -> bool:
        return bool(self.masker) and self.masker.contains(stamped.line)

    async def _masked(self, body: AnyBody, size: int) -> AnyBody:
        if size < _WORKER_BYTES:
            return map_text(body, self.masker.text)
        return await anyio.to_thread.run_sync(map_text, body, self.masker.text)

    async def _spilled(self, body: AnyBody) -> AnyBody:
        """The same body with its long texts in blobs."""
        return await anyio.to_thread.run_sync(self._spill, body)

    def _spill(self, value: Any) -> Any:
        """By what a field is declared to be, so that free JSON cannot pass for one of our own structs."""
        match value:
            case Text(text=text) if len(text) > _SPILL_OVER:
                return self._spill_text(text)
            case FileChange(diff=diff) if len(diff) > _SPILL_OVER:
                return msgspec.structs.replace(value, diff=diff[:_KEPT_END], cut=True)
            case msgspec.Struct():
                return msgspec.structs.replace(value, **self._spilled_fields(value))
            case tuple():
                return tuple(self._spill(item) for item in cast(tuple[Any, ...], value))
            case dict():
                return self._spill_json(value)
            case _:
                return value

    def _spilled_fields(self, value: msgspec.Struct) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in value.__struct_fields__:
            item: object = getattr(value, name)
            if not isinstance(item, str):
                fields[name] = self._spill(item)
            elif len(item) > _SPILL_OVER and name in _long_texts(type(value)):
                fields[name] = self._spill_text(item)
        return fields

    def _spill_json(self, value: Any) -> Any:
        """Free JSON with its long texts replaced, in place, by what a `SpilledText` is in JSON."""
        match value:
            case str() if len(value) > _SPILL_OVER:
                return msgspec.to_builtins(self._spill_text(value))
            case dict():
                return {key: self._spill_json(item) for key, item in cast(JsonObject, value).items()}
            case list() | tuple():
                return [self._spill_json(item) for item in cast(list[Any], value)]
            case _:
                return value

    def _spill_text(self, text: str) -> SpilledText:
        data = text.encode()
        digest = store_blob(self._blobs, data)
        spilled = SpilledText(head=text[:_KEPT_END], tail=text[-_KEPT_END:], size_bytes=len(data), sha256=digest)
        # A copy, not a link: the fence refuses files with a second name. The agent may write in its scratch, so
        # whatever it put under that name is replaced, never followed.
        write_whole(self._scratch, spilled.blob_name, data)
        return spilled


@cache
def _long_texts(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Names of the fields that are `LongText`."""
    wanted = set(get_args(LongText))
    return frozenset(field.name for field in msgspec.structs.fields(kind) if wanted <= set(get_args(field.type)))


def _refuse_nonfinite(body: AnyBody) -> None:
    """The encoder would turn such a number into null; these are the bodies one can be in."""
    match body:
        case ToolUse():
            refuse_nonfinite(body.input)
        case PermissionDecided():
            refuse_nonfinite([body.input, body.decision.input if isinstance(body.decision, Allow) else None])
        case PermissionRequested(input=dict() as shown):
            refuse_nonfinite(shown)
        case UsageUpdated():
            refuse_nonfinite(body.cost_usd)
        case MessageAssistant(reasoning=Reasoning(opaque=dict() as opaque)):
            refuse_nonfinite(opaque)
        case StepStarted(header=StepHeader() as header):
            refuse_nonfinite([*header.tools, header.options])
        case _:
            pass


def _streamed(kind: type[Streamed], key: str, text: str) -> Streamed:
    field = "call_id" if kind is ToolOutput else "message_id"
    return msgspec.convert({"type": kind.__struct_config__.tag, field: key, "text": text}, kind)
