"""One tree of errors, drawn here.

    EnginehouseError                  what happened, to what, what to do
    ├── UsageError                    the call itself makes no sense
    ├── MalformedData                 a body, record or message that has not the shape it claims
    ├── ConnectionLost                the other process ended or stopped answering; what was asked may have happened
    ├── ProfileError
    │   ├── ProfileInvalid            a file of the profile cannot be understood
    │   ├── ProfileLocked             another process holds the profile
    │   └── ProfileUnwritable         the profile (or its disk) refuses a write
    ├── SessionError
    │   ├── SessionNotFound
    │   ├── SessionClosed
    │   ├── SessionMoved              its directory is elsewhere now; a person confirms
    │   └── MessageNotQueued
    ├── TranscriptError
    │   ├── TranscriptUnavailable     cannot be written now; an engine that hears it stops its turn
    │   └── TranscriptUnreadable      made by a newer Enginehouse, or not a transcript
    ├── DecisionError
    │   ├── RequestNotFound
    │   ├── AlreadyDecided            another view, or time, was first
    │   ├── StaleDigest               the answer is about an input that is no longer the one asked about
    │   └── RuleRefused               a permission rule that cannot be stored
    ├── WorkspaceError
    │   ├── PathRefused               the fence said no
    │   ├── FileUnusable              inside the fence, but not readable or writable as asked
    │   └── CommandRefused
    ├── LocalSocketError
    │   ├── AccessRefused             a folder, token or user that is not ours
    │   ├── ServiceRunning            another process is this service already
    │   ├── ServiceUnavailable        nothing answers and, if it was started, it did not come up
    │   └── VersionMismatch           it runs, but in another version
    └── EngineError                   becomes `turn.failed`
        ├── EngineUnavailable         not installed, not configured, unknown
        ├── EngineExited              its process or connection ended
        ├── NativeSessionLost         the engine does not know the native id any more
        └── SettingRefused            a model, effort or mode this engine cannot have

Rule: `code` is stable and travels on the wire; the message is for people and may change.
"""


class EnginehouseError(Exception):
    """Base of everything Enginehouse raises on purpose."""

    code: str = "error"


class UsageError(EnginehouseError):
    code = "usage"


class MalformedData(EnginehouseError):
    code = "malformed_data"


class ConnectionLost(EnginehouseError):
    """Raised by everything that waited for the other side. Nobody knows whether it still did what was asked."""

    code = "connection.lost"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the connection ended: {reason}")
        self.reason = reason


class ProfileError(EnginehouseError):
    code = "profile"


class ProfileInvalid(ProfileError):
    code = "profile.invalid"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class ProfileLocked(ProfileError):
    code = "profile.locked"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"the profile {path} is in use by {holder}; wait for it to end, or give this run a profile of its own "
            "with ENGINEHOUSE_PROFILE"
        )
        self.path = path
        self.holder = holder


class ProfileUnwritable(ProfileError):
    code = "profile.unwritable"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"cannot write {path}: {problem}")
        self.path = path
        self.problem = problem


class SessionError(EnginehouseError):
    code = "session"


class SessionNotFound(SessionError):
    code = "session.not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"no session {session_id!r} in this profile; `enginehouse sessions list` shows those there are"
        )
        self.session_id = session_id


class SessionClosed(SessionError):
    code = "session.closed"


class SessionMoved(SessionError):
    code = "session.moved"

    def __init__(self, session_id: str, recorded: str, here: str = "") -> None:
        """`here` is where the person is, when that is known."""
        super().__init__(
            f"session {session_id} belongs to {recorded}"
            + (f", not to {here}" if here else ", which is gone")
            + f"; to go on where the project is now run `enginehouse run --session {session_id} -C {here or 'DIR'}`"
        )
        self.session_id = session_id
        self.recorded = recorded
        self.here = here


class MessageNotQueued(SessionError):
    code = "session.message_not_queued"


class TranscriptError(EnginehouseError):
    code = "transcript"


class TranscriptUnavailable(TranscriptError):
    code = "transcript.unavailable"


class TranscriptUnreadable(TranscriptError):
    code = "transcript.unreadable"


class DecisionError(EnginehouseError):
    code = "decision"


class RequestNotFound(DecisionError):
    code = "decision.request_not_found"


class AlreadyDecided(DecisionError):
    code = "decision.already_decided"


class StaleDigest(DecisionError):
    code = "decision.stale_digest"


class RuleRefused(DecisionError):
    code = "decision.rule_refused"


class WorkspaceError(EnginehouseError):
    code = "workspace"


class PathRefused(WorkspaceError):
    """The fence refused a path. `reason` is a short clause for people and models, without the path."""

    code = "workspace.path_refused"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r} refused: {reason}")
        self.path = path
        self.reason = reason


class FileUnusable(WorkspaceError):
    """A path inside the fence that cannot be used as asked: missing, a folder, too large, changed meanwhile."""

    code = "workspace.file_unusable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r}: {reason}")
        self.path = path
        self.reason = reason


class CommandRefused(WorkspaceError):
    code = "workspace.command_refused"


class LocalSocketError(EnginehouseError):
    code = "local_socket"


class AccessRefused(LocalSocketError):
    """Something about the private folder, the token or the other side's user is not as it must be."""

    code = "local_socket.access_refused"

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        super().__init__(f"{what}: {problem}; {remedy}")
        self.what = what
        self.problem = problem
        self.remedy = remedy


class ServiceRunning(LocalSocketError):
    """`pid` is None while the other process has not yet written its own down."""

    code = "local_socket.service_running"

    def __init__(self, name: str, folder: str, pid: int | None) -> None:
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{name} in {folder} is already running as {who}; only one can run in a folder")
        self.name = name
        self.folder = folder
        self.pid = pid


class ServiceUnavailable(LocalSocketError):
    """`log_tail` is what the service wrote last, if it was started and did not come up."""

    code = "local_socket.service_unavailable"

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}; it wrote:\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


class VersionMismatch(LocalSocketError):
    """`running` and `ours` are versions for people; the message says what each speaks and what to do."""

    code = "local_socket.version_mismatch"

    def __init__(self, message: str, *, running: str, ours: str, pid: int) -> None:
        super().__init__(message)
        self.running = running
        self.ours = ours
        self.pid = pid


class EngineError(EnginehouseError):
    """The only error a turn may end with. `code` is per instance here: it names what the provider reported."""

    code = "engine"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        http_status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.http_status = http_status
        self.retry_after_s = retry_after_s


class EngineUnavailable(EngineError):
    code = "engine.unavailable"


class EngineExited(EngineError):
    code = "engine.exited"


class NativeSessionLost(EngineError):
    code = "engine.native_session_lost"


class SettingRefused(EngineError):
    code = "engine.setting_refused"
