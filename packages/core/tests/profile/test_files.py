"""A file of the profile is whole at every moment, and changing it loses nothing."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tomlkit import TOMLDocument

from enginehouse_core.profile import files
from enginehouse_core.profile.files import read_toml, update_toml
from enginehouse_protocol.errors import ProfileInvalid, ProfileLocked, ProfileUnwritable

WRITTEN = """\
# mine, by hand
future_key = "kept"   # who knows

model = "old"
[zoo]
animals = [
  "ant", # small
]
"""


def set_model(document: TOMLDocument) -> str:
    document["model"] = "new"
    return "done"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    """What is in a folder, but for the lock files, which stay."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_change_keeps_comments_order_unknown_keys_and_line_ends(tmp_path: Path, end: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(WRITTEN.replace("\n", end).encode())
    assert update_toml(path, set_model) == "done"
    assert path.read_bytes() == WRITTEN.replace("old", "new").replace("\n", end).encode()
    assert names(tmp_path) == ["settings.toml"]


def test_a_new_file_and_its_folders_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "settings.toml"
    update_toml(path, set_model)
    assert read_toml(path) == {"model": "new"}
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o700)


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o400])
def test_an_existing_file_keeps_its_mode(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(WRITTEN)
    path.chmod(kept)
    update_toml(path, set_model)
    assert mode(path) == kept
    assert (read_toml(path) or {})["model"] == "new"


def test_root_does_not_take_a_persons_file_away(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change a file for somebody else")
    path = tmp_path / "settings.toml"
    path.write_text(WRITTEN)
    os.chown(path, 1234, 2345)
    update_toml(path, set_model)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize("relative", [True, False])
def test_through_a_link_the_target_is_changed_and_the_link_stays(tmp_path: Path, relative: bool) -> None:
    (tmp_path / "dotfiles").mkdir()
    target, link = tmp_path / "dotfiles" / "enginehouse.toml", tmp_path / "settings.toml"
    target.write_text(WRITTEN)
    link.symlink_to("dotfiles/enginehouse.toml" if relative else target)
    update_toml(link, set_model)
    assert link.is_symlink()
    assert (read_toml(target) or {})["model"] == "new"
    assert names(tmp_path / "dotfiles") == ["enginehouse.toml"]


def test_a_link_to_a_file_that_is_still_to_be_made_makes_it(tmp_path: Path) -> None:
    link = tmp_path / "settings.toml"
    link.symlink_to(tmp_path / "dotfiles" / "new.toml")
    assert read_toml(link) is None
    update_toml(link, set_model)
    assert link.is_symlink()
    assert read_toml(tmp_path / "dotfiles" / "new.toml") == {"model": "new"}


def test_a_link_in_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").symlink_to(tmp_path / "settings.toml")
    with pytest.raises(ProfileUnwritable, match="too many levels"):
        update_toml(tmp_path / "settings.toml", set_model)
    with pytest.raises(ProfileInvalid, match="cannot be read"):
        read_toml(tmp_path / "settings.toml")


@pytest.mark.parametrize(
    "content, line",
    [
        (b"model = 'a'\nmodel = oops\n", 2),
        (b"a = 1\nb = 2\na = 3\n", 3),
        (b"a = 1\n\n[table", 3),
        (b"a = 1\nname = '\xff'\n", 2),
        (b"a = 1\0\n", 1),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_its_line_and_never_overwritten(
    tmp_path: Path, content: bytes, line: int
) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    uses: list[Callable[[Path], object]] = [read_toml, lambda path: update_toml(path, set_model)]
    for use in uses:
        with pytest.raises(ProfileInvalid) as caught:
            use(path)
        assert caught.value.path == f"{path}:{line}"
        assert caught.value.problem.endswith("; correct it, or move the file away to begin anew")
    assert path.read_bytes() == content
    assert names(tmp_path) == ["settings.toml"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b"\xef\xbb\xbfmodel = 'a'\n")
    assert read_toml(path) == {"model": "a"}


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, as_owner: Callable[[str, Path], str]) -> None:
    (tmp_path / "settings.toml").touch(mode=0o200)
    code = """
from enginehouse_core.profile.files import read_toml
from enginehouse_protocol.errors import ProfileInvalid
try:
    read_toml(path / "settings.toml")
except ProfileInvalid as error:
    print(error.problem)
"""
    assert as_owner(code, tmp_path) == "cannot be read: permission denied"


def test_a_change_that_changes_nothing_does_not_touch_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(WRITTEN)
    before = path.stat()
    update_toml(path, str)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_change_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(WRITTEN)

    def change(document: TOMLDocument) -> None:
        document["model"] = "half"
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        update_toml(path, change)
    assert path.read_text() == WRITTEN
    assert names(tmp_path) == ["settings.toml"]


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, as_owner: Callable[[str, Path], str]) -> None:
    (tmp_path / "settings.toml").write_text(WRITTEN)
    tmp_path.chmod(0o500)
    code = """
from enginehouse_core.profile.files import read_toml, update_toml
from enginehouse_protocol.errors import ProfileUnwritable
print(read_toml(path / "settings.toml")["model"])
try:
    update_toml(path / "settings.toml", lambda document: document.clear())
except ProfileUnwritable as error:
    print(error)
"""
    try:
        said = as_owner(code, tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert said.splitlines()[0] == "old"
    assert said.splitlines()[1].startswith(f"cannot write {tmp_path}: permission denied; make it writable")


def test_a_disk_that_is_full_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(WRITTEN)
    code = (
        "import resource, sys; from pathlib import Path; from enginehouse_core.profile.files import update_toml\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"  # the nearest thing to a full disk for everybody
        "update_toml(Path(sys.argv[1]), lambda document: document.update({'big': 'x' * 100}))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ProfileUnwritable: cannot write" in done.stderr
    assert "its old content is unchanged" in done.stderr
    assert path.read_text() == WRITTEN
    assert names(tmp_path) == ["settings.toml"]


def test_a_lock_file_left_by_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / ".settings.toml.lock").touch()
    update_toml(tmp_path / "settings.toml", set_model)
    assert names(tmp_path) == ["settings.toml"]


def test_a_process_that_never_ends_its_change_is_named_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.toml"
    monkeypatch.setattr(files, "WAIT_S", 0.05)

    def change(document: TOMLDocument) -> None:
        with pytest.raises(ProfileLocked, match=r"settings\.toml\.lock"):
            update_toml(path, set_model)
        document["model"] = "first"

    update_toml(path, change)
    assert read_toml(path) == {"model": "first"}


COUNT = """
import sys
from pathlib import Path
from enginehouse_core.profile.files import update_toml
path, who, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def change(document):
    document["total"] = document["total"] + 1
    document.setdefault(who, 0)
    document[who] = document[who] + 1
for _ in range(times):
    update_toml(path, change)
"""


@pytest.mark.parametrize("through_link, times", [(False, 40), (True, 10)])
def test_eight_processes_lose_no_update_and_a_reader_never_sees_a_part(
    tmp_path: Path, through_link: bool, times: int
) -> None:
    processes = 8
    real = tmp_path / "real.toml"
    padding = "# " + "x" * 1_500 + "\n"  # large enough for a torn write to be seen
    real.write_text(f"total = 0\n{padding}")
    real.chmod(0o600)
    path = real
    if through_link:
        path = tmp_path / "settings.toml"
        path.symlink_to(real)
    seen: list[int] = []
    broken: list[Exception] = []
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(0.001):
            try:
                found = read_toml(path)
                assert found is not None
                assert padding in path.read_text()
                seen.append(found["total"])
            except Exception as error:  # noqa: BLE001 - whatever it is, the test is to show it
                broken.append(error)

    reader = threading.Thread(target=poll)
    reader.start()
    writers = [
        subprocess.Popen([sys.executable, "-c", COUNT, str(path), f"writer_{number}", str(times)])
        for number in range(processes)
    ]
    try:
        assert [writer.wait(timeout=90) for writer in writers] == [0] * processes
    finally:
        for writer in writers:
            writer.kill()
            writer.wait(timeout=10)
        ended.set()
        reader.join(timeout=10)
    assert broken == []
    assert seen == sorted(seen)
    assert len(set(seen)) > 10
    counted = read_toml(path) or {}
    assert counted == {"total": processes * times, **{f"writer_{number}": times for number in range(processes)}}
    assert mode(real) == 0o600
    assert path.is_symlink() == through_link
    assert names(tmp_path) == (["real.toml", "settings.toml"] if through_link else ["real.toml"])
