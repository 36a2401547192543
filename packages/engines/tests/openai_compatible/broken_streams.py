"""Servers whose streams are odd, and understood all the same: how bytes come, what chunks hold, how calls are sent."""

import gzip
import json

from model_server import fault, keep_alive, pause, raw, reply, stall, verbatim

from .behaviour import HI, Case, calling, json_body, page, stream
from .chunks import DONE, chunk, document, event, fragment

WIDE = "Grüße – 🙂"
LS = '{"path":"."}'
ECHO = '{"command":"echo ran"}'
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
_FINISH = raw(chunk("stop").encode())

HOW_BYTES_COME = (
    Case(name="lines end with CRLF", meets=(stream((HI + DONE).replace("\n", "\r\n")),)),
    Case(name="CRLF, cut everywhere", meets=(stream((HI + DONE).replace("\n", "\r\n"), split=1),)),
    Case(name="lines end with CR", meets=(stream((HI + DONE).replace("\n", "\r")),)),
    Case(name="comments everywhere", meets=(stream(": ping\n\n", ":\n\n", HI, ": ping\n\n", DONE),)),
    Case(name="comments between the lines of an event", meets=(stream(HI.replace("\n\n", "\n: ping\n\n"), DONE),)),
    Case(name="event, id and retry lines", meets=(stream("event: ping\nretry: 10\nid: 7\n\nevent: x\n", HI, DONE),)),
    Case(name="a keep-alive sent as data", meets=(stream("data: : OPENROUTER PROCESSING\n\n", HI, DONE),)),
    Case(name="no space after data:", meets=(stream((HI + DONE).replace("data: ", "data:")),)),
    Case(name="a byte order mark first", meets=(stream("\ufeff" + HI, DONE),)),
    Case(name="UTF-8 cut everywhere", says=WIDE, meets=(stream(chunk(content=WIDE), chunk("stop"), DONE, split=1),)),
    Case(name="UTF-8 cut in three", says=WIDE, meets=(stream(chunk(content=WIDE), chunk("stop"), DONE, split=3),)),
    Case(
        name="bytes that are no UTF-8",
        says="a \ufffd b",
        meets=(verbatim(b'data: {"choices":[{"delta":{"content":"a \xff b"}}]}\n\n', chunk("stop").encode()),),
    ),
    Case(
        name="half a surrogate pair",
        says="a \ufffd b",
        meets=(stream('data: {"choices":[{"delta":{"content":"a \\ud83d b"}}]}\n\n', chunk("stop"), DONE),),
    ),
    Case(
        name="an object over two data lines",
        meets=(stream('data: {"choices":[{"delta":\ndata: {"content":"Hi"}}]}\n\n', chunk("stop"), DONE),),
    ),
    Case(name="no empty lines between events", meets=(stream((HI + DONE).replace("\n\n", "\n")),)),
    Case(name="the last event without its end", meets=(stream(chunk(content="Hi"), chunk("stop").rstrip()),)),
    Case(name="a line of 300 kB", says="x" * 300_000, meets=(stream(chunk(content="x" * 300_000), chunk("stop")),)),
    Case(name="called plain text", meets=(stream(HI, DONE, content_type="text/plain"),)),
    Case(name="called JSON", meets=(stream(HI, DONE, content_type="application/json"),)),
    Case(name="compressed unasked", meets=(page(gzip.compress((HI + DONE).encode()), content_encoding="gzip"),)),
)

WHERE_IT_ENDS = (
    Case(name="a reason, no [DONE]", meets=(stream(HI),)),
    Case(name="[DONE], no reason", meets=(stream(chunk(content="Hi"), DONE),)),
    Case(
        name="a reason, then silence for ever",
        meets=(reply(deltas=["Hi", _FINISH, stall()]),),
        options={"idle_timeout_s": 0.4},
    ),
    Case(
        name="a reason, then comments for ever",
        meets=(reply(deltas=["Hi", _FINISH, *[keep_alive(), pause(0.1)] * 400]),),
        options={"idle_timeout_s": 1.0},
    ),
    Case(name="more after [DONE]", meets=(stream(HI, DONE, chunk(content=" and more")),)),
    Case(name="a reason in capitals nobody knows", meets=(stream(chunk(content="Hi"), chunk("EOS_TOKEN"), DONE),)),
    Case(name="one JSON document", meets=(json_body(document("Hi") | {"usage": USAGE}),), tokens=(7, 3)),
    Case(name="one indented JSON document", meets=(page(json.dumps(document("Hi"), indent=2)),)),
    Case(name="a list of chunks", meets=(json_body([json.loads(line[6:]) for line in HI.split("\n\n") if line]),)),
    Case(
        name="one JSON object a line",
        meets=(page(HI.replace("data: ", "").replace("\n\n", "\n"), kind="application/x-ndjson"),),
    ),
    Case(
        name="deltas, then the whole message again",
        meets=(stream(HI.replace("stop", "length"), event(**document("Hi")), DONE),),
    ),
)

WHAT_CHUNKS_HOLD = (
    Case(name="empty choices before and after", meets=(stream(event(choices=[]), HI, event(choices=[]), DONE),)),
    Case(name="chunks without choices", meets=(stream(event(id="x"), HI, event(choices=None), DONE),)),
    Case(
        name="nulls wherever they may stand", meets=(stream(chunk(content=None, role=None, tool_calls=None), HI, DONE),)
    ),
    Case(name="content in parts", meets=(stream(chunk(content=[{"type": "text", "text": "Hi"}]), chunk("stop")),)),
    Case(
        name="another choice beside ours",
        meets=(stream(event(choices=[{"index": 1, "delta": {"content": "no"}}]), HI),),
    ),
    Case(
        name="fields of a wrong type",
        meets=(stream(event(choices=[{"delta": []}, 7, None, {"delta": {"content": 7}}]), HI),),
    ),
    Case(name="usage missing", meets=(stream(HI, DONE),), tokens=None),
    Case(name="usage null", meets=(stream(HI, event(choices=[], usage=None), DONE),), tokens=None),
    Case(
        name="usage of zeros",
        meets=(stream(HI, event(choices=[], usage={"prompt_tokens": 0, "completion_tokens": 0})),),
        tokens=None,
    ),
    Case(
        name="usage in the last chunk of text", meets=(stream(chunk("stop", USAGE, content="Hi"), DONE),), tokens=(7, 3)
    ),
    Case(
        name="usage that grows with every chunk",
        meets=(
            stream(
                chunk(None, {"prompt_tokens": 7, "completion_tokens": 1}, content="H"),
                chunk("stop", USAGE, content="i"),
            ),
        ),
        tokens=(7, 3),
    ),
    Case(
        name="usage said three times", meets=(stream(HI, *[event(choices=[], usage=USAGE)] * 3, DONE),), tokens=(7, 3)
    ),
    Case(
        name="usage in two halves",
        meets=(
            stream(
                HI, event(choices=[], usage={"prompt_tokens": 7}), event(choices=[], usage={"completion_tokens": 3})
            ),
        ),
        tokens=(7, 3),
    ),
    Case(name="usage in a field of its own", meets=(stream(HI, event(x_groq={"usage": USAGE}), DONE),), tokens=(7, 3)),
    Case(
        name="token counts refused",
        meets=(fault(400, "Unrecognized request argument: stream_options"), reply("Done.", usage="omit")),
        steps=2,
        notices=("provider.adapted",),
    ),
)

A = fragment(LS, index=0, id="a", name="list_dir")
_TWO = (("list_dir", LS, "ok"), ("bash", ECHO, "ok"))
HOW_CALLS_COME = (
    Case(
        name="no index, ids in every piece",
        meets=(
            calling(
                fragment('{"path"', id="a", name="list_dir"),
                fragment(':"."}', id="a"),
                fragment('{"command"', id="b", name="bash"),
                fragment(':"echo ran"}', id="b"),
            ),
        ),
        calls=_TWO,
    ),
    Case(
        name="no index, ids in the first piece alone",
        meets=(
            calling(
                fragment('{"path"', id="a", name="list_dir"),
                fragment(':"."}'),
                fragment('{"command"', id="b", name="bash"),
                fragment(':"echo ran"}'),
            ),
        ),
        calls=_TWO,
    ),
    Case(
        name="neither index nor id",
        meets=(calling(fragment(LS, name="list_dir"), fragment(ECHO, name="bash")),),
        calls=_TWO,
    ),
    Case(
        name="ids missing",
        meets=(calling(fragment(LS, index=0, name="list_dir"), fragment(ECHO, index=1, name="bash")),),
        calls=_TWO,
    ),
    Case(
        name="one id for all",
        meets=(calling(fragment(LS, index=0, id="x", name="list_dir"), fragment(ECHO, index=1, id="x", name="bash")),),
        calls=_TWO,
    ),
    Case(
        name="one id for all, no index",
        meets=(calling(fragment(LS, id="x", name="list_dir"), fragment(ECHO, id="x", name="bash")),),
        calls=_TWO,
    ),
    Case(name="one index for all", meets=(calling(A, fragment(ECHO, index=0, id="b", name="bash")),), calls=_TWO),
    Case(
        name="indices as text",
        meets=(
            calling(fragment(LS, index="0", id="a", name="list_dir"), fragment(ECHO, index="1", id="b", name="bash")),
        ),
        calls=_TWO,
    ),
    Case(
        name="indices with a gap",
        meets=(calling(fragment(LS, index=3, id="a", name="list_dir"), fragment(ECHO, index=9, id="b", name="bash")),),
        calls=_TWO,
    ),
    Case(
        name="the same id in every reply", meets=(calling(A), calling(A)), calls=(("list_dir", LS, "ok"),) * 2, steps=3
    ),
    Case(
        name="two calls in turns, piece by piece",
        meets=(
            calling(
                fragment(index=0, id="a", name="list_dir"),
                fragment(index=1, id="b", name="bash"),
                *(
                    fragment(piece, index=at)
                    for pair in zip(LS.ljust(22), ECHO, strict=True)
                    for at, piece in enumerate(pair)
                ),
            ),
        ),
        calls=(("list_dir", LS.ljust(22), "ok"), ("bash", ECHO, "ok")),
    ),
    Case(
        name="arguments letter by letter",
        meets=(calling(fragment(index=0, id="a", name="bash"), *(fragment(each, index=0) for each in ECHO)),),
        calls=(("bash", ECHO, "ok"),),
    ),
    Case(
        name="id and name in every piece",
        meets=(calling(*(fragment(each, index=0, id="a", name="bash") for each in (ECHO[:9], ECHO[9:]))),),
        calls=(("bash", ECHO, "ok"),),
    ),
    Case(
        name="the name in pieces",
        meets=(calling(fragment(index=0, id="a", name="list_"), fragment(index=0, name="dir"), fragment(LS, index=0)),),
        calls=(("list_dir", LS, "ok"),),
    ),
    Case(
        name="arguments as an object",
        meets=(calling(fragment({"path": "."}, index=0, id="a", name="list_dir")),),
        calls=(("list_dir", LS, "ok"),),
    ),
    Case(
        name="no arguments",
        meets=(calling(fragment(None, index=0, id="a", name="list_dir")),),
        calls=(("list_dir", "", "ok"),),
    ),
    Case(
        name="an empty object before the arguments",
        meets=(calling(fragment("{}", index=0, id="a", name="bash"), fragment(ECHO, index=0)),),
        calls=(("bash", ECHO, "ok"),),
    ),
    Case(
        name="one call instead of a list",
        meets=(stream(chunk(tool_calls=A), chunk("tool_calls"), DONE),),
        calls=(("list_dir", LS, "ok"),),
    ),
    Case(
        name="the field before tool_calls",
        meets=(
            stream(
                chunk(function_call={"name": "list_dir", "arguments": ""}),
                chunk(function_call={"arguments": LS}),
                chunk("function_call"),
            ),
        ),
        calls=(("list_dir", LS, "ok"),),
    ),
    Case(
        name="calls in a document",
        meets=(json_body(document(None, "tool_calls", tool_calls=[A])),),
        calls=(("list_dir", LS, "ok"),),
    ),
    Case(name="calls, and stop as the reason", meets=(calling(A, finish="stop"),), calls=(("list_dir", LS, "ok"),)),
    Case(name="calls, and no reason", meets=(calling(A, finish=None),), calls=(("list_dir", LS, "ok"),)),
    Case(name="calls, and length as the reason", meets=(calling(A, finish="length"),), calls=(("list_dir", LS, "ok"),)),
    Case(
        name="whole calls in a reply that was cut",
        meets=(calling(A, fragment('{"comma', index=1, id="b", name="bash"), finish="length"),),
        calls=(("list_dir", LS, "ok"), ("bash", '{"comma', "error")),
        asked=1,
        told=("length limit",),
    ),
    Case(
        name="arguments cut, stop as the reason",
        meets=(calling(fragment('{"command":"touch ran', index=0, id="a", name="bash"), finish="stop"),),
        calls=(("bash", '{"command":"touch ran', "error"),),
        asked=0,
        told=("not valid JSON", "cut off"),
    ),
    Case(
        name="arguments that are a list",
        meets=(calling(fragment("[1]", index=0, id="a", name="bash")),),
        calls=(("bash", "[1]", "error"),),
        asked=0,
        told=("must be a JSON object",),
    ),
    Case(
        name="arguments that do not fit",
        meets=(calling(fragment('{"cmd":"ls"}', index=0, id="a", name="bash")),),
        calls=(("bash", '{"cmd":"ls"}', "error"),),
        asked=0,
        told=("This call was not run",),
    ),
    Case(
        name="arguments with NaN",
        meets=(calling(fragment('{"command":NaN}', index=0, id="a", name="bash")),),
        calls=(("bash", '{"command":NaN}', "error"),),
        asked=0,
    ),
    Case(
        name="arguments nested without end",
        meets=(calling(fragment('{"a":' * 2000, index=0, id="a", name="bash")),),
        calls=(("bash", '{"a":' * 2000, "error"),),
        asked=0,
    ),
    Case(
        name="a tool that does not exist",
        meets=(calling(fragment("{}", index=0, id="a", name="teleport")),),
        calls=(("teleport", "{}", "error"),),
        asked=0,
        told=("no tool 'teleport'",),
    ),
    Case(
        name="a tool without a name",
        meets=(calling(fragment(LS, index=0, id="a")),),
        calls=(("", LS, "error"),),
        asked=0,
    ),
    Case(
        name="a tool with a name no server takes",
        meets=(calling(fragment(LS, index=0, id="a", name="list dir: now!")),),
        calls=(("list dir: now!", LS, "error"),),
        asked=0,
    ),
    Case(name="calls announced, words sent", meets=(stream(chunk(content="Hi"), chunk("tool_calls"), DONE),)),
    Case(
        name="text before, between and after calls",
        says="Done.",
        meets=(stream(chunk(content="I "), chunk(tool_calls=[A]), chunk(content="look."), chunk("tool_calls")),),
        calls=(("list_dir", LS, "ok"),),
    ),
)
