"""The tools this engine gives a model, in the order in which a request lists them.

Rule: the order never changes within a version; it is part of every request's bytes.
"""

from enginehouse_engines.openai_compatible.toolbox.bash import Bash, BashOutput, BashStop
from enginehouse_engines.openai_compatible.toolbox.change import EditFile, WriteFile
from enginehouse_engines.openai_compatible.toolbox.look import ListDir, ReadFile
from enginehouse_engines.openai_compatible.toolbox.relocate import DeleteFile, MoveFile
from enginehouse_engines.openai_compatible.toolbox.search import Glob, Grep
from enginehouse_engines.openai_compatible.toolbox.talk import AskUser, Todo
from enginehouse_engines.openai_compatible.toolbox.tool import Tool

_ALL: tuple[Tool, ...] = (
    Bash(),
    BashOutput(),
    BashStop(),
    ReadFile(),
    WriteFile(),
    EditFile(),
    DeleteFile(),
    MoveFile(),
    ListDir(),
    Glob(),
    Grep(),
    Todo(),
    AskUser(),
)
TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ALL}
