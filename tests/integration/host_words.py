"""What a test and a host process of its own say to each other, a JSON object a line.

Rule: data only. Every word of the test is answered once, under the number it came with; what a host hears meanwhile
stands on lines of its own.
"""

import msgspec

from enginehouse_protocol.ids import MessageId, RequestId, SessionId
from enginehouse_protocol.settings import Mode

HEARD = b"E"
"""First byte of a line that is an event, as its bytes came."""
ANSWERED = b"A"
"""First byte of a line that answers."""


class Word(msgspec.Struct, frozen=True, kw_only=True, tag_field="word", tag=str.lower):
    """What the test wants of the host."""


class Create(Word, frozen=True, kw_only=True):
    mode: Mode = "default"


class Look(Word, frozen=True, kw_only=True):
    """Attach so many more views, from the beginning. Answered once all are attached."""

    session_id: SessionId
    views: int = 1
    aloud: bool = False
    """Print every durable line as it is heard."""
    answer_within_s: float | None = None
    """Somebody sits here and answers requests, at some moment within this."""
    seed: int = 0


class Send(Word, frozen=True, kw_only=True):
    session_id: SessionId
    text: str
    at_s: float = 0.0
    """On the clock all processes share; in the past: at once."""


class Drive(Word, frozen=True, kw_only=True):
    """Say `text` whenever the session is at rest, until the model has said `until`. Needs a view."""

    session_id: SessionId
    text: str
    until: str


class Shows(Word, frozen=True, kw_only=True):
    """Answered once every view shows so much of a message that is not durable yet."""

    size_bytes: int


class Over(Word, frozen=True, kw_only=True):
    """Answered once every view has heard so many turns end and knows that nothing is under way."""

    turns: int


AnyWord = Create | Look | Send | Drive | Shows | Over


class Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="said", tag=str.lower):
    """What the host answers."""


class Done(Said, frozen=True, kw_only=True):
    pass


class Created(Said, frozen=True, kw_only=True):
    session_id: SessionId


class Sent(Said, frozen=True, kw_only=True):
    message_id: MessageId
    seq: int


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A text, as far as comparing it needs it."""

    size_bytes: int
    sha256: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """All one view has to tell."""

    lines: int
    sha256: str
    """Of the durable lines, in the order they came."""
    gapless: bool
    lives: int
    """How often it was told the present."""
    open: dict[MessageId, Shown]
    """Of messages that are not durable: what was streamed so far."""
    streamed: dict[MessageId, Shown]
    """Of messages that are durable: what was shown of them just before."""
    durable: dict[MessageId, Shown]
    states: tuple[tuple[str, int, bool], ...]
    """Every state it was told: which, how many wait, held."""


class Views(Said, frozen=True, kw_only=True):
    views: tuple[Heard, ...]


class Answered(Said, frozen=True, kw_only=True):
    """Of a permission request; said without being asked."""

    request_id: RequestId
    outcome: str
    """`counted`, or the code of the error."""


class Failed(Said, frozen=True, kw_only=True):
    why: str


AnySaid = Done | Created | Sent | Views | Answered | Failed


class Numbered(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    word: AnyWord


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """0: nobody asked."""
    said: AnySaid
