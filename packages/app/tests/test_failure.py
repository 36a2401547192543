"""How a command that fails says so."""

from pathlib import Path

import pytest

from enginehouse.failure import told
from enginehouse_hosts.terminal.streams import OutputUnwritable
from enginehouse_protocol.errors import (
    EngineError,
    EngineUnavailable,
    FileUnusable,
    ProfileLocked,
    RuleRefused,
    SessionNotFound,
    TranscriptUnavailable,
    UsageError,
)


@pytest.mark.parametrize(
    "error,code",
    [
        (UsageError("say something"), 2),
        (ProfileLocked("/p", "`enginehouse run` (pid 7)"), 2),
        (SessionNotFound("s_x"), 2),
        (RuleRefused("too much"), 2),
        (EngineUnavailable("not installed"), 2),
        (EngineError("gone"), 1),
        (TranscriptUnavailable("disk full"), 1),
        (FileUnusable("/p", "no such directory"), 2),
        (OutputUnwritable("No space left on device"), 1),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [UsageError("say something")])]), 2),
    ],
)
def test_an_expected_error_is_one_line(capsys: pytest.CaptureFixture[str], error: Exception, code: int) -> None:
    assert told(error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("enginehouse: ")
    assert shown.err.count("\n") == 1


def test_an_unexpected_one_is_a_line_and_the_rest_is_in_the_log_without_secrets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINEHOUSE_PROFILE", str(tmp_path / "profile"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MY_TOKEN", "planted-value-2")
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError("planted-value-2\nby zero")
    assert told(raised.value) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    log = Path(shown.rpartition("details are in ")[2].strip())
    assert "test_failure.py" in log.read_text()
    assert "planted-value-2" not in log.read_text()
    assert "planted-value-2" not in shown


def test_control_characters_of_a_message_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told(UsageError("\x1b[2Jgone\x07"))
    assert not set(capsys.readouterr().err) & {"\x1b", "\x07"}
