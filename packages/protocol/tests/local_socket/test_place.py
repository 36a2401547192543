"""A folder is believed only if it is ours alone, and its path may be as long as it likes."""

import os
from pathlib import Path

import pytest

from enginehouse_protocol.errors import AccessRefused, UsageError
from enginehouse_protocol.local_socket import Place
from enginehouse_protocol.local_socket.place import ADDRESS_MAX_BYTES

NOBODY = 65_534


def refusal(place: Place) -> str:
    with pytest.raises(AccessRefused) as refused:
        place.check()
    return str(refused.value)


def test_knowing_a_place_creates_nothing_and_checking_makes_it_private(tmp_path: Path) -> None:
    place = Place(tmp_path / "deep" / "run", "echo")
    assert not place.folder.exists()
    old = os.umask(0)
    try:
        place.check()
    finally:
        os.umask(old)
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert place.folder.parent.stat().st_mode & 0o777 == 0o700
    place.check()


def test_a_symbolic_link_is_refused_even_to_a_good_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    assert "run: is a symbolic link; replace it by a real folder" in refusal(Place(tmp_path / "run", "echo"))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    message = refusal(Place(tmp_path / "run", "echo"))
    assert f"other users may write to it (mode {mode:04o})" in message
    assert f"nothing in it is foreign, then run `chmod 700 {tmp_path / 'run'}`" in message


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o600])
def test_a_folder_of_any_other_mode_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    assert f"has mode {mode:04o}; run `chmod 700 {tmp_path / 'run'}`" in refusal(Place(tmp_path / "run", "echo"))


def test_a_set_group_id_bit_from_the_parent_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o2700)
    Place(tmp_path / "run", "echo").check()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch(mode=0o700)
    assert "is not a folder; move it away" in refusal(Place(tmp_path / "run", "echo"))


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "it must be a folder you can use" in refusal(Place(tmp_path / "file" / "run", "echo"))


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder that belongs to another user")
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", NOBODY, NOBODY)
    assert f"belongs to user {NOBODY}, not to you (user 0); run as its owner" in refusal(
        Place(tmp_path / "run", "echo")
    )


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "-a", "a b", "a" * 33, "a\n"])
def test_a_name_that_is_no_plain_word_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a service"):
        Place(tmp_path, name)


def test_a_relative_folder_stays_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(Path("run"), "echo")
    monkeypatch.chdir("/")
    assert place.folder == tmp_path / "run"


def test_a_short_path_is_its_own_address(tmp_path: Path) -> None:
    place = Place(Path("/run/x"), "echo", through_proc=False)
    assert (place.address(7, None), place.short_folder()) == ("/run/x/echo.sock", None)


def test_a_long_path_is_reached_through_the_descriptor_or_a_short_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    assert Place(folder, "echo", through_proc=True).address(7, None) == "/proc/self/fd/7/echo.sock"
    without = Place(folder, "echo", through_proc=False)
    short = without.short_folder()
    assert short is not None
    assert len(os.fsencode(short / "echo.sock")) <= ADDRESS_MAX_BYTES
    assert without.address(7, None) is None
    other = Place(tmp_path / ("y" * 120), "echo", through_proc=False).short_folder()
    assert short != other
