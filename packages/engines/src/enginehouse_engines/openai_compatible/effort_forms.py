"""How servers want to be told how hard to think. The person says one word; each server has its own fields for it.

Rule: data and one pure function. Nothing was said: nothing is sent. What a server does with a word it does not know is
its own affair, and its words about it reach the person.
"""

from typing import Literal

from enginehouse_protocol.permissions import JsonObject

EffortForm = Literal[
    "reasoning_effort", "reasoning_object", "thinking_type", "enable_thinking", "template", "template_and_effort"
]
NOT_AT_ALL = frozenset({"none", "off"})
"""Words for: do not think."""
_PLAIN = frozenset({"low", "medium", "high"})
EFFORT_FIELDS = frozenset(
    {"reasoning_effort", "reasoning", "thinking", "enable_thinking", "thinking_budget", "chat_template_kwargs"}
)


def effort_fields(form: EffortForm, effort: str | None) -> JsonObject:
    """The fields of a request body that ask for this effort."""
    if effort is None:
        return {}
    thinks = effort not in NOT_AT_ALL
    match form:
        case "reasoning_effort":
            return {"reasoning_effort": effort if thinks else "none"}
        case "reasoning_object":
            return {"reasoning": {"effort": effort if thinks else "none"}}
        case "thinking_type":
            if not thinks:
                return {"thinking": {"type": "disabled"}}
            return {"thinking": {"type": "enabled"}} | ({} if effort == "on" else {"reasoning_effort": effort})
        case "enable_thinking":
            # The only degree it knows is a number of tokens; any other word means: think.
            budget = {"thinking_budget": int(effort)} if effort.isascii() and effort.isdecimal() else {}
            return {"enable_thinking": thinks} | budget
        case "template" | "template_and_effort":
            # Templates differ in which of the two they look at, and ignore the other.
            known: JsonObject = {"enable_thinking": thinks}
            if thinks and effort != "on":
                known["reasoning_effort"] = effort
            beside = {"reasoning_effort": effort} if form == "template_and_effort" and effort in _PLAIN else {}
            return {"chat_template_kwargs": known} | beside
