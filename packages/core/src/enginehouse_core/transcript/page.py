"""Some events of a transcript, from the file: "what came after seq N". Blocking; changes nothing."""

from collections.abc import Iterable
from pathlib import Path

from enginehouse_core.transcript.file import FILE_NAME, read_transcript
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.events import Event
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import SessionId

PAGE_EVENTS = 1_000
PAGE_BYTES = 1 << 20


def page_after(folder: Path, session_id: SessionId, seq: int, *, offset: int, damaged: bool) -> list[Delivery]:
    """The next events after `seq`: at most 1,000, and about 1 MiB.

    `offset` is a place at or before them (0: the start). A file known to be `damaged` is scanned with care.
    """
    if not damaged:
        page = _clean_page(folder / FILE_NAME, session_id, seq, offset)
        if page is not None:
            return page
    records = (record for record in read_transcript(folder, session_id).records if record.event.seq > seq)
    return _bounded(Delivery(event=record.event, line=record.line) for record in records)


def _clean_page(path: Path, session_id: SessionId, seq: int, offset: int) -> list[Delivery] | None:
    """None when a line is not what it should be."""
    page: list[Delivery] = []
    size = 0
    with path.open("rb") as file:
        file.seek(offset)
        if offset == 0:
            file.readline()
        for line in file:
            if not line.endswith(b"\n"):
                break  # being written at this moment
            try:
                event = decode_recorded(line)
            except MalformedData:
                return None
            if not isinstance(event, Event) or event.session_id != session_id:
                return None
            if event.seq > seq:
                page.append(Delivery(event=event, line=line[:-1]))
                size += len(line)
                if len(page) == PAGE_EVENTS or size >= PAGE_BYTES:
                    break
    return page


def _bounded(deliveries: Iterable[Delivery]) -> list[Delivery]:
    page: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        page.append(delivery)
        size += len(delivery.line)
        if len(page) == PAGE_EVENTS or size >= PAGE_BYTES:
            break
    return page
