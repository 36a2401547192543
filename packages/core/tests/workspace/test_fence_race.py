"""A process that swaps a folder and a link to the outside, thousands of times a second, while the fence is used.

A naive implementation of the same check runs against the same swapper: it proves that the race is there to be lost.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable, PathRefused
from enginehouse_protocol.workspace import Root

pytestmark = pytest.mark.anyio

SWAPPING_S = 3.0
CONTROL_S = 6.0
"""The control stops at its first escape; this is how long it may try."""

SWAPPER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
here, there = (os.fsencode(path) for path in sys.argv[1:3])
end = time.monotonic() + float(sys.argv[3])
print("swapping", flush=True)
swaps = 0
while time.monotonic() < end and os.getppid() != 1:
    for _ in range(51):
        if libc.renameat2(-100, here, -100, there, 2):
            raise OSError(ctypes.get_errno(), "renameat2")
        swaps += 1
print(swaps, flush=True)
"""


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        pytest.skip("this C library has no renameat2: folders and links cannot be swapped atomically here")
    for folder in ("ws/sub", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ws" / "sub" / "secret").write_bytes(b"inside")
    (tmp_path / "out" / "secret").write_bytes(b"outside")
    (tmp_path / "ws" / "swap").symlink_to(tmp_path / "out")
    return tmp_path


@contextmanager
def swapping(ground: Path, seconds: float) -> Generator[subprocess.Popen[str]]:
    """`ws/sub` is the folder and the link by turns; so is `ws/swap`."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(ground / "ws" / "sub"), str(ground / "ws" / "swap"), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "swapping\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def escaped(ground: Path) -> list[str]:
    return [name for name in os.listdir(ground / "out") if name != "secret"]


def write_naively(root: Path, path: str, data: bytes) -> bool:
    """What a careful author writes first: resolve, compare, then use the path."""
    real = os.path.realpath(root / path)
    if os.path.commonpath([real, os.path.realpath(root)]) != os.path.realpath(root):
        return False
    with open(root / path, "wb") as file:
        file.write(data)
    return True


def control_escapes(ground: Path) -> int:
    with swapping(ground, CONTROL_S):
        end = time.monotonic() + CONTROL_S
        number = 0
        while time.monotonic() < end and not escaped(ground):
            with suppress(OSError):  # some tries see neither a folder nor a link
                write_naively(ground / "ws", f"sub/naive{number % 50}", b"x")
            number += 1
    return len(escaped(ground))


@pytest.mark.timeout(60)
async def test_no_write_and_no_read_follows_a_link_that_is_swapped_in(ground: Path) -> None:
    wrote = refused = read = tries = 0
    with anyio.fail_after(40):
        async with WorkspaceFiles((Root(path=str(ground / "ws")),), scratch=str(ground / "scratch")) as files:
            with swapping(ground, SWAPPING_S) as swapper:
                # Blocking calls in one worker: an event loop round for each try would halve their number. Reads first:
                # the syncs of writes slow the swapper down.
                writing_at = time.monotonic() + SWAPPING_S / 2

                def attack() -> None:
                    nonlocal wrote, refused, read, tries
                    fence = files._fence  # pyright: ignore[reportPrivateUsage]
                    while swapper.poll() is None:
                        tries += 1
                        try:
                            if time.monotonic() < writing_at:
                                place = fence.locate("sub/secret")
                                content = files._read(place, 100)  # pyright: ignore[reportPrivateUsage]
                                assert content.data == b"inside"
                                read += 1
                            else:
                                place = fence.locate(f"sub/new/f{tries % 50}", writing=True)
                                files._write(place, b"x", None)  # pyright: ignore[reportPrivateUsage]
                                wrote += 1
                        except (PathRefused, FileUnusable):
                            refused += 1

                await anyio.to_thread.run_sync(attack)
                assert swapper.stdout is not None
                swaps = int(swapper.stdout.readline())
    print(f"{swaps} swaps; fence: {tries} tries, {read} reads, {wrote} writes, {refused} refused")
    assert escaped(ground) == []
    assert (ground / "out" / "secret").read_bytes() == b"outside"
    assert tries > 500
    assert min(read, wrote, refused) > 0, (read, wrote, refused)
    inside = ground / "ws" / ("swap" if (ground / "ws" / "sub").is_symlink() else "sub")
    assert not [name for name in os.listdir(inside / "new") if name.endswith("tmp")]

    escapes = await anyio.to_thread.run_sync(control_escapes, ground)
    if not escapes:
        pytest.skip(f"the race could not be provoked in {CONTROL_S} s even naively: this run proved nothing")


async def test_a_search_does_not_follow_a_link_that_is_swapped_in(ground: Path) -> None:
    (ground / "ws" / "sub" / "deep").mkdir()
    with anyio.fail_after(30):
        async with WorkspaceFiles((Root(path=str(ground / "ws")),), scratch=str(ground / "scratch")) as files:
            with swapping(ground, SWAPPING_S):
                for _ in range(10):
                    try:
                        found = await files.search("inside|outside", limit=10)
                        assert {hit.line for hit in found.hits} <= {"inside"}
                        found = await files.search("inside|outside", path="sub/secret", limit=10)
                        assert {hit.line for hit in found.hits} <= {"inside"}
                    except (PathRefused, FileUnusable):
                        pass
