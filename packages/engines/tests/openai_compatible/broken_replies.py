"""Replies that stop short, and what was thought before them: refusals, filters, limits, emptiness, reasoning fields."""

from collections.abc import Callable

from model_server import Answer, ChatRequest, Usage, fault, reply

from .behaviour import HI, Case, calling, json_body, stream
from .chunks import DONE, chunk, document, fragment

LS = '{"path":"."}'
WORDS = "Words of the provider"
A = fragment(LS, index=0, id="a", name="list_dir")

SHORT_REPLIES = (
    *(
        Case(name=f"a reply that was too long: {reason}", meets=(reply("Hi", finish_reason=reason),), stop="max_tokens")
        for reason in ("length", "max_tokens", "model_length", "MAX_TOKENS")
    ),
    *(
        Case(
            name=f"a filter: {reason}",
            meets=(reply("Hi", finish_reason=reason),),
            stop="refused",
            words=("content filter",),
        )
        for reason in ("content_filter", "sensitive", "SAFETY")
    ),
    Case(name="filtered before a word", says=None, meets=(reply(finish_reason="content_filter"),), stop="refused"),
    Case(
        name="too long before a word",
        says=None,
        meets=(reply(reasoning="hm", finish_reason="length"),),
        stop="max_tokens",
    ),
    Case(
        name="a filter that refuses the request",
        says=None,
        meets=(fault(400, WORDS, code="content_filter"),),
        stop="refused",
        words=(WORDS,),
    ),
    Case(
        name="a refusal",
        says="I will not",
        meets=(stream(chunk(refusal="I will "), chunk(refusal="not"), chunk("stop")),),
        stop="refused",
    ),
    Case(
        name="a refusal as a part",
        says="No",
        meets=(stream(chunk(content=[{"type": "refusal", "refusal": "No"}]), chunk("stop")),),
        stop="refused",
    ),
    Case(name="a refusal in a document", says="No", meets=(json_body(document(None, refusal="No")),), stop="refused"),
    Case(
        name="arguments cut by the limit",
        says=None,
        meets=(calling(fragment('{"comma', index=0, id="a", name="bash"), finish="length"),),
        calls=(("bash", '{"comma', "error"),),
        asked=0,
        stop="max_tokens",
        steps=1,
    ),
    Case(
        name="arguments that did not come at all",
        says=None,
        meets=(calling(fragment("", index=0, id="a", name="list_dir"), finish="length"),),
        calls=(("list_dir", "", "error"),),
        asked=0,
        stop="max_tokens",
        steps=1,
    ),
    Case(
        name="an empty reply",
        says="Done.",
        meets=(reply(),),
        steps=2,
        notices=("guard.empty_reply",),
        told=("Your last reply was empty",),
    ),
    Case(
        name="an empty reply after a call",
        says="Done.",
        meets=(calling(A), reply()),
        calls=(("list_dir", LS, "ok"),),
        steps=3,
        notices=("guard.empty_reply",),
        told=("Your last reply was empty",),
    ),
    Case(name="nothing but blanks", says="Done.", meets=(reply("  \n"),), steps=2, notices=("guard.empty_reply",)),
    Case(
        name="nothing but thoughts",
        says="Done.",
        meets=(reply(reasoning="hm"),),
        steps=2,
        notices=("guard.empty_reply",),
    ),
    Case(
        name="empty replies for ever",
        says=None,
        meets=(reply(usage=Usage(prompt=5, completion=0)),) * 3,
        steps=3,
        words=("said nothing",),
        notices=("guard.empty_reply", "guard.empty_reply", "guard.stopped"),
    ),
)


def _wants_reasoning(field: str) -> Callable[[ChatRequest], Answer]:
    """A server that refuses a conversation whose calls do not carry what was thought before them."""

    def answer(request: ChatRequest) -> Answer:
        calls = [message for message in request.messages if message.get("tool_calls")]
        if calls and not all(message.get(field) == "hm" for message in calls):
            return fault(400, f"{field} must be passed back")
        return reply("Done.")

    return answer


def _thinks(field: str, **also: str) -> Answer:
    return stream(chunk(**{field: "hm"}, **also), chunk(tool_calls=[A]), chunk("tool_calls"), DONE)


REASONING = (
    *(
        Case(
            name=f"{field} must come back",
            says="Done.",
            meets=(_thinks(field), _wants_reasoning(field)),
            calls=(("list_dir", LS, "ok"),),
        )
        for field in ("reasoning_content", "reasoning", "thinking")
    ),
    Case(
        name="the same thought under two names",
        meets=(_thinks("reasoning_content", reasoning="hm"), _wants_reasoning("reasoning_content")),
        tolerated=("reasoning_content",),
        calls=(("list_dir", LS, "ok"),),
    ),
    *(
        Case(
            name=f"{field} must not come back",
            says="Done.",
            meets=(_thinks(field),),
            tolerated=(),
            calls=(("list_dir", LS, "ok"),),
            steps=3,
            notices=("provider.adapted",),
        )
        for field in ("reasoning_content", "reasoning", "thinking")
    ),
    Case(
        name="reasoning must not come back, and the person said so",
        meets=(_thinks("reasoning_content"),),
        tolerated=(),
        options={"send_reasoning": "never"},
        calls=(("list_dir", LS, "ok"),),
    ),
    Case(
        name="thoughts as parts of the content",
        meets=(stream(chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]), HI),),
        tolerated=(),
    ),
    Case(name="thoughts that are no text", meets=(stream(chunk(reasoning={"effort": "low"}, thinking=True), HI),)),
)
