"""What holds for every command, not only for those somebody thought of."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from permissions.shell_floors import AT_LEAST_CRITICAL, AT_LEAST_DANGEROUS
from permissions.shell_verdicts import HOME, PROFILE, ROOT, SAFE, VERDICTS, WRITE

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.shell import judge_command
from enginehouse_protocol.permissions import RISKS

PLACES = Places(roots=(ROOT,), home=HOME, profile=PROFILE)
COMPLETE = [c for c, _, _ in VERDICTS if judge_command(c, places=PLACES, sandboxed=True).parsed]
"""An unclosed quote would swallow what is put behind it."""
COMMANDS = st.sampled_from(COMPLETE)


def risk(command: str, places: Places = PLACES) -> int:
    return RISKS.index(judge_command(command, places=places, sandboxed=True).intrinsic)


def quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


JOINS: dict[str, Callable[[str, str], str]] = {
    "then": lambda one, two: f"{one}\n{two}",
    "if it worked": lambda one, two: f"{one}\n{{ {two}\n}} && true",
    "in a subshell": lambda one, two: f"{one}\n(\n{two}\n)",
    "in a branch": lambda one, two: f"if true; then\n{two}\nfi\n{one}",
    "in a loop": lambda one, two: f"{one}\nwhile true; do\n{two}\ndone",
    "in a function": lambda one, two: f"{one}\nfoo() {{\n{two}\n}}",
    "in a substitution": lambda one, two: f'{one}\necho "$(\n{two}\n)"',
}
WRAPS: dict[str, Callable[[str], str]] = {
    "bash": lambda command: f"bash -c {quoted(command)}",
    "sh in env": lambda command: f"env LANG=C sh -c {quoted(command)}",
    "timeout": lambda command: f"timeout 5 bash -c {quoted(command)}",
    "eval": lambda command: f"eval {quoted(command)}",
    "subshell": lambda command: f"(\n{command}\n)",
    "background": lambda command: f"{{\n{command}\n}} &",
    "nice": lambda command: f"nice -n 3 nohup bash -c {quoted(command)}",
    "find": lambda command: f"find . -exec bash -c {quoted(command)} \\;",
    "heredoc": lambda command: f"bash <<'STOP'\n{command}\nSTOP\n",
}


@settings(max_examples=200, deadline=None)
@given(one=COMMANDS, two=COMMANDS, join=st.sampled_from(sorted(JOINS)))
def test_one_more_segment_never_lowers_the_risk(one: str, two: str, join: str) -> None:
    assert risk(JOINS[join](one, two)) >= max(risk(one), risk(two))


@settings(max_examples=200, deadline=None)
@given(
    command=st.sampled_from([*(c for c, _, _ in VERDICTS), *AT_LEAST_DANGEROUS, *AT_LEAST_CRITICAL]),
    wraps=st.lists(st.sampled_from(sorted(WRAPS)), min_size=1, max_size=3, unique=True),
)
def test_wrapping_never_lowers_the_risk(command: str, wraps: list[str]) -> None:
    wrapped = command
    for name in wraps:
        wrapped = WRAPS[name](wrapped)
    assert risk(wrapped) >= risk(command)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda data: data.decode("utf-8", "surrogateescape")))
)
@example("\ud800")
@example("\xbd{\U0005353e")  # the grammar's scanner crashed on it
@example("cat <<" + "A" * 5_000 + "\nx\n")
@example("\x00")
@example("$'\\ud800'")
@example("$'\\x00rm'")
@example("{" * 3000)
@example("{a,b}" * 200)
@example("echo {1..999999999}")
def test_no_text_makes_the_reader_fail(text: str) -> None:
    judge_command(text, places=PLACES, sandboxed=False)


PARTS = [
    *(
        "ls",
        "cat a",
        "boom",
        " boom ",
        "echo",
        ";",
        "&",
        "&&",
        "|",
        "\n",
        " ",
        "\\",
        "\\\n",
        "'",
        '"',
        "$'",
        "#",
        " #",
        "`",
    ),
    *(
        "$(",
        ")",
        "(",
        "{ ",
        "; }",
        "<<E\n",
        "\nE\n",
        "<",
        "<(",
        "> x",
        "${x:-",
        "}",
        "$((",
        "))",
        "[[ ",
        " ]]",
        "[ ",
        " ]",
    ),
    *(
        "=",
        "x=",
        "if ",
        "; then ",
        "; fi",
        "case x in x) ",
        ";; esac",
        "!",
        "*",
        "\t",
        "\r",
        "\u00a0",
        "<<< ",
        "2>&1",
        "coproc ",
    ),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from([c for c, _ in (*SAFE, *WRITE)]), st.sampled_from(PARTS)), min_size=1, max_size=8
    ),
)
@example(["\\ #'x';boom"])
@example(["echo a\\\n#;boom"])
@example(["[ a && boom ]"])
@example(["[ a ", "> x", " ]"])
@example(["cat <<E\n`boom`\nE"])
@example(["ls 2>&1\\\n;boom"])
@example(["echo > x boom", "\nboom"])
def test_what_bash_runs_the_reader_saw(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    """A program that would be dangerous stands ready under the name `boom`: a harmless command never starts it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this machine: nothing to compare the reader with")
    stage = tmp_path_factory.mktemp("stage")
    programs, work = stage / "programs", stage / "work"
    programs.mkdir()
    work.mkdir()
    command = "".join(parts)
    places = Places(roots=(str(work),), home=str(stage / "home"))
    if "\x00" in command or risk(command, places) >= RISKS.index("dangerous"):
        return  # not harmless: nobody claims anything about it, and it is not run
    (programs / "boom").write_text(f"#!/bin/sh\n: > {stage}/ran\n")
    (programs / "boom").chmod(0o755)
    for name in ("cat", "ls"):
        (programs / name).symlink_to(str(shutil.which(name)))
    _run(bash, command, work, programs)
    assert not (stage / "ran").exists()
    assert risk(command, places) == RISKS.index("write") or not list(work.iterdir())


def _run(bash: str, command: str, work: Path, programs: Path) -> None:
    try:
        subprocess.run(
            [bash, "-c", command],
            cwd=work,
            env={"PATH": str(programs), "HOME": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # a loop without end starts nothing new
