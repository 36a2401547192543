"""What a person reads when something went wrong, and the exit code that goes with it.

Rule: one line for what was expected to go wrong; for what was not, one line and the place of the log. No traceback.
"""

import logging
import os

from enginehouse.output import complain
from enginehouse_hosts.terminal.exit_codes import FAILED, MISUSED
from enginehouse_protocol.errors import (
    AccessRefused,
    DecisionError,
    EnginehouseError,
    EngineUnavailable,
    FileUnusable,
    ProfileError,
    ProfileLocked,
    SessionError,
    SettingRefused,
    TranscriptUnreadable,
    UsageError,
)

_MISUSE = (
    UsageError,
    ProfileError,
    SessionError,
    DecisionError,
    EngineUnavailable,
    SettingRefused,
    FileUnusable,
    TranscriptUnreadable,
    AccessRefused,
)


def told(error: Exception) -> int:
    """Say it on stderr and return the exit code."""
    expected = _expected(error)
    if expected is not None:
        complain(_text(expected))
        return MISUSED if isinstance(expected, _MISUSE) else FAILED
    complain(_unexpected(error))
    return FAILED


def _text(error: EnginehouseError) -> str:
    if isinstance(error, ProfileLocked):
        from enginehouse.hub_place import locked_text

        return locked_text(error)
    return str(error)


def _expected(error: BaseException) -> EnginehouseError | None:
    """The error of ours in a group that holds nothing else."""
    if isinstance(error, EnginehouseError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [_expected(each) for each in error.exceptions]
        return found[0] if all(found) else None
    return None


def _unexpected(error: Exception) -> str:
    """What to say of it, once the details are in the log."""
    text = f"something went wrong inside: {type(error).__name__}: {error}"
    try:
        from enginehouse.environment import secrets_in
        from enginehouse_core.log import FILE, close_log, configure_log
        from enginehouse_core.masking import Masker
        from enginehouse_core.profile.folders import Folders

        masker = Masker(secrets_in(os.environ))
        text = masker.text(text)
        log = Folders.of(os.environ).log
        configure_log(log, masker)
        logging.getLogger("enginehouse").error("the command failed unexpectedly", exc_info=error)
        close_log()
        return f"{text}; details are in {log / FILE}" if (log / FILE).exists() else text
    except Exception:  # noqa: BLE001 the last thing said must not fail
        return text
