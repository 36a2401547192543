"""The log: private, bounded, masked, and never in the way."""

import json
import logging
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginehouse_core import log
from enginehouse_core.log import close_log, configure_log, flush_log
from enginehouse_core.masking import Masker

SECRET = "hunter2-hunter2"
MASKER = Masker({"PASSWORD": SECRET})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_log()


def lines(folder: Path) -> list[dict[str, Any]]:
    """Everything in the log, oldest first. Closes it."""
    close_log()
    names = [f"{log.FILE}.{number}" for number in range(9, 0, -1)] + [log.FILE]
    text = "".join((folder / name).read_text("utf-8") for name in names if (folder / name).exists())
    return [json.loads(line) for line in text.splitlines()]


def test_a_record_is_one_json_line_in_a_private_file(tmp_path: Path) -> None:
    logger = configure_log(tmp_path / "log", MASKER)
    assert not (tmp_path / "log").exists()
    logger.info("two\nlines of %s", "text")
    (line,) = lines(tmp_path / "log")
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "enginehouse",
        "message": "two\nlines of text",
        "process": os.getpid(),
    }
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "log" / log.FILE).stat().st_mode) == 0o600


def test_our_modules_are_heard_from_info_and_libraries_from_warning(tmp_path: Path) -> None:
    configure_log(tmp_path, MASKER)
    logging.getLogger("enginehouse_core.anything").info("ours")
    logging.getLogger("enginehouse_core.anything").debug("too quiet")
    logging.getLogger("some.library").info("too quiet")
    logging.getLogger("some.library").warning("a library's")
    assert [line["message"] for line in lines(tmp_path)] == ["ours", "a library's"]


def test_a_secret_is_in_no_message_argument_traceback_or_stack(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, MASKER)
    logger.warning("export PASSWORD=%s", SECRET)
    logger.warning("env: %r", {"PASSWORD": SECRET, "as bytes": SECRET.encode(), "hex": SECRET.encode().hex()})
    try:
        raise RuntimeError(f"could not start with {SECRET}")
    except RuntimeError:
        logger.exception("failed")
    logger.warning("stack", stack_info=True, extra={"PASSWORD": SECRET})
    written = lines(tmp_path)
    assert SECRET not in json.dumps(written)
    assert SECRET.encode().hex() not in json.dumps(written)
    assert written[0]["message"] == "export PASSWORD=«secret:PASSWORD»"
    assert "RuntimeError: could not start with «secret:PASSWORD»" in written[2]["traceback"]
    assert "test_log.py" in written[3]["traceback"]


def test_a_secret_learned_later_is_masked_from_then_on(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, Masker({}))
    assert configure_log(tmp_path, MASKER) is logger
    logger.info(SECRET)
    assert [line["message"] for line in lines(tmp_path)] == ["«secret:PASSWORD»"]


def test_a_secret_at_the_edge_of_what_is_left_out_leaves_no_half(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, MASKER)
    logger.info("%s", "x" * (log.LONGEST_TEXT // 2 - 5) + SECRET + "y" * log.LONGEST_TEXT)
    (line,) = lines(tmp_path)
    assert "hunter" not in line["message"]
    assert len(line["message"]) < log.LONGEST_TEXT + 100


def test_the_log_is_bounded_and_every_file_is_private(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, MASKER)
    for _ in range(150):
        logger.info("x" * 40_000)
    close_log()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [log.FILE, f"{log.FILE}.1", f"{log.FILE}.2"]
    assert all(file.stat().st_size <= log.SIZE_BYTES for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_log_removed_by_a_person_begins_anew(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, MASKER)
    logger.info("first")
    assert len(lines(tmp_path)) == 1
    logger = configure_log(tmp_path, MASKER)
    logger.info("second")
    flush_log()
    (tmp_path / log.FILE).unlink()
    logger.info("third")
    assert [line["message"] for line in lines(tmp_path)] == ["third"]


def test_a_disk_that_refuses_costs_records_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    in_the_way = tmp_path / "log"
    in_the_way.write_text("a file where the folder should be")
    logger = configure_log(in_the_way, MASKER)
    logger.error("lost one")
    logger.error("lost two")
    flush_log()
    in_the_way.unlink()
    logger.error("written")
    logger.error("written too")
    written = lines(in_the_way)
    assert [(line["message"], line.get("lost_before")) for line in written] == [("written", 2), ("written too", None)]
    assert capfd.readouterr() == ("", "")


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / log.FILE).symlink_to(victim)
    logger = configure_log(tmp_path, MASKER)
    logger.error("not through a link")
    flush_log()
    assert not victim.exists()


def test_a_disk_that_fills_up_loses_lines_but_tears_none_of_those_that_follow(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, MASKER)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # the nearest thing to a full disk for everybody
    try:
        for _ in range(4):
            logger.error("x" * 40_000)
        flush_log()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    logger.error("space again")
    close_log()
    *_, torn, last = (tmp_path / log.FILE).read_text("utf-8").splitlines()
    assert len(torn) < 40_000
    assert (json.loads(last)["message"], json.loads(last)["lost_before"]) == ("space again", 2)


def test_what_cannot_be_rendered_is_said_and_does_not_raise(tmp_path: Path) -> None:
    in_a_process(tmp_path, "log.info('%d things', 'no')")  # pytest's own handlers would raise here
    (line,) = lines(tmp_path)
    assert "'%d things'" in line["message"]
    assert "TypeError" in line["message"]


def test_ill_formed_text_is_written_escaped(tmp_path: Path) -> None:
    logger = configure_log(tmp_path, MASKER)
    logger.info("half a pair: \ud83d")
    (line,) = lines(tmp_path)
    assert line["message"].startswith("half a pair: ")


def test_what_waits_is_written_when_the_process_ends(tmp_path: Path) -> None:
    in_a_process(tmp_path, "[log.info('record %d', number) for number in range(500)]")
    assert [line["message"] for line in lines(tmp_path)] == [f"record {number}" for number in range(500)]


def in_a_process(folder: Path, code: str) -> None:
    prelude = (
        "import sys; from pathlib import Path; from enginehouse_core.log import configure_log;"
        "from enginehouse_core.masking import Masker;"
        "log = configure_log(Path(sys.argv[1]), Masker({}));"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code, str(folder)], check=True, timeout=60, capture_output=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
