"""Where a profile is, and that its folders are private or refused with a reason."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from enginehouse_core.profile.folders import Folders, make_private
from enginehouse_protocol.errors import ProfileInvalid, ProfileUnwritable, UsageError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "environment, profile",
    [
        ({"HOME": "/home/ada"}, "/home/ada/.enginehouse/profile"),
        ({"HOME": "/home/ada", "ENGINEHOUSE_PROFILE": ""}, "/home/ada/.enginehouse/profile"),
        ({"HOME": "/home/ada", "ENGINEHOUSE_PROFILE": "/srv/a b/🏠"}, "/srv/a b/🏠"),
        ({"HOME": "/home/ada", "ENGINEHOUSE_PROFILE": "~/mine"}, "/home/ada/mine"),
        ({"ENGINEHOUSE_PROFILE": "/srv/profile/../other/"}, "/srv/other"),
        ({"ENGINEHOUSE_PROFILE": "here"}, f"{os.getcwd()}/here"),
    ],
)
def test_the_environment_says_where_the_profile_is(environment: dict[str, str], profile: str) -> None:
    assert Folders.of(environment) == Folders(Path(profile))


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "relative"}, {"ENGINEHOUSE_PROFILE": "~/p"}])
def test_without_a_home_folder_the_error_says_what_to_set(environment: dict[str, str]) -> None:
    with pytest.raises(ProfileInvalid, match="set HOME, or set ENGINEHOUSE_PROFILE"):
        Folders.of(environment)


def test_knowing_the_paths_creates_nothing(folders: Folders, tmp_path: Path) -> None:
    names = (folders.settings, folders.permissions, folders.provider("local"), folders.engine("codex"))
    places = (folders.data, folders.cache, folders.log, folders.run)
    assert {folders.profile in (path.parent.parent, path.parent) for path in names} == {True}
    assert all(path.is_relative_to(tmp_path) for path in places)
    assert list(tmp_path.iterdir()) == []


def test_two_profiles_share_no_folder_and_a_link_to_one_is_the_same_one(folders: Folders, tmp_path: Path) -> None:
    other, link = Folders(tmp_path / "other"), Folders(tmp_path / "link")
    folders.create()
    link.profile.symlink_to(folders.profile)
    for place in ("data", "cache", "log", "run"):
        assert getattr(folders, place) != getattr(other, place)
        assert getattr(folders, place) == getattr(link, place)


def test_what_is_created_is_private_up_to_the_first_folder_that_was_there(folders: Folders, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folders.create()
        folders.create_run()
        folders.create()
        folders.create_run()
    finally:
        os.umask(old)
    made = list(tmp_path.rglob("*"))
    assert {folders.profile, folders.transcripts, folders.data, folders.cache, folders.run} <= set(made)
    assert {mode(path) for path in made} == {0o700}


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o750)
    make_private(tmp_path / "mine")
    assert mode(tmp_path / "mine") == 0o750


@pytest.mark.parametrize("deep", ["file", "file/below", "file/far/below"])
def test_a_file_in_the_way_is_named(tmp_path: Path, deep: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileInvalid, match=f"{tmp_path}/file is not a folder"):
        make_private(tmp_path / deep)


def test_a_link_to_nowhere_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ProfileInvalid, match=f"{tmp_path}/link is not a folder"):
        make_private(tmp_path / "link")


@pytest.mark.parametrize("missing", ["", "/profile", "/far/below"])
def test_a_read_only_place_is_a_clear_error(tmp_path: Path, missing: str, as_owner: Callable[[str, Path], str]) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    code = """
from enginehouse_core.profile.folders import make_private
from enginehouse_protocol.errors import ProfileUnwritable
try:
    make_private(path)
except ProfileUnwritable as error:
    print(error)
"""
    said = as_owner(code, Path(f"{tmp_path}/locked{missing}"))
    assert said == (
        f"cannot write {tmp_path}/locked{missing}: permission denied; make it writable, or choose another folder with "
        "ENGINEHOUSE_PROFILE"
    )


@pytest.mark.parametrize("name", ["--model=x", "a/b", "..", "", "A", "a" * 65, "a b", "_a", "x\n", "ä"])
def test_a_name_that_could_be_an_option_or_a_path_is_refused(folders: Folders, name: str) -> None:
    with pytest.raises(UsageError, match="is no engine name"):
        folders.engine(name)
    with pytest.raises(UsageError, match="is no provider name"):
        folders.provider(name)


def test_a_run_time_folder_that_is_a_link_is_refused(folders: Folders, tmp_path: Path) -> None:
    folders.run.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folders.run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProfileUnwritable, match="it is a link"):
        folders.create_run()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_run_time_folder_others_may_write_to_is_refused(folders: Folders, level: int) -> None:
    folders.create_run()
    place = (folders.run, *folders.run.parents)[level]
    place.chmod(0o777)
    with pytest.raises(ProfileUnwritable, match="other users may"):
        folders.create_run()


def test_a_run_time_folder_of_somebody_else_is_refused(folders: Folders) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folders.create_run()
    os.chown(folders.run, 65534, 65534)
    with pytest.raises(ProfileUnwritable, match="belongs to another user"):
        folders.create_run()


def test_a_run_time_folder_others_may_read_is_closed(folders: Folders) -> None:
    folders.create_run()
    folders.run.chmod(0o755)
    folders.create_run()
    assert mode(folders.run) == 0o700


def test_without_a_run_time_variable_a_checked_place_is_found_without_a_word(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folders.create_run()  # a warning would be an error in these tests
    assert mode(folders.run) == 0o700


def test_paths_and_lock_are_had_without_pydantic_or_tomlkit() -> None:
    code = (
        "import sys; from enginehouse_core.profile.folders import Folders; Folders.of().settings;"
        "import enginehouse_core.profile.lock;"
        "print(sorted({'pydantic', 'tomlkit', 'platformdirs', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
