"""Searching file contents: what is found, what is skipped, and that it ends."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psutil
import pytest

from enginehouse_core.workspace import search as searching
from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable, PathRefused, UsageError
from enginehouse_protocol.workspace import Root, SearchHit, SearchResult

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Below folders that a careless ignore rule would match."""
    folder = tmp_path / "node_modules" / "build" / ".git" / "project"
    folder.mkdir(parents=True)
    (tmp_path / "node_modules" / ".gitignore").write_text("*\n")
    return folder


@pytest.fixture
async def files(root: Path, tmp_path: Path) -> AsyncIterator[WorkspaceFiles]:
    scratch = str(tmp_path / "scratch")
    async with WorkspaceFiles((Root(path=str(root)),), scratch=scratch, search_deadline_s=1.5) as opened:
        with anyio.fail_after(30):
            yield opened


def plant(root: Path, tree: dict[str, str | bytes]) -> None:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


async def paths(files: WorkspaceFiles, pattern: str = "needle", path: str = ".", glob: str | None = None) -> list[str]:
    return [hit.path for hit in (await files.search(pattern, path=path, glob=glob, limit=100)).hits]


async def test_hits_carry_path_number_and_line_in_order(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"b.txt": "x\r\nneedle one\r\n\r\nneedle two", "a/c.txt": "a needle\n", "a.txt": "needle\n"})
    found = await files.search(r"needle( \w+)?$", limit=10)
    assert found == SearchResult(
        hits=(
            SearchHit(path="a/c.txt", line_number=1, line="a needle"),
            SearchHit(path="a.txt", line_number=1, line="needle"),
            SearchHit(path="b.txt", line_number=2, line="needle one"),
            SearchHit(path="b.txt", line_number=4, line="needle two"),
        ),
        truncated=False,
    )


async def test_the_limit_is_truncation_only_when_there_is_more(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"a": "needle\n" * 3})
    assert not (await files.search("needle", limit=3)).truncated
    found = await files.search("needle", limit=2)
    assert [hit.line_number for hit in found.hits] == [1, 2]
    assert found.truncated


async def test_a_final_newline_is_not_one_more_line(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"a": "one\n\n", "empty": ""})
    assert [hit.line_number for hit in (await files.search("^$", limit=9)).hits] == [2]


async def test_ignore_files_are_honoured_at_every_level(files: WorkspaceFiles, root: Path) -> None:
    plant(
        root,
        {
            ".gitignore": "*.log\n/dist/\nsecret?.txt\n!keep.log\n",
            "sub/.gitignore": "local\n!deep.log\n",
            ".ignore": "vendored/\n",
            "a.log": "needle",
            "keep.log": "needle",
            "dist/x": "needle",
            "sub/dist/x": "needle",
            "secret1.txt": "needle",
            "sub/local": "needle",
            "sub/deep.log": "needle",
            "local": "needle",
            "vendored/x": "needle",
            ".hidden/x": "needle",
            ".git/x": "needle",
            "sub/.git/x": "needle",
            "worktree/.git": "needle",
        },
    )
    assert await paths(files) == [".hidden/x", "keep.log", "local", "sub/deep.log", "sub/dist/x"]
    assert await paths(files, path="sub") == ["sub/deep.log", "sub/dist/x"]


async def test_what_is_ignored_agrees_with_git(files: WorkspaceFiles, root: Path) -> None:
    names = [
        f"{folder}{name}" for folder in ("", "a/", "a/b/", "doc/") for name in ("x.o", "x.c", "TODO", "f#1", "b/y")
    ]
    plant(root, dict.fromkeys(names, "needle\n"))
    plant(root, {".gitignore": "*.o\n!a/b/x.o\na/*.c\n**/b/y\n\\#x\nf#1\n# c\n/TODO\n", "doc/.gitignore": "*\n!x.c\n"})
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(root)]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run([*git, "init", "-q"], check=True, env=environment)
    listed = subprocess.run(
        [*git, "ls-files", "-co", "--exclude-standard"], check=True, env=environment, capture_output=True, text=True
    )
    assert sorted(await paths(files)) == sorted(
        name for name in listed.stdout.split() if not name.endswith(".gitignore")
    )


async def test_an_ignored_folder_named_explicitly_is_searched(files: WorkspaceFiles, root: Path) -> None:
    plant(
        root,
        {".gitignore": "lib/\n*.log\n", "lib/a/b.py": "needle", "lib/a/.gitignore": "c.py", "lib/a/c.py": "needle"},
    )
    assert await paths(files) == []
    assert await paths(files, path="lib") == ["lib/a/b.py"]
    assert await paths(files, path="lib/a/") == ["lib/a/b.py"]


async def test_one_file_can_be_searched_and_a_missing_one_is_said(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"a/b": "no\nneedle\n", "a/c": "needle"})
    assert (await files.search("needle", path="a/b", limit=5)).hits == (
        SearchHit(path="a/b", line_number=2, line="needle"),
    )
    for path in ("a/none", "none/none", "a/b/c"):
        with pytest.raises(FileUnusable):
            await files.search("needle", path=path, limit=5)
    with pytest.raises(PathRefused, match="outside"):
        await files.search("needle", path="/etc", limit=5)


@pytest.mark.parametrize(
    "glob, expected",
    [
        ("*.py", ["a.py", "src/b.py"]),
        ("src/**", ["src/b.py", "src/c.ts", "src/d.tsx"]),
        ("src/*.ts", ["src/c.ts"]),
        ("*.{ts,tsx}", ["src/c.ts", "src/d.tsx"]),
        ("!*.py", ["e.md", "src/c.ts", "src/d.tsx"]),
        ("nothing", []),
    ],
)
async def test_a_glob_narrows_the_search(files: WorkspaceFiles, root: Path, glob: str, expected: list[str]) -> None:
    plant(root, dict.fromkeys(["a.py", "src/b.py", "src/c.ts", "src/d.tsx", "e.md"], "needle"))
    assert await paths(files, glob=glob) == expected


async def test_binary_and_huge_files_and_links_are_skipped(files: WorkspaceFiles, root: Path, tmp_path: Path) -> None:
    plant(
        root,
        {
            "binary": b"needle\0",
            "huge": b"needle\n" * (9 * 1024 * 1024 // 7),
            "latin": b"\xe9 needle\n",
            "utf16": "é needle\n".encode("utf-16"),
            "bom": b"\xef\xbb\xbfneedle\n",
        },
    )
    plant(tmp_path / "out", {"x": "needle"})
    (root / "link").symlink_to(tmp_path / "out")
    (root / "filelink").symlink_to(tmp_path / "out" / "x")
    (root / "up").symlink_to("..")
    assert await paths(files) == ["bom", "latin", "utf16"]
    assert await paths(files, "^needle$") == ["bom"]


async def test_a_long_line_is_shown_around_its_match(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"min.js": "x" * 5000 + "needle" + "y" * 3_000_000, "late.js": "x" * 30_000 + "needle"})
    (hit,) = (await files.search("needle", limit=5)).hits
    assert hit.path == "min.js"
    assert "needle" in hit.line
    assert len(hit.line) < 600
    assert (hit.line[0], hit.line[-1]) == ("…", "…")


async def test_names_with_spaces_newlines_and_foreign_bytes_do_not_end_the_search(
    files: WorkspaceFiles, root: Path
) -> None:
    plant(root, {"a b/ü.txt": "needle", "c": "needle"})
    for name in (b"new\nline", b"bad\xff"):
        (root / os.fsdecode(name)).write_text("needle")
    assert sorted(await paths(files)) == ["a b/ü.txt", "bad\ufffd", "c", "new\nline"]


@pytest.mark.parametrize(
    "pattern", ["(", "a{2", "*", "(?P<x>a)(?P<x>b)", "a(?i)b", "x" * 20_000, "(" * 5000 + ")" * 5000]
)
async def test_what_is_no_regular_expression_is_a_usage_error(files: WorkspaceFiles, root: Path, pattern: str) -> None:
    plant(root, {"a": "x"})
    if pattern == "a{2":
        assert (await files.search(pattern, limit=1)).hits == ()  # legal: a literal brace
        return
    with pytest.raises(UsageError):
        await files.search(pattern, limit=1)


async def test_a_limit_that_makes_no_sense_and_a_bad_glob_are_usage_errors(files: WorkspaceFiles) -> None:
    for limit in (0, -1, searching.HITS + 1):
        with pytest.raises(UsageError):
            await files.search("a", limit=limit)
    for glob in ("{a,b}" * 20, "[z-a]"):
        with pytest.raises(UsageError, match="file pattern"):
            await files.search("a", glob=glob, limit=1)


async def test_a_pattern_that_backtracks_for_ever_ends_and_the_hub_stays_awake(
    files: WorkspaceFiles, root: Path
) -> None:
    plant(root, {"src/trap.txt": "a" * 60 + "b\n"})
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.02)
            beats += 1

    started = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(heart)
        with pytest.raises(FileUnusable, match=r"1\.5 s, then in 'src/trap\.txt'"):
            await files.search(r"^(a+)+$", limit=5)
        group.cancel_scope.cancel()
    assert anyio.current_time() - started < 1.5 + searching.GRACE_S
    assert beats > 20
    assert searchers() == []


async def test_what_was_found_before_time_was_up_is_kept(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"a": "aaaa\n", "b": "a" * 60 + "b\n"})
    found = await files.search(r"^(a+)+$", limit=5)
    assert [hit.path for hit in found.hits] == ["a"]
    assert found.truncated


async def test_a_cancelled_search_leaves_no_process(root: Path, tmp_path: Path) -> None:
    plant(root, {"trap": "a" * 60 + "b\n"})
    scratch = str(tmp_path / "scratch")
    async with WorkspaceFiles((Root(path=str(root)),), scratch=scratch, search_deadline_s=60) as files:
        started = anyio.current_time()
        with anyio.move_on_after(0.7) as scope:
            await files.search(r"^(a+)+$", limit=5)
        assert scope.cancelled_caught
        assert anyio.current_time() - started < 2
    assert searchers() == []


async def test_a_search_that_cannot_answer_its_own_timer_is_killed(root: Path) -> None:
    """Stopped from outside, as by a disk that does not answer."""
    plant(root, {"trap": "a" * 60 + "b\n"})
    descriptor = os.open(root, os.O_RDONLY)
    request = searching.Request(parts=(), pattern="^(a+)+$", glob=None, limit=5, deadline_s=0.5, off_limits=())

    async def stop() -> None:
        while True:
            await anyio.sleep(0.01)
            if found := searchers():
                return os.kill(found[0], signal.SIGSTOP)

    outcome = None
    try:
        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                group.start_soon(stop)
                outcome = await searching.search(descriptor, request)
    finally:
        os.close(descriptor)
    assert outcome == searching.Outcome(hits=(), ended="deadline")
    assert searchers() == []


async def test_code_in_the_project_does_not_run_in_the_search(
    files: WorkspaceFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is a Python process: a project's `json.py` or `sitecustomize.py` must mean nothing to it."""
    plant(root, dict.fromkeys(("json.py", "sitecustomize.py"), "open('/proc/self/cwd/ran', 'w')\nraise SystemExit"))
    plant(root, {"a": "needle"})
    monkeypatch.chdir(root)
    assert await paths(files) == ["a"]
    assert not (root / "ran").exists()


def searchers() -> list[int]:
    found: list[int] = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "enginehouse_core.workspace.searcher" in process.cmdline():
                found.append(process.pid)
        except psutil.NoSuchProcess:
            pass
    return found


# --- by name ----------------------------------------------------------------------------------------------------------


async def found(files: WorkspaceFiles, glob: str, path: str = ".", limit: int = 100) -> tuple[str, ...]:
    return (await files.find(glob, path=path, limit=limit)).paths


async def test_files_are_found_by_name_as_a_search_would_walk(files: WorkspaceFiles, root: Path) -> None:
    plant(
        root,
        {
            ".gitignore": "built/\n*.log\n",
            "a.py": "",
            "src/b.py": b"\0binary",
            "src/deep/c.py": "x",
            "src/deep/c.ts": "",
            "built/d.py": "",
            "e.log": "",
            ".git/f.py": "",
            ".hidden/g.py": "",
        },
    )
    os.symlink(root / "a.py", root / "link.py")
    assert await found(files, "*.py") == (".hidden/g.py", "a.py", "src/b.py", "src/deep/c.py")
    assert await found(files, "src/**/*.{py,ts}") == ("src/b.py", "src/deep/c.py", "src/deep/c.ts")
    assert await found(files, "/*.py") == ("a.py",)
    assert await found(files, "*.py", path="src") == ("src/b.py", "src/deep/c.py")
    assert await found(files, "*.py", path="built") == ("built/d.py",)
    assert await found(files, "*.py", path="a.py") == ("a.py",)
    assert await found(files, "*.rs") == ()


async def test_finding_stops_at_its_limit_and_says_so(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {f"{n:03}.txt": "" for n in range(20)})
    some = await files.find("*.txt", limit=5)
    assert (some.paths, some.truncated) == (tuple(f"{n:03}.txt" for n in range(5)), True)
    assert (await files.find("*.txt", limit=20)).truncated is False


async def test_finding_looks_only_where_a_search_may(files: WorkspaceFiles, root: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path, root / "out")
    for path in ("..", "/etc", "out", "out/x"):
        with pytest.raises(PathRefused):
            await files.find("*", path=path, limit=5)
    with pytest.raises(FileUnusable):
        await files.find("*", path="missing", limit=5)
    for glob in ("", "x" * 10_001, "{a,b}" * 11):
        with pytest.raises(UsageError):
            await files.find(glob, limit=5)
    assert await found(files, "/etc/*") == await found(files, "../*") == ()


async def test_a_large_file_is_searched_when_it_is_named(files: WorkspaceFiles, root: Path) -> None:
    plant(root, {"large.txt": b"x" * 9_000_000 + b"\nneedle\n"})
    assert await paths(files) == []
    assert await paths(files, path="large.txt") == ["large.txt"]


# --- a root that is one folder of a repository ------------------------------------------------------------------------


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[tuple[WorkspaceFiles, Path, Path]]:
    """The files of `repository/packages/app`, with its folder and that of the repository."""
    repository = tmp_path / "repository"
    app = repository / "packages" / "app"
    plant(repository, {".git/HEAD": "ref: refs/heads/main\n", "packages/app/a.txt": "needle", "other.txt": "needle"})
    plant(app, {"dist/b.txt": "needle", "c.log": "needle", "keep.log": "needle", "src/d.txt": "needle"})
    async with WorkspaceFiles((Root(path=str(app)),), scratch=str(tmp_path / "scratch")) as opened:
        with anyio.fail_after(30):
            yield opened, repository, app


Inner = tuple[WorkspaceFiles, Path, Path]


async def test_ignore_files_of_the_repository_above_hold(inner: Inner) -> None:
    files, repository, app = inner
    plant(repository, {".gitignore": "dist/\n*.log\n", "packages/.gitignore": "!keep.log\n/app/src/\n"})
    assert await paths(files) == ["a.txt", "keep.log"]
    plant(app, {".gitignore": "!dist/\n"})
    assert await paths(files) == ["a.txt", "dist/b.txt", "keep.log"]
    assert await found(files, "*.txt", path="src") == ("src/d.txt",)


async def test_what_the_repository_excludes_privately_holds_too(inner: Inner) -> None:
    files, repository, _ = inner
    plant(repository, {".git/info/exclude": "# mine\n/packages/app/dist/\n[\n"})
    assert "dist/b.txt" not in await paths(files)
    assert "a.txt" in await paths(files)


@pytest.mark.parametrize("rule", ["app/", "/packages/", "*", "packages/*"])
async def test_in_a_folder_the_repository_ignores_nothing_from_above_holds(inner: Inner, rule: str) -> None:
    files, repository, _ = inner
    plant(repository, {".gitignore": f"{rule}\n*.log\n"})
    assert await paths(files) == ["a.txt", "c.log", "dist/b.txt", "keep.log", "src/d.txt"]


async def test_above_the_repository_nothing_counts(inner: Inner, tmp_path: Path) -> None:
    files, repository, app = inner
    plant(tmp_path, {".gitignore": "*.txt\n"})
    assert "a.txt" in await paths(files)
    plant(app, {".git": "gitdir: ../../.git/worktrees/app\n"})
    plant(repository, {".gitignore": "*.txt\n"})
    assert "a.txt" in await paths(files)
    (repository / ".git" / "HEAD").unlink()
    (app / ".git").unlink()
    assert "a.txt" in await paths(files)


async def test_an_ignore_file_above_that_is_none_is_left_alone(inner: Inner, tmp_path: Path) -> None:
    files, repository, _ = inner
    (tmp_path / "rules").write_text("*.txt\n")
    (repository / ".gitignore").symlink_to(tmp_path / "rules")
    os.mkfifo(repository / "packages" / ".gitignore")
    assert "a.txt" in await paths(files)
