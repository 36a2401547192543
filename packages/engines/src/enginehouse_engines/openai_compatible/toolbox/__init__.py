"""The tools this engine gives a model, in the order in which a request lists them.

Rule: the order never changes within a version; it is part of every request's bytes.
"""

from enginehouse_engines.openai_compatible.toolbox.bash import Bash
from enginehouse_engines.openai_compatible.toolbox.change import EditFile, WriteFile
from enginehouse_engines.openai_compatible.toolbox.look import Grep, ListDir, ReadFile
from enginehouse_engines.openai_compatible.toolbox.tool import Tool

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (Bash(), ReadFile(), WriteFile(), EditFile(), ListDir(), Grep())}
