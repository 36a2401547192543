"""What no format likes, all of it in one session: the conversation is kept, and goes on.

Rule: the same conversation is read back in every way there is, and the model always gets a valid request.
"""

import json

from end_to_end.conftest import Introduction
from model_server import Answer, assert_prefix_chain, call, raw, reply

BIG = 20_000_000
SEPARATOR = "\u2028"
_CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":0,"model":"scripted","choices":[{"index":0,%b}]}\n\n'
)
HALF_A_PAIR = raw(_CHUNK % rb'"delta":{"content":"half \ud83d a pair"},"finish_reason":null')
STEPS: tuple[Answer, ...] = (
    reply(f"One{SEPARATOR}two\x00three\u202e\x1b[2J.", calls=[call("list_dir", {"path": f"a{SEPARATOR}b"})]),
    reply(calls=[call("bash", r'{"command": "printf \"\\u2028 \\0 \\377\\376 \\355\\240\\200 \\302\"; exit 3"}')]),
    reply(calls=[call("read_file", r'{"path": "nul\u0000here"}'), call("read_file", r'{"path": "\ud800"}')]),
    reply(calls=[call("bash", r'{"command": "echo \ud83d\ude00 \udc00"}')]),
    reply(calls=[call("bash", '{"command": "echo not-a-number", "timeout_s": NaN}')]),
    reply(calls=[call("bash", '{"command": "echo infinite", "timeout_s": 1e999}')]),
    reply(calls=[call("bash", '{"command": "echo minus", "timeout_s": -Infinity}')]),
    reply(calls=[call("bash", '{"command": "echo cut')]),
    reply(calls=[call("bash", '["echo list"]'), call("bash", ""), call("frobnicate", {"path": "\ufffe"})]),
    reply(calls=[call("bash", '{"command": ' * 3_000)]),
    reply(deltas=["before ", HALF_A_PAIR, " after"], calls=[call("list_dir", {})]),
    reply(calls=[call("bash", {"command": f"yes 'ü {SEPARATOR} line' | head -c {BIG}"})]),
    reply(calls=[call("bash", {"command": f"head -c {BIG} /dev/urandom"})]),
    reply(calls=[call("bash", {"command": f"head -c {BIG} /dev/zero | tr '\\0' '\\377'"})]),
)
SAYS = (
    "there is no",
    "\ufffd",
    "control character",
    *["not valid JSON"] * 6,
    "must be a JSON object",
    "`command`",
    "no tool 'frobnicate'",
    "not valid JSON",
)
"""What the model is told, in the order of the calls: what was wrong, never just that something was."""


def test_one_session_takes_all_of_it_and_goes_on(meet: Introduction) -> None:
    person = meet([*STEPS, reply("All done."), reply("Still here.")])
    ended = person.runs("run", "--json", "--mode", "yolo", "now the\u2028hard \ufeff\U0010ffff ones")
    assert ended.code == 0, ended.err
    uses, results = ended.bodies("tool.use"), ended.bodies("tool.result")
    assert [body["call_id"] for body in uses] == [body["call_id"] for body in results]
    assert len(uses) == len(STEPS) + 3
    assert [body["status"] for body in results] == ["error"] * 13 + ["ok"] * 4
    for result, says in zip(results, SAYS, strict=False):
        assert says in result["content"][0]["text"]
    said = "".join(body["text"] for body in ended.bodies("message.assistant"))
    for part in (f"One{SEPARATOR}two\x00three\u202e\x1b[2J.", "before half \ufffd a pair after"):
        assert part in said

    again = person.runs("run", "--continue", "are you there?")
    assert (again.code, again.out) == (0, "Still here.\n"), again.err
    asked = meet.asked()
    assert len(asked) == len(STEPS) + 2
    assert_prefix_chain(meet.server.quiet())
    assert meet.server.problems() == []
    assert max(len(request.raw) for request in asked) < 1_000_000  # the model gets what it can use, not 60 MB
    text, *binary = (answer.text for answer in asked[-1].tool_results[-3:])  # and is told what it did not get
    assert "characters not shown; the whole is in " in text
    assert "bytes were not kept" in text
    for answer in binary:
        assert answer.startswith(f"[{BIG} bytes of binary output, not shown;")

    session_id = person.session_id()
    recorded = person.runs("sessions", "events", session_id)
    assert recorded.out_bytes.startswith(ended.durable)
    assert [json.loads(line)["seq"] for line in recorded.out_bytes.split(b"\n")[:-1]] == list(
        range(1, 1 + len(recorded.events))
    )
    shown = person.runs("sessions", "show", session_id)
    assert (shown.code, "Still here." in shown.out) == (0, True)
    assert not set(shown.out) & {"\x1b", "\x00", "\u202e"}
    assert person.runs("sessions", "check").out.startswith(f"{session_id}: sound")
