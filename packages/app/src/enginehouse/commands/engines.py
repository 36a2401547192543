"""`enginehouse engines`: what can be used here, found by asking."""

import argparse

import msgspec

from enginehouse.engines_in_use import EngineAnswer, asked_engines
from enginehouse.output import put_listing
from enginehouse_protocol.permissions import JsonObject

_SHOWN_MODELS = 5


def list_engines(arguments: argparse.Namespace) -> int:
    found = asked_engines()
    put_listing(
        ("engine", "usable", "about", "models", "problem"),
        [
            (each.name, "no" if each.problem else "yes", _about(each), _models(each), each.problem or "")
            for each in found
        ],
        [_object(each) for each in found],
        as_json=arguments.json,
        none="there are no engines",
    )
    return 0


def _about(answer: EngineAnswer) -> str:
    known = answer.description
    return "" if known is None else f"{known.title} {known.version}".strip()


def _models(answer: EngineAnswer) -> str:
    names = [model.name for model in answer.description.models] if answer.description else []
    more = f" and {len(names) - _SHOWN_MODELS} more" if len(names) > _SHOWN_MODELS else ""
    return ", ".join(names[:_SHOWN_MODELS]) + more


def _object(answer: EngineAnswer) -> JsonObject:
    known: JsonObject = {} if answer.description is None else msgspec.to_builtins(answer.description)
    return {**known, "name": answer.name, "usable": answer.problem is None, "problem": answer.problem}
