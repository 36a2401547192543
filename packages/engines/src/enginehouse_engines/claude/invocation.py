"""What the CLI is told when it starts: its arguments, its environment, its settings.

Rule: everything is said, nothing is inherited, and nothing secret stands here. What a profile says goes through the
environment *and* `--settings`, because the person's own settings file beats the environment.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from enginehouse_engines.claude.options import Options
from enginehouse_protocol.engine import Access, EngineHome
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

TOOLS_OFF: Final = (
    "CronCreate",
    "CronDelete",
    "CronList",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitWorktree",
    "ListAgents",
    "Monitor",
    "ScheduleWakeup",
    "SendMessage",
    "Workflow",
)
"""Tools that start work by themselves, speak to other sessions, or change the mode or the folder behind core's back."""

_QUIET: Final = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
_OF_ANOTHER_SESSION: Final = frozenset(
    {
        "CLAUDECODE",
        "CLAUDE_AGENT_SDK_VERSION",
        "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_MESSAGING_SOCKET",
        "CLAUDE_CODE_MESSAGING_TOKEN",
        "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_CODE_TMPDIR",
    }
)
"""What a Claude around us left in the environment: it describes that one, not ours."""


_NOTHING_SAID: Final = SessionSettings()


@dataclass(frozen=True, kw_only=True)
class Start:
    """How one process is to begin."""

    access: Access
    settings: SessionSettings = _NOTHING_SAID
    directory: str = "/"
    more_directories: tuple[str, ...] = ()
    instructions: str = ""
    resume: str = ""
    """Native id to load; empty: a fresh session."""


def config_folder(access: Access, options: Options, home: EngineHome) -> Path | None:
    """The CLI's own folder: settings, login, sessions. None: nobody knows, there is no HOME."""
    if options.isolated:
        name = access.provider.name if access.provider is not None else "default"
        return home.state / "backends" / name
    if given := access.environment.get("CLAUDE_CONFIG_DIR"):
        return Path(given)
    return Path(home_folder, ".claude") if (home_folder := access.environment.get("HOME")) else None


def base_url_of(access: Access) -> str | None:
    """Where the model is, when that was said at all."""
    given = access.provider.base_url if access.provider is not None else None
    return given or access.environment.get("ANTHROPIC_BASE_URL") or None


def settings_that_beat_ours(access: Access, options: Options, home: EngineHome) -> str:
    """A warning for the person when their own settings set another key than the one we were given. Blocks."""
    folder = config_folder(access, options, home)
    if folder is None or access.secret is None:
        return ""
    try:
        settings = msgspec.json.decode((folder / "settings.json").read_bytes(), type=JsonObject)
    except (OSError, msgspec.DecodeError):
        return ""
    variables = settings.get("env")
    names = [name for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN") if name in (variables or {})]
    if not isinstance(variables, dict) or not names:
        return ""
    return (
        f"{folder / 'settings.json'} sets {' and '.join(names)}, which Claude uses instead of the key this session was "
        "given; remove it there, or set `isolated = true` for this provider"
    )


def environment_of(access: Access, options: Options, home: EngineHome, folder: Path, key_fd: int) -> dict[str, str]:
    """`folder`: private to this process. Blocks: an isolated provider's own folder is made when it is first used."""
    environment = {name: value for name, value in access.environment.items() if name not in _OF_ANOTHER_SESSION}
    environment |= _QUIET
    environment |= {"CLAUDE_CODE_ENTRYPOINT": "sdk-py", "TMPDIR": str(folder), "CLAUDE_CODE_TMPDIR": str(folder)}
    environment |= _said_by_us(access, options)
    if options.isolated and (own := config_folder(access, options, home)) is not None:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment["CLAUDE_CONFIG_DIR"] = str(own)
    if key_fd >= 0:
        environment["CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR"] = str(key_fd)
    return environment


def _said_by_us(access: Access, options: Options) -> dict[str, str]:
    """Variables of the profile, which also go through `--settings`: the person's own settings beat the environment."""
    said: dict[str, str] = {}
    if (base_url := base_url_of(access)) is not None:
        said["ANTHROPIC_BASE_URL"] = base_url
    if options.max_retries is not None:
        said["CLAUDE_CODE_MAX_RETRIES"] = str(options.max_retries)
    return said


def arguments_of(start: Start, options: Options, folder: Path) -> list[str]:
    """Blocks: long texts go through a file, an argument has a limit and is seen by everybody."""
    settings = start.settings
    provider = start.access.provider
    arguments = ["--output-format", "stream-json", "--input-format", "stream-json", "--verbose"]
    arguments += ["--include-partial-messages", "--forward-subagent-text", "--permission-prompt-tool", "stdio"]
    arguments += ["--permission-mode", "plan" if settings.mode == "plan" else "default"]
    arguments += ["--disallowedTools", ",".join(TOOLS_OFF)]
    arguments += [f"--setting-sources={'user,project,local' if options.project_settings else 'user'}"]
    if said := _said_by_us(start.access, options):
        arguments += ["--settings", msgspec.json.encode({"env": said}).decode()]
    if model := settings.model or (provider.model if provider is not None else None):
        arguments += [f"--model={model}"]
    if settings.effort is not None:
        arguments += [f"--effort={settings.effort}"]
    if start.resume:
        arguments += [f"--resume={start.resume}"]
    for directory in start.more_directories:
        arguments += [f"--add-dir={directory}"]
    if start.instructions:
        file = folder / "instructions.md"
        file.write_text(start.instructions, encoding="utf-8", errors="replace")
        arguments += [f"--append-system-prompt-file={file}"]
    return arguments
