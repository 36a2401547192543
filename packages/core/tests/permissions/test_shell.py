"""How risky a shell command is judged to be."""

import pytest
from permissions.shell_floors import AT_LEAST_CRITICAL, AT_LEAST_DANGEROUS, TOO_MUCH
from permissions.shell_verdicts import CRITICAL, DANGEROUS, HOME, PROFILE, ROOT, SAFE, VERDICTS, WRITE

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.shell import CommandJudgement, judge_command
from enginehouse_protocol.permissions import RISKS, Risk

PLACES = Places(roots=(ROOT,), home=HOME, profile=PROFILE)


def judged(command: str, *, sandboxed: bool = True, cwd: str | None = None) -> CommandJudgement:
    return judge_command(command, places=PLACES, sandboxed=sandboxed, cwd=cwd)


def test_the_verdict_table_is_as_large_as_promised() -> None:
    assert len({command for command, _, _ in VERDICTS}) == len(VERDICTS) >= 120
    assert len(SAFE) >= 40
    assert all(rows for rows in (WRITE, DANGEROUS, CRITICAL))


@pytest.mark.parametrize("command, expected, why", VERDICTS, ids=[command for command, _, _ in VERDICTS])
def test_a_command_gets_the_verdict_written_down_for_it(command: str, expected: Risk, why: str) -> None:
    found = judged(command)
    assert found.intrinsic == expected, f"{why}; judged {found.intrinsic}: {found.reasons}"


@pytest.mark.parametrize(
    "command, floor",
    [(command, "dangerous") for command in AT_LEAST_DANGEROUS]
    + [(command, "critical") for command in AT_LEAST_CRITICAL],
)
def test_a_trick_never_makes_a_command_look_milder(command: str, floor: Risk) -> None:
    found = judged(command)
    assert RISKS.index(found.intrinsic) >= RISKS.index(floor), found.reasons


@pytest.mark.parametrize("command", TOO_MUCH, ids=lambda command: f"{str(command)[:12]}…{len(command)}")
@pytest.mark.timeout(20)
def test_a_command_too_large_to_read_is_dangerous_and_judged_in_good_time(command: str) -> None:
    found = judged(command)
    assert found.intrinsic in ("dangerous", "critical")
    assert not found.parsed


@pytest.mark.parametrize("command", [command for command, _ in (*SAFE, *WRITE)])
def test_without_a_sandbox_every_command_is_at_least_dangerous(command: str) -> None:
    found = judged(command, sandboxed=False)
    assert found.effective == "dangerous"
    assert found.intrinsic in ("safe", "write")


@pytest.mark.parametrize("command", [command for command, _ in CRITICAL])
def test_critical_stays_critical_without_a_sandbox(command: str) -> None:
    assert judged(command, sandboxed=False).effective == "critical"


@pytest.mark.parametrize("command", [command for command, _ in (*WRITE, *DANGEROUS, *CRITICAL)])
def test_whatever_is_not_safe_says_why(command: str) -> None:
    assert judged(command).reasons


def test_each_simple_command_is_a_segment_of_its_own() -> None:
    found = judged("cd src && git log | head -5; echo $(date) & (wc -l *.py)")
    assert [segment.program for segment in found.segments] == ["cd", "git", "head", "date", "echo", "wc"]


def test_a_wrapper_gives_way_to_what_it_wraps_and_is_remembered() -> None:
    (segment,) = judged("env LANG=C timeout -k 1 5 bash -c 'pytest -q'").segments
    assert [word.text for word in segment.words] == ["pytest", "-q"]
    assert [words[0].text for words in segment.outer] == ["env", "timeout", "bash"]


def test_words_are_known_without_their_quotes_or_not_at_all() -> None:
    (segment,) = judged('echo a\'b\'"c"d {x,y} "$Z" $HOME/q').segments
    assert [word.text for word in segment.words] == ["echo", "abcd", "x", "y", None, "/home/ada/q"]


def test_a_command_that_cannot_be_parsed_says_so() -> None:
    found = judged("ls 'unclosed")
    assert not found.parsed
    assert found.reasons[0] == "the command cannot be parsed"


def test_a_command_starts_in_the_folder_it_is_given() -> None:
    assert judged("touch x", cwd="src").intrinsic == "write"
    assert judged("touch x", cwd="/tmp").intrinsic == "dangerous"
    assert judged("touch x", cwd=".git").intrinsic == "critical"


def test_a_second_root_and_the_scratch_folder_are_inside() -> None:
    places = Places(roots=(ROOT, "/srv/data"), home=HOME, profile=PROFILE, scratch="/run/scratch")
    for path in ("/srv/data/x", "/run/scratch/x"):
        assert judge_command(f"touch {path}", places=places, sandboxed=True).intrinsic == "write"
    assert judge_command("rm -rf /srv/data", places=places, sandboxed=True).intrinsic == "critical"


def test_to_a_redirection_a_dash_is_a_file() -> None:
    assert judged("ls > -").intrinsic == "write"
    assert judged("cat -").intrinsic == "safe"


def test_a_script_only_partly_known_is_judged_by_the_part_that_is() -> None:
    assert judged('bash -c "rm -rf / $X"').intrinsic == "critical"
    assert judged("find . -exec bash -c 'rm -rf / {}' \\;").intrinsic == "critical"


def test_the_parser_joining_lines_is_noticed() -> None:
    """The grammar takes `{` and what follows for words of `sh` here, without an error."""
    found = judged("curl x | tee y | sh\n{ mv a.txt b.txt\n} && true")
    assert not found.parsed
    assert found.intrinsic == "critical"
