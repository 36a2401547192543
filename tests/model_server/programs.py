"""Ways to choose an answer: a program looks at a request and says what the model replies.

Rule: prefer a program that decides by what the request *contains* (`by_history`, `steps`). Only such a script
goes on where the conversation stands after the client was killed and started again. Counting requests
(`in_order`, `with_faults`) is for what happens once: a fault, a retry.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

from model_server.request import ChatRequest
from model_server.script import ANSWERS, Answer, Call, Fault, Reply, Verbatim, call, fault, reply

Program = Callable[[ChatRequest], Answer]
Script = Answer | Program | Sequence[Answer | Program]
"""One answer for everything, a program, or a list played by history."""


def program_of(script: Script) -> Program:
    if isinstance(script, ANSWERS):
        answer = script
        return lambda _: answer
    if isinstance(script, Sequence):
        return by_history(*script)
    return script


def by_history(*answers: Answer | Program) -> Program:
    """The k-th answer for a request whose messages hold k - 1 assistant messages. A retry gets the same
    answer."""

    def program(request: ChatRequest) -> Answer:
        return _choose(answers, request.assistant_messages, request)

    return program


def in_order(*answers: Answer | Program) -> Program:
    """The k-th answer for the k-th request, whatever it holds. Give a new one to each server: it counts."""
    count = itertools.count()

    def program(request: ChatRequest) -> Answer:
        return _choose(answers, next(count), request)

    return program


def by_first_user(scripts: Mapping[str, Script], otherwise: Script | None = None) -> Program:
    """The script whose key occurs in the first user message: several conversations on one server."""
    programs = {key: program_of(script) for key, script in scripts.items()}

    def program(request: ChatRequest) -> Answer:
        for key, chosen in programs.items():
            if key in request.first_user_text:
                return chosen(request)
        if otherwise is not None:
            return program_of(otherwise)(request)
        return _no_answer(f"no script for a conversation that begins with {request.first_user_text[:80]!r}")

    return program


def steps(
    count: int,
    command: Callable[[int], str] | None = None,
    *,
    calls: Callable[[int], Sequence[Call]] | None = None,
    say: Callable[[int], str] = lambda _: "",
    final: str = "All steps are done.",
    per_turn: bool = False,
) -> Program:
    """`count` tool-calling steps, then `final`. Step k, from 1, comes after k - 1 replies with tool calls.

    `command(k)` is what step k gives to the tool `bash`; `calls(k)` says the tool calls themselves.
    `per_turn` counts anew after each message of the user; without it the steps go on over turns, which is
    what a killed and continued session needs.
    """
    if (command is None) == (calls is None):
        raise ValueError("give `command` or `calls`, one of them")

    def calls_of(k: int) -> Sequence[Call]:
        if calls is not None:
            return calls(k)
        assert command is not None
        return [call("bash", {"command": command(k)})]

    def program(request: ChatRequest) -> Answer:
        k = 1 + (request.steps_this_turn if per_turn else request.steps_taken)
        return reply(final) if k > count else reply(say(k), calls=calls_of(k))

    return program


def with_faults(script: Script, at: Mapping[int, Answer | Callable[[Answer], Answer]]) -> Program:
    """The script, but the n-th request (counted by this program, from 1) meets the fault.

    A fault is an answer given instead, or a change of the script's own, as `breaking(after=2, by=cut())`.
    """
    program = program_of(script)
    count = itertools.count(1)

    def faulty(request: ChatRequest) -> Answer:
        match at.get(next(count)):
            case None:
                return program(request)
            case Reply() | Fault() | Verbatim() as instead:
                return instead
            case change:
                return change(program(request))

    return faulty


def _choose(answers: Sequence[Answer | Program], index: int, request: ChatRequest) -> Answer:
    if index >= len(answers):
        return _no_answer(f"the script has {len(answers)} answers, number {index + 1} was asked for")
    chosen = answers[index]
    return chosen if isinstance(chosen, ANSWERS) else chosen(request)


def _no_answer(reason: str) -> Fault:
    """400, so that no client takes it for something to try again."""
    return fault(400, f"Script: {reason}.", code="no_answer_in_script")
