"""The contracts others build on have the shape their modules promise."""

import inspect
import pickle
import typing
from typing import Any

import msgspec
import pluggy
import pytest

from enginehouse_protocol.engine import (
    Access,
    Engine,
    EngineSession,
    Fresh,
    History,
    Resume,
    Secret,
    SessionPort,
    Start,
)
from enginehouse_protocol.events import MessageUser, ToolUse
from enginehouse_protocol.hookspecs import (
    PROJECT_NAME,
    AddContext,
    BlockMessage,
    HookSpecs,
    SessionFacts,
    Tighten,
    hookimpl,
)
from enginehouse_protocol.hub import HubApi, Launch, View
from enginehouse_protocol.permissions import Risk, Verdict, riskier, strictest
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import MemoryHistory, RecordingPort, ScriptedEngine, ScriptedSession, TempWorkspace
from enginehouse_protocol.workspace import Workspace


def manager() -> pluggy.PluginManager:
    made = pluggy.PluginManager(PROJECT_NAME)
    made.add_hookspecs(HookSpecs)
    return made


class GoodPlugin:
    @hookimpl
    async def session_before_send(
        self, session: SessionFacts, message: MessageUser
    ) -> AddContext | BlockMessage | None:
        return None

    @hookimpl
    async def tool_gate(self, use: ToolUse, risk: Risk) -> Tighten | None:
        return Tighten(verdict="ask", reason="a gate may take fewer arguments")


def test_a_plugin_that_follows_the_hook_specifications_is_accepted() -> None:
    plugins = manager()
    plugins.register(GoodPlugin())
    plugins.check_pending()
    assert len(plugins.hook.session_before_send.get_hookimpls()) == 1
    assert len(plugins.hook.tool_gate.get_hookimpls()) == 1


def test_a_plugin_with_an_argument_or_a_hook_nobody_knows_is_refused() -> None:
    class WrongArgument:
        @hookimpl
        async def tool_gate(self, colour: str) -> None: ...

    class WrongHook:
        @hookimpl
        async def tool_gait(self, use: ToolUse) -> None: ...

    with pytest.raises(pluggy.PluginValidationError):
        manager().register(WrongArgument())
    plugins = manager()
    plugins.register(WrongHook())
    with pytest.raises(pluggy.PluginValidationError):
        plugins.check_pending()


def test_every_hook_is_asynchronous_and_says_what_it_is_for() -> None:
    for name, hook in public(HookSpecs).items():
        assert inspect.iscoroutinefunction(hook), name
        assert hook.__doc__, name


def public(contract: type) -> dict[str, Any]:
    return {name: value for name, value in vars(contract).items() if not name.startswith("_") and callable(value)}


def signature(name: str) -> tuple[list[Any], Any]:
    """Types of the parameters of a method of the hub, and of its result."""
    method = getattr(HubApi, name)
    hints = typing.get_type_hints(method)
    taken = [hints[parameter] for parameter in inspect.signature(method).parameters if parameter != "self"]
    return taken, hints["return"]


@pytest.mark.parametrize("name", public(HubApi))
def test_a_method_of_the_hub_is_noun_verb_and_takes_and_gives_one_struct(name: str) -> None:
    taken, given = signature(name)
    assert name.count("_") == 1
    assert [issubclass(kind, msgspec.Struct) for kind in taken] == [True]
    if name == "sessions_attach":
        assert typing.get_args(given)[0] is View
    else:
        assert inspect.iscoroutinefunction(getattr(HubApi, name))
        assert issubclass(given, msgspec.Struct)


@pytest.mark.parametrize("name", public(HubApi))
def test_what_the_hub_takes_and_gives_can_travel(name: str) -> None:
    taken, given = signature(name)
    for kind in (*taken, *(() if name == "sessions_attach" else (given,))):
        assert msgspec.json.schema(kind)["$ref"].endswith(kind.__name__)


def test_doubles_and_contracts_have_the_same_methods_and_parameters() -> None:
    pairs = [
        (History, MemoryHistory),
        (SessionPort, RecordingPort),
        (Workspace, TempWorkspace),
        (Engine, ScriptedEngine),
        (EngineSession, ScriptedSession),
    ]
    for contract, double in pairs:
        for name, method in public(contract).items():
            wanted = [parameter.name for parameter in inspect.signature(method).parameters.values()]
            given = [parameter.name for parameter in inspect.signature(getattr(double, name)).parameters.values()]
            assert given == wanted, f"{double.__name__}.{name}"


def test_a_secret_is_seen_by_nobody_who_does_not_ask() -> None:
    secret = Secret("KEY", "sk-very-secret")
    access = Access(secret=secret)
    assert "very-secret" not in f"{secret!r} {secret} {access!r} {[secret]}"
    assert secret.reveal() == "sk-very-secret"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)


def test_a_launch_shows_names_and_no_values() -> None:
    launch = Launch(environment={"PATH": "/secret/bin"}, secrets={"KEY": "sk-very-secret"}, key="KEY")
    assert "KEY" in repr(launch)
    assert "secret/bin" not in repr(launch)
    assert "very-secret" not in repr(launch)


@pytest.mark.parametrize("start", [Fresh(), Fresh(recap="they spoke"), Resume(native_id="n")])
def test_a_start_is_told_apart_by_its_type(start: Start) -> None:
    assert msgspec.json.decode(msgspec.json.encode(start), type=Start) == start


def test_settings_are_laid_over_each_other_and_none_says_nothing() -> None:
    base = SessionSettings(model="a", effort="low", mode="plan")
    assert base.updated(SessionSettings()) == base
    assert base.updated(SessionSettings(model="b", mode="yolo")) == SessionSettings(
        model="b", effort="low", mode="yolo"
    )


@pytest.mark.parametrize(
    "first,second,expected",
    [("allow", "ask", "ask"), ("deny", "allow", "deny"), ("ask", "deny", "deny"), ("allow", "allow", "allow")],
)
def test_the_stricter_verdict_wins(first: Verdict, second: Verdict, expected: Verdict) -> None:
    assert strictest(first, second) == strictest(second, first) == expected


@pytest.mark.parametrize(
    "first,second,expected",
    [("safe", "write", "write"), ("critical", "dangerous", "critical"), ("safe", "safe", "safe")],
)
def test_the_higher_risk_wins(first: Risk, second: Risk, expected: Risk) -> None:
    assert riskier(first, second) == riskier(second, first) == expected


@pytest.mark.parametrize("contract", [EngineSession, SessionPort, Workspace], ids=lambda contract: contract.__name__)
def test_what_may_wait_is_asynchronous(contract: type) -> None:
    awaited = {name for name, value in public(contract).items() if inspect.iscoroutinefunction(value)}
    assert set(public(contract)) - awaited <= {"request_turn", "display"}
