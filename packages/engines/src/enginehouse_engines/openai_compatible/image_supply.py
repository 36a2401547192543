"""The images of one session on their way into requests: their bytes, and which models take none.

Rule: rendering is pure, so what it needs is here before it starts, and no longer than it is needed. What nobody knows
of a model is tried; a refusal costs one request and is remembered, so that an image never ends a conversation.
"""

import logging
import re
from collections.abc import Callable, Iterable

from enginehouse_engines.openai_compatible.dialects import sends_images
from enginehouse_engines.openai_compatible.provider_errors import IMAGES_REFUSED, ProviderError
from enginehouse_engines.openai_compatible.rendered_images import images_in
from enginehouse_protocol.engine import History
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.events import Event, StepHeader

_SAYS_SO = re.compile(
    r"(?i)\bimages?\b|image_url|multi-?modal|\bvision\b|content\b.{0,40}\b(string|text|type)\b|string.{0,40}\bcontent"
)
"""What servers say of a message with an image in it: some name it, others only the field that is no text."""
_REFUSALS = frozenset({400, 404, 413, 415, 422})
_IN_A_BODY = b'{"type":"image_url",'


class ImageSupply:
    def __init__(self, history: History, known: Callable[[str], bool | None], log: logging.Logger) -> None:
        """`known`: whether a model takes images; None where nobody knows."""
        self.data: dict[str, bytes] = {}
        """By sha256; what rendering looks into."""
        self._history = history
        self._known = known
        self._log = log
        self._refusing: set[str] = set()

    async def load(self, events: Iterable[Event]) -> None:
        """Have the images of these events. One that is lost is told to the model, not a reason to stop."""
        for digest in sorted(images_in(events) - self.data.keys()):
            try:
                self.data[digest] = await self._history.blob(digest)
            except FileUnusable as error:
                self._log.warning("an image of this conversation is lost: %s", error)

    def keep_only(self, digests: set[str]) -> None:
        for digest in self.data.keys() - digests:
            del self.data[digest]

    def may_be_sent_to(self, model: str, recorded: StepHeader | None) -> bool:
        """`recorded`: the last header on record, which remembers a refusal after the session was opened again."""
        known = self._known(model)
        if known is False or model in self._refusing:
            return False
        refused_before = recorded is not None and recorded.model == model and not sends_images(recorded.dialect)
        return known is True or not refused_before

    def are_refused(self, error: ProviderError, model: str, body: bytes) -> bool:
        """Whether that is why a server refused this request; then this model is sent none any more."""
        if _IN_A_BODY not in body:
            return False
        says_so = error.http_status in _REFUSALS and (error.http_status == 413 or _SAYS_SO.search(str(error)))
        if error.code != IMAGES_REFUSED and not says_so:
            return False
        self._refusing.add(model)
        return True
