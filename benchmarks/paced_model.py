"""What the model of `shared_session` answers, as the file its server reads."""

from model_server import ChatRequest, pause, reply
from model_server.script import Answer, Piece

PER_S = 200
STEADY, AT_ONCE = 600, 5_000


def script(request: ChatRequest) -> Answer:
    pieces: list[Piece] = []
    match request.last_user_text:
        case "steady":
            for number in range(STEADY):
                pieces += [f"{number:06} ", pause(1 / PER_S)]
        case "at once":
            pieces += [f"{number:06} " for number in range(AT_ONCE)]
        case _:
            pieces.append("Hello.")
    return reply(deltas=pieces)
