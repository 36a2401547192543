"""What a line is taken for, and whose id an answer to a broken one carries."""

import msgspec
import pytest

from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.rpc.envelope import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Envelope,
    Key,
    Malformed,
    notification_line,
    read,
    request_line,
)
from enginehouse_protocol.rpc.framing import LineSplitter, Oversized


def refused(line: bytes | Oversized) -> Malformed:
    message = read(line)
    assert isinstance(message, Malformed)
    return message


@pytest.mark.parametrize(
    "line,number,key",
    [
        (b"nonsense", PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","method":"a"', PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","method":"\xff"}', PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a"} more', PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","params":' + b"[" * 100_000, INVALID_REQUEST, None),
        (
            b'{"jsonrpc":"2.0","id":9,"method":"a","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            INVALID_REQUEST,
            9,
        ),
        (b"7", INVALID_REQUEST, None),
        (b' [{"jsonrpc":"2.0","id":1,"method":"a"}]', INVALID_REQUEST, None),
        (b"{}", INVALID_REQUEST, None),
        (b'{"id":3,"method":"a"}', INVALID_REQUEST, 3),
        (b'{"jsonrpc":"1.0","id":"x","method":"a"}', INVALID_REQUEST, "x"),
        (b'{"jsonrpc":"2.0","id":4,"method":5}', INVALID_REQUEST, 4),
        (b'{"jsonrpc":"2.0","id":null,"method":"a"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"a"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":99999999999999999999,"method":"a"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":5}', INVALID_REQUEST, 5),
    ],
)
def test_a_line_that_is_no_message_says_what_is_wrong_and_whose_it_is(
    line: bytes, number: int, key: Key | None
) -> None:
    found = refused(line)
    assert (found.error.code, found.key, found.answers) == (number, key, False)
    assert found.error.data == {"code": "malformed_data"}


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":5,"result":1,"error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","id":5,"error":{"code":"x"}}',
        b'{"id":5,"result":{}}',
    ],
)
def test_a_broken_answer_is_known_for_one(line: bytes) -> None:
    found = refused(line)
    assert (found.key, found.answers) == (5, True)


def test_parameters_and_results_stay_the_bytes_they_are() -> None:
    message = read(b'{"jsonrpc":"2.0", "id":1, "method":"a", "params":{"b" : 1.50}}')
    assert isinstance(message, Envelope)
    assert bytes(message.params) == b'{"b" : 1.50}'


def too_long(line: bytes) -> Oversized:
    found = LineSplitter(limit_bytes=100).feed(line + b"\n")[0]
    assert isinstance(found, Oversized)
    return found


FILLER = b'{"id":99,"deep":[{"id":98}],"text":"' + b"x" * 10_000 + b'"}'


@pytest.mark.parametrize(
    "line,key,answers",
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"a","params":' + FILLER + b"}", 7, False),
        (b'{ "id" : "seven" , "params":' + FILLER + b', "method":"a"}', "seven", False),
        (b'{"method":"a","params":' + FILLER + b',"id":7}', 7, False),
        (b'{"method":"a","params":' + FILLER + b', "id" : "s" } ', "s", False),
        (b'{"method":"a","params":' + FILLER + b"}", None, False),
        (b'{"id":7,"result":' + FILLER + b"}", 7, True),
        (b'{"result":' + FILLER + b',"id":7}', 7, True),
        (b'{"params":{"a":"{\\"id\\":6,","b":' + FILLER + b'},"method":"a"}', None, False),
        (b"[" * 10_000, None, False),
        (b'"' + b"\\" * 10_001, None, False),
    ],
)
def test_a_line_that_was_too_long_still_shows_its_id_at_either_edge(
    line: bytes, key: Key | None, answers: bool
) -> None:
    found = refused(too_long(line))
    assert (found.error.code, found.key, found.answers) == (INVALID_REQUEST, key, answers)


def test_json_that_was_laid_out_for_people_still_travels_as_one_line() -> None:
    laid_out = msgspec.Raw(b'{\n  "text": "two\\nlines",\n  "list": [\n    1\n  ]\n}')
    line = notification_line("a", laid_out)
    assert line == b'{"jsonrpc":"2.0","method":"a","params":{"text":"two\\nlines","list":[1]}}'


class Said(msgspec.Struct):
    text: str


@pytest.mark.parametrize("params", [Said(text="\ud800"), msgspec.Raw(b"\n{"), Said(text="x" * (64 * 1024 * 1024))])
def test_what_the_other_side_could_not_read_is_not_sent(params: msgspec.Struct | msgspec.Raw) -> None:
    with pytest.raises(MalformedData):
        request_line(1, "a", params)
