"""Whose turn the CLI is in: that of our prompt, one it began by itself, or none.

Rule: a result belongs to the prompt it names. The CLI may run a turn of its own before ours, or fold our prompt into
it; then one result ends both.
"""

from enginehouse_engines.claude.frames import LifecycleFrame, ResultFrame


class Turns:
    def __init__(self) -> None:
        self.prompt: str | None = None
        """The uuid of our prompt whose result is owed."""
        self._started = False
        self._unrequested = False
        self._woken_by = ""

    @property
    def open(self) -> bool:
        return self.prompt is not None or self._unrequested

    def begin(self, prompt_uuid: str) -> None:
        """Our prompt is written. Empty: core has taken over a turn the CLI began by itself."""
        if prompt_uuid:
            self.prompt = prompt_uuid
            self._started = False

    def woken(self, by: str) -> None:
        """Something happened that makes an idle CLI speak."""
        if not self.open:
            self._woken_by = by

    def begun_by_itself(self) -> str:
        """The CLI speaks and nobody asked. Why, as far as we know."""
        self._unrequested = True
        return self._woken_by or "engine"

    def cancels(self, frame: LifecycleFrame) -> bool:
        """Whether the CLI took our prompt from its queue. One that was under way is ended by its result."""
        if self.prompt is None or frame.command_uuid != self.prompt:
            return False
        self._started = self._started or frame.state == "started"
        return frame.state == "cancelled" and not self._started

    def answered_by(self, frame: ResultFrame) -> tuple[str | None, str]:
        """Our prompt, if this result ends its turn, and what began the turn, in the CLI's words."""
        ours = self.prompt if self._is_for_ours(frame) else None
        kind = (frame.origin or {}).get("kind")
        origin = kind if isinstance(kind, str) else "" if ours is not None else self._woken_by
        self._unrequested = False
        self._woken_by = ""
        if ours is not None:
            self.prompt = None
        return ours, origin

    def over(self) -> str | None:
        """No result comes any more. Gives our prompt, if one waited."""
        prompt, self.prompt, self._unrequested, self._woken_by = self.prompt, None, False, ""
        return prompt

    def _is_for_ours(self, frame: ResultFrame) -> bool:
        if self.prompt is None:
            return False
        named = {frame.user_message_uuid, *(frame.user_message_uuids or ())} - {None, ""}
        if named:
            return self.prompt in named
        return self._started or frame.origin is None
