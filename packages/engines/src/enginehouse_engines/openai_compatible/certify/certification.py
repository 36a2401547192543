"""Makes the requests of a certification, one after the other, and gives every check its verdict.

Rule: bounded. A server that cannot be reached is asked nothing more; every exchange has a deadline, and what was not
asked is told as skipped, with the reason.
"""

from collections.abc import Callable

import anyio.to_thread
import msgspec

from enginehouse_engines.openai_compatible.certify import requests
from enginehouse_engines.openai_compatible.certify.checks import CHECKS
from enginehouse_engines.openai_compatible.certify.checks_tools import calls_of
from enginehouse_engines.openai_compatible.certify.exchanges import EVERYTHING, Exchange, Heard, exchange
from enginehouse_engines.openai_compatible.certify.findings import Finding
from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_protocol.engine import Access, Secret
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject

_WRONG_KEY = "enginehouse-certification-wrong-key"
_SHORT = 16
Tell = Callable[[str], None]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    model: str
    findings: tuple[Finding, ...]
    requests: int
    """How many were sent."""

    @property
    def usable(self) -> bool:
        """Whether an agent can work with this server."""
        return not any(found.outcome == "broken" for found in self.findings)


async def certified(access: Access, options: Options, model: str | None, *, tell: Tell = lambda _: None) -> Certificate:
    """Test the server of `access` with `model`, else with the provider's, else with the only one it lists. `tell` hears
    what is being done.

    Raises:
        EngineError: the address or the key can be none, or there is no model to test with.
    """
    run = _Run(access, options, tell, await anyio.to_thread.run_sync(ModelClient, access, options))
    try:
        return await run.whole(model)
    finally:
        await run.aclose()


class _Run:
    def __init__(self, access: Access, options: Options, tell: Tell, client: ModelClient) -> None:
        self._access = access
        self._options = options
        self._tell = tell
        self._client = client
        self._heard = Heard()
        self._ask_usage = options.ask_usage
        self._sent = 0

    async def aclose(self) -> None:
        await self._client.aclose()

    async def whole(self, model: str | None) -> Certificate:
        await self._listing()
        self._heard.model = self._model(model)
        if await self._hello():
            await self._talk()
            await self._tools()
            await self._edges()
        findings = tuple(self._judged())
        return Certificate(
            address=self._client.address, model=self._heard.model, findings=findings, requests=self._sent
        )

    def _judged(self) -> list[Finding]:
        found: list[Finding] = []
        for check in CHECKS:
            verdict = check.judge(self._heard)
            found.append(
                Finding(
                    name=check.name, group=check.group, title=check.title, outcome=verdict.outcome, about=verdict.about
                )
            )
        return found

    async def _listing(self) -> None:
        self._tell("asking for the list of models")
        try:
            self._heard.listed = await self._client.models()
        except EngineError as error:
            self._heard.listing_error = error

    def _model(self, wanted: str | None) -> str:
        provider = self._access.provider
        if chosen := wanted or (provider.model if provider is not None else None):
            return chosen
        names = [model.name for model in self._heard.listed or ()]
        if len(names) == 1:
            return names[0]
        if self._heard.listing_error is not None:
            raise self._heard.listing_error
        listed = f"{', '.join(names[:10])}{' …' if len(names) > 10 else ''}" or "none"
        raise EngineError(
            f"which model? {self._client.address} lists: {listed}; say it with --model", code="engine.model_needed"
        )

    async def _ask(self, name: str, messages: list[JsonObject], **more: object) -> Exchange:
        leave_early = bool(more.pop("leave_early", False))
        body: JsonObject = {"model": self._heard.model, "stream": True}
        if self._ask_usage:
            body["stream_options"] = {"include_usage": True}
        body |= self._options.request | more | {"messages": messages}
        if body["stream"] is False:
            body.pop("stream_options", None)
        self._tell(name.replace("_", " "))
        self._sent += 1
        found = await exchange(self._client, body, leave_early=leave_early)
        self._heard.exchanges[name] = found
        return found

    async def _hello(self) -> bool:
        """Whether there is any use in going on."""
        found = await self._ask("hello", requests.hello())
        if not found.accepted and self._ask_usage and found.status in (400, 422):
            self._ask_usage = False
            again = await self._ask("hello", requests.hello())
            if again.accepted:
                self._heard.skipped["usage_refused"] = found.refusal
                found = again
        if not found.accepted:
            self._heard.skipped[EVERYTHING] = "the server does not answer"
        return found.accepted

    async def _talk(self) -> None:
        await self._ask("unicode", requests.repeat_unicode())
        await self._ask("short", requests.counting(), max_tokens=_SHORT)
        await self._ask("leaving", requests.counting(), leave_early=True)
        await self._ask("after_leaving", requests.hello())
        await self._ask("whole", requests.hello(), stream=False)
        await self._ask("history", requests.with_history(), tools=[requests.LOOKUP])
        await self._ask("two_users", requests.two_in_a_row())
        await self._ask("unknown_field", requests.hello(), **{requests.UNKNOWN_FIELD: True})
        if (await self._ask("long", requests.long_prompt())).accepted:
            await self._ask("long_again", requests.long_prompt())

    async def _tools(self) -> None:
        tools = [requests.LOOKUP]
        called = await self._ask("call", requests.one_call(), tools=tools)
        if calls := calls_of(called):
            reasoning = _reasoning(called)
            await self._ask("result", requests.answered(requests.one_call(), calls), tools=tools)
            if reasoning is None:
                self._heard.skipped["reasoning_back"] = "no reasoning came with a call"
            else:
                again = requests.answered(requests.one_call(), calls, reasoning)
                await self._ask("reasoning_back", again, tools=tools)
        else:
            for name in ("result", "reasoning_back"):
                self._heard.skipped[name] = "no tool call came"
        await self._ask("empty_result", requests.empty_result(), tools=tools)
        both = await self._ask("parallel", requests.two_calls(), tools=tools)
        if len(calls := calls_of(both)) > 1:
            await self._ask("parallel_results", requests.answered(requests.two_calls(), calls), tools=tools)
        else:
            self._heard.skipped["parallel_results"] = "no two calls came"
        await self._ask("no_arguments", requests.call_without_arguments(), tools=[requests.CURRENT_TIME])
        await self._ask("nested", requests.nested_call(), tools=[requests.EDIT])
        await self._ask("no_call", requests.no_call_needed(), tools=tools)

    async def _edges(self) -> None:
        address = self._client.base_url
        known = [each for each in self._options.efforts(address) or ("low",) if each not in ("none", "off")]
        await self._ask("effort", requests.hello(), **self._options.effort(address, known[0]))
        await self._ask("effort_none", requests.hello(), **self._options.effort(address, "none"))
        await self._ask("effort_unknown", requests.hello(), **self._options.effort(address, requests.NO_EFFORT))
        await self._ask("image", requests.red_image())
        await self._ask("bad_model", requests.hello(), model=requests.NO_MODEL)
        await self._ask("bad_request", [])
        await self._wrong_key()
        await self._ask("after_refusal", requests.hello())

    async def _wrong_key(self) -> None:
        if self._access.secret is None:
            self._heard.skipped["bad_key"] = "this server is spoken to without a key"
            return
        wrong = Access(
            provider=self._access.provider,
            secret=Secret("wrong key", _WRONG_KEY),
            environment=self._access.environment,
        )
        right = self._client
        self._client = await anyio.to_thread.run_sync(ModelClient, wrong, self._options)
        try:
            await self._ask("bad_key", requests.hello())
        finally:
            await self._client.aclose()
            self._client = right


def _reasoning(found: Exchange) -> JsonObject | None:
    reply = found.reply
    if reply is None or not reply.reasoning or reply.reasoning_field is None:
        return None
    return {reply.reasoning_field: reply.reasoning}
