"""Where a scripted engine with a memory of its own keeps it: in a folder, so that a new process finds it.

Rule: an id may be known to others before its file exists, as with real engines; loading it is then
`NativeSessionLost`.
"""

import secrets
from pathlib import Path

import msgspec

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.errors import NativeSessionLost


class NativeStore:
    """One JSON file a session. Synchronous and small, as a test double may be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new_id(self) -> str:
        return f"native-{secrets.token_hex(8)}"

    def load(self, native_id: str) -> list[str]:
        try:
            return msgspec.json.decode(self._file(native_id).read_bytes(), type=list[str])
        except FileNotFoundError:
            raise NativeSessionLost(f"no native session {native_id!r}") from None

    def save(self, native_id: str, known: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(native_id).write_bytes(msgspec.json.encode([well_formed(text) for text in known]))

    def lose(self, native_id: str) -> None:
        self._file(native_id).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        return sorted(file.stem for file in self.folder.glob("*.json"))

    def _file(self, native_id: str) -> Path:
        return self.folder / f"{native_id}.json"
