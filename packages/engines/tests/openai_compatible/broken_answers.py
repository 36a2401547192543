"""Servers that fail: refusals, errors inside a success, cuts, silence, what is no API at all.

What can be mended is sent again, once for every fault; what cannot ends the turn in the provider's own words.
"""

from typing import Any

from model_server import (
    call,
    cut,
    end,
    error_event,
    fault,
    hang_up,
    keep_alive,
    pause,
    raw,
    reply,
    stall,
    verbatim,
)
from model_server.script import Answer

from .behaviour import HI, Case, json_body, page, stream
from .chunks import DONE, chunk, event, fragment

LS = '{"path":"."}'
WORDS = "Words of the provider"
A = fragment(LS, index=0, id="a", name="list_dir")
IDLE = {"idle_timeout_s": 0.4}
BAD_REPLY = "provider.bad_reply"
CUT = "provider.cut_stream"
HALF = chunk(content="half ")


def _again(name: str, *meets: Answer, **more: Any) -> Case:
    """One fault, mended by one extra request."""
    return Case(name=name, meets=meets, says="Done.", retries=len(meets), **more)


def _refused(status: int, code: str, name: str = "", **more: Any) -> Case:
    """A status nobody tries again."""
    headers = more.pop("headers", None)
    return Case(
        name=name or f"status {status}",
        meets=(fault(status, WORDS, code=more.pop("kind", None), headers=headers),),
        fails=code,
        status=status,
        words=(f"HTTP {status}: {WORDS}", *more.pop("words", ())),
        **more,
    )


STATUSES = (
    *(_again(f"status {status}", fault(status)) for status in (408, 409, 425, 429, 500, 502, 503, 504, 520, 529)),
    _again("two faults of two kinds", fault(500), fault(429)),
    _again("429 that says at once", fault(429, headers={"retry-after": "0"})),
    _again("429 with seconds", fault(429, headers={"retry-after": "0.02"})),
    _again("429 with milliseconds", fault(429, headers={"retry-after-ms": "20"})),
    _again("429 with a date that has passed", fault(429, headers={"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"})),
    _again("429 with a wait nobody understands", fault(429, headers={"retry-after": "soon"})),
    _again("502 as a page", page("<html><title>502</title><h1>Bad gateway</h1></html>", 502)),
    _again("503 without a body", fault(503, body=b"")),
    Case(
        name="429 that asks for an hour",
        meets=(fault(429, WORDS, headers={"retry-after": "7200"}),),
        fails="provider.rate_limited",
        status=429,
        words=(WORDS, "asks to wait 2 h"),
    ),
    Case(
        name="500 for ever",
        meets=(fault(500, WORDS),) * 5,
        fails="provider.server_error",
        status=500,
        words=(WORDS, "try again", "tried again 4 times"),
        retries=4,
    ),
    Case(
        name="429 for ever, few retries wanted",
        meets=(fault(429, WORDS),) * 3,
        options={"max_retries": 2},
        fails="provider.rate_limited",
        status=429,
        words=(WORDS, "tried again 2 times"),
        retries=2,
    ),
    _refused(400, "provider.bad_request"),
    _refused(401, "provider.unauthorized", words=("check the API key",)),
    _refused(402, "provider.quota", words=("balance",)),
    _refused(403, "provider.forbidden", words=("API key",)),
    _refused(404, "provider.not_found", words=("many end in /v1",)),
    _refused(413, "provider.too_large"),
    _refused(422, "provider.bad_request"),
    _refused(501, "provider.server_error"),
    _refused(429, "provider.quota", "429 because nobody paid", kind="insufficient_quota", words=("balance",)),
    _refused(400, "provider.context_exceeded", "400 because it is too long", kind="context_length_exceeded"),
    _refused(503, "provider.overloaded", "503 that says not to", headers={"x-should-retry": "false"}),
    Case(
        name="400 because it is too long, in words",
        meets=(fault(400, "This model's maximum context length is 8192 tokens."),),
        fails="provider.context_exceeded",
        status=400,
        words=("maximum context length is 8192",),
    ),
    Case(
        name="a redirect",
        meets=(fault(308, body=b"", headers={"location": "https://elsewhere.example/v1"}),),
        fails="provider.redirected",
        status=308,
        words=("https://elsewhere.example/v1", "base URL"),
    ),
    Case(
        name="a broker that quotes its provider",
        meets=(
            json_body({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": WORDS}}}, 400),
        ),
        fails="provider.bad_request",
        status=400,
        words=(f"Provider returned error: {WORDS}",),
    ),
)

ERRORS_IN_A_SUCCESS = (
    _again("an error as text, before anything", stream(event(error=WORDS), DONE)),
    _again(
        "an error as an object without a code", stream(event(error={"message": WORDS, "code": None}, choices=[]), DONE)
    ),
    _again(
        "an overload after good deltas",
        verbatim(HALF.encode(), raw(event(error={"message": WORDS, "type": "overloaded_error"}).encode())),
        resets=1,
    ),
    _again("a status inside the error", stream(event(error={"message": WORDS, "code": 503}))),
    _again("a status inside the error, as text", stream(event(error={"message": WORDS, "code": "429"}))),
    _again("an object that calls itself an error", stream(event(object="error", message=WORDS, code=500))),
    _again(
        "a type that says error",
        stream(f"event: error\n{event(type='error', error={'type': 'overloaded_error', 'message': WORDS})}"),
    ),
    _again(
        "a choice that ends with an error",
        stream(
            event(
                choices=[{"delta": {"content": ""}, "finish_reason": "error", "error": {"message": WORDS, "code": 502}}]
            )
        ),
    ),
    _again("a reason that is an error", stream(HALF, chunk("network_error"), DONE), resets=1),
    _again("a reason that is an abort", stream(HALF, chunk("abort")), resets=1),
    _again("an error as a JSON document", json_body({"error": {"message": WORDS, "type": "server_error"}})),
    Case(
        name="an error as text, for ever",
        meets=(reply(deltas=["half ", raw(event(error=WORDS).encode()), end()]),) * 2,
        fails="provider.error",
        words=(WORDS,),
        retries=1,
        resets=1,
        partial="half ",
    ),
    Case(
        name="a request it will never take, inside a success",
        meets=(reply(deltas=["half ", error_event(WORDS, kind="invalid_request_error"), end()]),),
        fails="provider.bad_request",
        words=(WORDS,),
        partial="half ",
    ),
    Case(
        name="too long, inside a success",
        meets=(
            stream(event(error={"message": "prompt is too long: 9000 tokens", "type": "BadRequestError", "code": 400})),
        ),
        fails="provider.context_exceeded",
        status=400,
        words=("prompt is too long",),
    ),
    Case(
        name="an error nobody calls one",
        meets=(stream(HALF, event(message=WORDS)),) * 4,
        fails=CUT,
        words=(WORDS,),
        retries=3,
        resets=3,
        partial="half ",
    ),
    Case(
        name="an error that is no JSON",
        meets=(stream(HALF, f"event: error\ndata: {WORDS}\n\n"),) * 4,
        fails=CUT,
        words=(WORDS,),
        retries=3,
        resets=3,
        partial="half ",
    ),
)

NO_API = (
    Case(
        name="a page",
        meets=(page("<html><style>b {}</style><h1>Welcome to nginx</h1></html>"),),
        fails=BAD_REPLY,
        words=("not a chat completion: Welcome to nginx;", "base URL"),
    ),
    Case(
        name="plain text",
        meets=(page("It works!", kind="text/plain"),),
        fails=BAD_REPLY,
        words=("It works!", "base URL"),
    ),
    Case(
        name="JSON of another kind", meets=(json_body({"code": 40001, "msg": WORDS}),), fails=BAD_REPLY, words=(WORDS,)
    ),
    Case(
        name="the events of another interface",
        meets=(stream("event: message_start\n" + event(type="message_start", message={"role": "assistant"})),),
        fails=BAD_REPLY,
        words=("not a chat completion:", "message_start", "base URL"),
    ),
    Case(
        name="a flood of something else",
        meets=(verbatim(*[(b"n" * 65_535 + b"\n") * 16] * 17, stall()),),
        fails=BAD_REPLY,
        words=("not a chat completion: nnn",),
    ),
    Case(name="a number", meets=(page("42", kind="application/json"),), fails=BAD_REPLY, words=("42",)),
    Case(name="bytes of a picture", meets=(page(bytes(range(256)) * 40, kind="image/png"),), fails=BAD_REPLY),
    Case(
        name="events of another kind",
        meets=(stream("event: tick\ndata: 12:00\n\n" * 3),),
        fails=BAD_REPLY,
        words=("12:00",),
    ),
    Case(name="nothing at all", meets=(page(""), page("")), fails=BAD_REPLY, words=("an empty answer",), retries=1),
    Case(
        name="nothing but a status",
        meets=(fault(204, body=b""),) * 2,
        fails=BAD_REPLY,
        words=("an empty answer",),
        retries=1,
    ),
    Case(
        name="what is no HTTP",
        meets=(hang_up(after=b"SSH-2.0-OpenSSH_9.6\r\n"),) * 2,
        retries=1,
        fails=BAD_REPLY,
        words=("does not speak HTTP",),
    ),
    Case(
        name="said to be compressed and is not",
        meets=(page(HI, content_encoding="gzip"),),
        fails=BAD_REPLY,
        words=("cannot be decompressed",),
    ),
    _again("nothing but [DONE]", stream(DONE)),
    _again("calls announced and none sent", stream(chunk(role="assistant"), chunk("tool_calls"), DONE)),
)

CUTS_AND_SILENCE = (
    _again("hung up without a byte", hang_up()),
    _again("hung up in the headers", hang_up(after=b"HTTP/1.1 200 OK\r\ncontent-type: te")),
    _again("reset in the middle", reply(deltas=["half ", cut(reset=True)]), resets=1),
    _again("cut in the middle", reply(deltas=["half ", cut()]), resets=1),
    _again("cut inside an event", reply(deltas=["half ", cut(b'data: {"id')]), resets=1),
    _again("cut in the reasoning", reply(reasoning=["hm ", cut()]), resets=1),
    _again("ended in the middle, cleanly", reply(deltas=["half ", end()]), resets=1),
    _again("cut inside the arguments of a call", reply(calls=[call("bash", ['{"command":"touch ran"}', cut()])])),
    _again(
        "a body shorter than announced",
        hang_up(after=b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + HALF.encode()),
        resets=1,
    ),
    _again("chunks that are none", hang_up(after=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nHi")),
    _again("silent from the first byte", reply("late", before=[stall()]), options={"first_byte_timeout_s": 0.8}),
    _again("silent in the middle", reply(deltas=["half ", stall()]), options=IDLE, resets=1),
    Case(
        name="silent for ever",
        meets=(reply(deltas=["half ", stall()]),) * 3,
        fails="provider.timeout",
        words=("sent nothing for 0.4 s", "idle_timeout_s"),
        retries=2,
        resets=2,
        partial="half ",
        options=IDLE,
    ),
    Case(
        name="cut for ever",
        meets=(reply(deltas=["half ", cut()]),) * 4,
        fails=CUT,
        words=("closed the connection in the middle",),
        retries=3,
        resets=3,
        partial="half ",
    ),
    Case(
        name="shown once, then never answered",
        meets=(reply(deltas=["half ", cut()]), hang_up(), hang_up(), hang_up()),
        fails=CUT,
        retries=3,
        partial="half ",
    ),
    Case(name="cut when all was said", meets=(reply(deltas=["Hi", raw(chunk("stop").encode()), cut()]),)),
    Case(
        name="alive, and never done",
        meets=(reply(deltas=["half ", *[keep_alive(), pause(0.05)] * 40]),),
        fails="provider.timeout",
        words=("not complete after 1 s", "total_timeout_s"),
        partial="half ",
        options={"total_timeout_s": 1.0},
    ),
    Case(
        name="slow, and kept alive by comments",
        says="Hi",
        meets=(reply(deltas=[*[keep_alive(), pause(0.15)] * 5, "Hi"]),),
        options=IDLE,
    ),
)
