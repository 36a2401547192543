"""A session's record in memory.

Rule: what it holds went through the codec, so a body no transcript could hold is found here, by the test.
"""

import hashlib
import time

from enginehouse_protocol.codec import decode_event, encode_event
from enginehouse_protocol.content import Content, Image
from enginehouse_protocol.errors import FileUnusable, MalformedData
from enginehouse_protocol.events import DurableBody, Event
from enginehouse_protocol.ids import SessionId, TurnId, new_session_id
from enginehouse_protocol.image_headers import image_header

PAGE = 1000


class MemoryHistory:
    """A `History` over a list. `events` may be read and, between turns, replaced."""

    def __init__(self, session_id: SessionId | None = None, events: tuple[Event, ...] = ()) -> None:
        self.session_id = session_id or (events[0].session_id if events else new_session_id())
        self.events: list[Event] = list(events)
        self.blobs: dict[str, bytes] = {}

    @property
    def last_seq(self) -> int:
        return self.events[-1].seq if self.events else 0

    async def events_after(self, seq: int) -> list[Event]:
        return [event for event in self.events if event.seq > seq][:PAGE]

    async def blob(self, sha256: str) -> bytes:
        try:
            return self.blobs[sha256]
        except KeyError:
            raise FileUnusable(sha256, "no such blob") from None

    def keep(self, data: bytes) -> str:
        """Store a blob and return its name."""
        name = hashlib.sha256(data).hexdigest()
        self.blobs[name] = data
        return name

    def by_reference(self, content: tuple[Content, ...]) -> tuple[Content, ...]:
        """The same content with every image that was handed in stored, and named as a record names it.

        Raises:
            MalformedData: core would refuse it.
        """
        return tuple(self._referred(part) if isinstance(part, Image) else part for part in content)

    def _referred(self, image: Image) -> Image:
        data = self.blobs.get(image.sha256) if image.data is None else image.data
        header = image_header(data) if data is not None else None
        if data is None or header is None or header.media_type != image.media_type:
            raise MalformedData(f"not what it is said to be: {image.media_type} {image.name!r}")
        return Image(
            media_type=header.media_type,
            sha256=self.keep(data),
            size_bytes=len(data),
            width=header.width,
            height=header.height,
            name=image.name,
        )

    def stamp(self, body: DurableBody, turn_id: TurnId | None = None) -> Event:
        """Append a body as the transcript would.

        Raises:
            MalformedData: no transcript could hold it.
            UnicodeEncodeError: it holds a lone surrogate.
        """
        event = Event(
            session_id=self.session_id,
            seq=self.last_seq + 1,
            at_ms=time.time_ns() // 1_000_000,
            turn_id=turn_id,
            body=body,
        )
        kept = decode_event(encode_event(event))
        assert isinstance(kept, Event)
        self.events.append(kept)
        return kept

    def bodies(self) -> list[object]:
        return [event.body for event in self.events]
