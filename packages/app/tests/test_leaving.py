"""How the process ends when its streams are not what they should be. Real processes throughout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = "s_nobody"
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")


def ended(home: Path, shell: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A shell line in which EH is the command line of a fresh home."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "ENGINEHOUSE_PROFILE": str(home / "profile")}
    return subprocess.run(
        ["bash", "-c", shell.replace("EH", f"{sys.executable} -m enginehouse")],
        env=environment,
        cwd=cwd or home,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@needs_full
@pytest.mark.parametrize(
    "shell,code",
    [
        (f"EH sessions show {NOBODY} 2>/dev/full", 2),
        (f"EH run --session {NOBODY} hi </dev/null 2>/dev/full", 2),
        ("EH sessions list 2>/dev/full", 0),
        ("EH frob 2>/dev/full", 2),
        (f"EH sessions show {NOBODY} 2>&-", 2),
        ("EH --version 2>&- >&-", 0),
        ("EH --version >/dev/full", 1),
        ("EH --help >/dev/full", 1),
        ("EH profile path >/dev/full", 1),
        ("EH profile path >/dev/full 2>/dev/full", 1),
    ],
)
def test_the_exit_code_is_the_same_although_nobody_can_be_told(tmp_path: Path, shell: str, code: int) -> None:
    assert ended(tmp_path, shell).returncode == code


@needs_full
def test_a_full_stdout_is_said_on_stderr(tmp_path: Path) -> None:
    told = ended(tmp_path, "EH profile path >/dev/full").stderr
    assert told.startswith("enginehouse: stdout cannot be written: ")
    assert told.count("\n") == 1


def test_the_name_of_a_folder_is_no_command_to_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "pr\x1b]0;owned\x07oj"
    folder.mkdir()
    for shell in ("EH sessions list -C .", "EH permissions allow edit", "EH permissions remove read", "EH run -c hi"):
        finished = ended(tmp_path, shell, folder)
        assert "owned" in finished.stdout + finished.stderr
        assert not set(finished.stdout + finished.stderr) & {"\x1b", "\x07"}


def test_of_rules_with_one_text_the_effect_says_which_is_removed(tmp_path: Path) -> None:
    rule = "'execute(rm x)' --everywhere"
    for effect in ("allow", "deny"):
        assert ended(tmp_path, f"EH permissions {effect} {rule}").returncode == 0
    refused = ended(tmp_path, f"EH permissions remove {rule}")
    assert (refused.returncode, "allow and as deny" in refused.stderr) == (2, True)
    removed = ended(tmp_path, f"EH permissions remove {rule} --effect allow")
    assert (removed.returncode, removed.stdout) == (0, "removed: allow execute(rm x) (everywhere)\n")
    assert ended(tmp_path, f"EH permissions remove {rule} --effect allow").returncode == 2
    assert ended(tmp_path, f"EH permissions remove {rule}").returncode == 0


def test_doctor_shows_no_password_of_an_address_and_no_program_it_does_not_need(tmp_path: Path) -> None:
    for address in ("http://ada:geheim@127.0.0.1:9/v1", "ada:geheim@127.0.0.1:9/v1", "http://ada:geheim@[::1/v1"):
        said = ended(tmp_path, f"OPENAI_BASE_URL='{address}' EH doctor").stdout
        lines = [line for line in said.splitlines() if " engine " not in line]  # the engine's own words are its own
        assert "127.0.0.1:9" in said or "[::1" in said
        assert not [line for line in lines if "geheim" in line]
        assert "rg:" not in said
        assert "git:" not in said
