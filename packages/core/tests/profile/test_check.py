"""`profile check` finds what is wrong, says it in order, and changes nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from enginehouse_core.profile.check import Finding, check_profile
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.lock import ProfileLock
from enginehouse_core.profile.rules_file import WrittenRule, add_rule


def private(path: Path, text: str = "") -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def said(folders: Folders) -> list[str]:
    base = str(folders.profile)
    return [f"{each.severity} {each.path.removeprefix(base)}: {each.message}" for each in check_profile(folders)]


def test_a_profile_that_does_not_exist_has_no_faults_and_is_not_made(folders: Folders) -> None:
    assert check_profile(folders) == []
    assert not folders.profile.exists()


def test_what_enginehouse_makes_itself_has_no_faults(folders: Folders) -> None:
    folders.create()
    folders.create_run()
    add_rule(folders.permissions, WrittenRule(effect="deny", rule="execute(rm *)"))
    with ProfileLock.acquire(folders.profile, "enginehouse run"):
        assert check_profile(folders) == []


def test_unknown_keys_are_warnings_with_the_key_that_was_meant(folders: Folders) -> None:
    folders.create()
    private(folders.settings, "modell = 'a'\nzzz = 1\n[turns]\nmax_step = 3\n")
    private(folders.permissions, "[[rule]]\neffect = 'deny'\nrule = 'execute(rm *)'\nproyect = '/srv'\n")
    private(folders.provider("local"), "engine = 'openai_compatible'\nbaseurl = 'http://localhost'\n")
    assert said(folders) == [
        "warning /settings.toml: modell is not known; did you mean model?",
        "warning /settings.toml: zzz is not known and has no effect",
        "warning /settings.toml: turns.max_step is not known; did you mean max_steps?",
        "warning /permissions.toml: rule[0].proyect is not known; did you mean project?",
        "warning /providers/local.toml: baseurl is not known; did you mean base_url?",
    ]


def test_files_that_make_no_sense_are_errors_with_their_place(folders: Folders) -> None:
    folders.create()
    private(folders.settings, "mode = 'wild'\n")
    private(folders.permissions, "[[rule]]\neffect 'deny'\n")
    first, second = said(folders)
    assert first.startswith("error /settings.toml: mode: must be one of plan, default, accept-edits, yolo")
    assert second.startswith("error /permissions.toml:2: not valid TOML: ")


def test_files_nobody_looks_at_are_warnings_when_a_name_was_probably_meant(folders: Folders) -> None:
    folders.create()
    private(folders.profile / "setting.toml")
    private(folders.profile / "boards.toml")
    private(folders.providers / "My Server.toml", "engine = 'openai_compatible'\n")
    assert said(folders) == [
        "warning /providers/My Server.toml: is not used: a provider's file is <name>.toml, <name> in a-z 0-9 - _",
        "warning /setting.toml: is not used; did you mean settings.toml?",
    ]


def test_what_an_interrupted_write_left_is_a_warning(folders: Folders) -> None:
    folders.create()
    private(folders.profile / ".settings.toml.0123456789ab.tmp", "mod")
    assert said(folders) == [
        "warning /.settings.toml.0123456789ab.tmp: is what an interrupted write left; it can be deleted"
    ]


def test_what_others_may_read_is_an_error_that_says_how_to_close_it(folders: Folders) -> None:
    folders.create()
    folders.profile.chmod(0o755)
    private(folders.transcripts / "s_1" / "transcript.jsonl").chmod(0o640)
    private(folders.data / "scratch" / "file").chmod(0o666)
    folders.create_run()
    folders.run.chmod(0o750)
    assert said(folders) == [
        "error : is open to other users (mode 755); `chmod 700` closes it",
        "error /transcripts/s_1/transcript.jsonl: is open to other users (mode 640); `chmod 600` closes it",
        f"error {folders.data}/scratch/file: is open to other users (mode 666); `chmod 600` closes it",
        f"error {folders.run}: is open to other users (mode 750); `chmod 700` closes it",
    ]


def test_many_open_files_are_counted_instead_of_listed(folders: Folders) -> None:
    folders.create()
    for number in range(50):
        private(folders.transcripts / f"{number:02}").chmod(0o644)
    *_, last = findings = check_profile(folders)
    assert len(findings) == 21
    assert last.message == "30 more files and folders are open to other users"


def test_an_engines_own_store_and_the_targets_of_links_are_not_judged(folders: Folders, tmp_path: Path) -> None:
    folders.create()
    folders.engines.mkdir(mode=0o700)
    folders.engine("codex").mkdir(mode=0o700)
    private(folders.engine("codex") / "config.json").chmod(0o644)
    dotfile = private(tmp_path / "dotfiles" / "settings.toml", "model = 'a'\n")
    dotfile.chmod(0o644)
    folders.settings.symlink_to(dotfile)
    assert check_profile(folders) == []


def test_a_profile_of_somebody_else_is_a_warning(folders: Folders) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folders.create()
    os.chown(folders.profile, 1234, 1234)
    assert said(folders)[0] == "warning : belongs to user 1234, not to you (user 0)"


def test_a_file_in_place_of_the_profile_is_said(folders: Folders) -> None:
    folders.profile.write_text("")
    assert check_profile(folders) == [
        Finding(severity="error", path=str(folders.profile), message="is not a folder; move it away")
    ]


def test_what_cannot_be_read_or_written_is_said_and_the_rest_is_still_checked(
    folders: Folders, as_owner: Callable[[str, Path], str]
) -> None:
    folders.create()
    private(folders.settings, "model = 'a'\n").chmod(0o200)
    private(folders.permissions, "rule = 1\n")
    private(folders.provider("local"))
    folders.providers.chmod(0o000)
    folders.profile.chmod(0o500)
    code = """
from enginehouse_core.profile.check import check_profile
from enginehouse_core.profile.folders import Folders
for finding in check_profile(Folders(path)):
    print(finding.path.removeprefix(str(path)), finding.message)
"""
    try:
        said = as_owner(code, folders.profile)
    finally:
        folders.profile.chmod(0o700)
        folders.providers.chmod(0o700)
    assert said.splitlines() == [
        "cannot be written, so nothing can be run with this profile",
        "/settings.toml cannot be read: permission denied",
        "/permissions.toml rule: input should be a valid list",
        "/providers cannot be read: permission denied",
    ]


def test_keys_that_are_not_encrypted_are_spoken_of(folders: Folders) -> None:
    folders.create()
    keys = folders.profile / "unencrypted_keys.toml"
    keys.write_text('[house]\naddress = ""\nkey = "planted-key-0123456789"\n')
    keys.chmod(0o600)
    (found,) = check_profile(folders)
    assert (found.severity, found.path) == ("warning", str(keys))
    assert "not encrypted" in found.message
