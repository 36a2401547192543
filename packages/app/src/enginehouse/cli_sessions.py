"""The command line of `sessions` and `inbox`.

Rule: as in `cli`, argparse and nothing else is imported here.
"""

from __future__ import annotations

from enginehouse.parsing import MODES, add, as_json, count, directory, group, images, mode, number, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enginehouse.parsing import Subparsers


def add_sessions(commands: Subparsers, name: str, about: str) -> None:
    sessions = group(commands, name, about, "enginehouse sessions list")
    _add_reading(sessions)
    _add_taking_part(sessions)
    _add_queue(sessions, "queue", "the messages of a session that wait for their turn")
    _add_tidying(sessions)


def _add_reading(sessions: Subparsers) -> None:
    listed = add(
        sessions, "list", "sessions:list_sessions", "list sessions, newest first", "enginehouse sessions list -C ."
    )
    directory(listed, "only those of this directory")
    as_json(listed)
    show = session(sessions, "show", "sessions:show", "read a conversation as text", "enginehouse sessions show s_01k2")
    as_json(show)
    events = session(
        sessions,
        "events",
        "sessions:events",
        "print a session's events as JSON lines, exactly as they were recorded",
        "enginehouse sessions events s_01k2 --after 40",
    )
    events.add_argument("--after", type=number, default=0, metavar="N", help="only those after seq N")
    prompt = session(
        sessions,
        "prompt",
        "prompt:show_prompt",
        "print exactly what a model was sent, or list the model calls",
        "enginehouse sessions prompt s_01k2 --step 3 | jq .messages",
        more=(
            "The request's body, rebuilt from the record, byte for byte. Without --step the steps are listed. stderr\n"
            "says whether its sha256 is the recorded one. exit code: 1 it is not, as after a change of the renderer."
        ),
    )
    prompt.add_argument("--step", type=count, metavar="N", help="the Nth model call of the session")
    as_json(prompt)


def _add_taking_part(sessions: Subparsers) -> None:
    attach = session(
        sessions,
        "attach",
        "attach:attach",
        "look at a session, whoever holds it, and follow it live",
        "enginehouse sessions attach s_01k2",
        more=(
            "Shows the conversation so far, the text of a reply that is under way, and what comes. Ctrl-C detaches\n"
            "and never interrupts. On a terminal you are asked before anything risky happens, as `run` asks; whoever\n"
            "answers first decides. Without a terminal, or with --json, every event is one JSON line, from the first\n"
            "one on unless --after says otherwise, and nobody is asked.\n\n"
            "exit code: 0 detached, or the session is closed; 1 the hub is gone; 129, 143 ended by a signal."
        ),
    )
    attach.add_argument("--after", type=number, metavar="N", help="only what came after seq N")
    as_json(attach)
    send = session(
        sessions,
        "send",
        "send:send",
        "send a message to a session and return at once",
        "enginehouse sessions send s_01k2 'and add a test for it'",
        more=(
            "Prints the id of the message, and whether it has begun or is queued. A permission request of its turn\n"
            "waits for whoever answers it: `enginehouse inbox`. With --wait it is as `enginehouse run --session ID`.\n"
            "The message comes before the options: send s_01k2 'make it look like this' --image mockup.png"
        ),
    )
    send.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to say; piped text follows it")
    images(send)
    send.add_argument("--wait", action="store_true", help="follow the turn to its end")
    session(
        sessions,
        "interrupt",
        "steering:interrupt",
        "end the turn that runs; what is queued is held then",
        "enginehouse sessions interrupt s_01k2",
    )
    changed = session(
        sessions,
        "set",
        "steering:set_session",
        "change a session's model, effort, mode or title",
        "enginehouse sessions set s_01k2 --mode plan",
    )
    changed.add_argument("-m", "--model", metavar="M", help="the model of its next turns")
    changed.add_argument("--effort", metavar="X", help="how hard the model thinks, in the engine's own words")
    changed.add_argument("--mode", type=mode, metavar="|".join(MODES), help="how much happens without asking")
    changed.add_argument("--title", metavar="T", help="what lists call it")


def _add_queue(sessions: Subparsers, name: str, about: str) -> None:
    queue = group(sessions, name, about, "enginehouse sessions queue list s_01k2")
    as_json(
        session(
            queue,
            "list",
            "queue:list_queue",
            "list what waits, in the order it will run",
            "enginehouse sessions queue list s_01k2",
        )
    )
    edit = session(
        queue,
        "edit",
        "queue:edit",
        "replace the text of a message that waits; it keeps its place",
        "enginehouse sessions queue edit s_01k2 m_01k2 'only the parser, please'",
        more="Without TEXT it is opened in $EDITOR.",
    )
    edit.add_argument("message", metavar="MESSAGE", help="its id, or the beginning of it; see `queue list`")
    edit.add_argument("text", metavar="TEXT", nargs="?", help="what it says from now on")
    withdraw = session(
        queue,
        "withdraw",
        "queue:withdraw",
        "take a message out of the queue; its text is printed",
        "enginehouse sessions queue withdraw s_01k2 m_01k2 > draft.md",
    )
    withdraw.add_argument("message", metavar="MESSAGE", nargs="?", help="not needed where only one waits")
    session(
        queue,
        "resume",
        "queue:resume",
        "let a queue go on that an interrupt, or the end of its hub, has held",
        "enginehouse sessions queue resume s_01k2",
    )


def _add_tidying(sessions: Subparsers) -> None:
    rename = session(
        sessions,
        "rename",
        "sessions:rename",
        "give a session a title",
        "enginehouse sessions rename s_01k2 'The parser'",
    )
    rename.add_argument("title", metavar="TITLE")
    session(
        sessions,
        "close",
        "sessions:close",
        "end a session for good: it can be read, not continued",
        "enginehouse sessions close s_01k2",
    )
    delete = session(
        sessions,
        "delete",
        "sessions:delete",
        "delete a session and everything it recorded",
        "enginehouse sessions delete s_01k2 --yes",
    )
    delete.add_argument("--yes", action="store_true", help="do not ask")
    check = add(
        sessions,
        "check",
        "sessions:check",
        "look for damage in the records of one session or of all",
        "enginehouse sessions check",
        "enginehouse sessions check s_01k2 --repair",
        more="Exits with 1 when it finds damage. Without --repair nothing is changed.",
    )
    check.add_argument("session", metavar="ID", nargs="?", help="the beginning of an id is enough")
    check.add_argument("--repair", action="store_true", help="set a torn end aside and close what was cut off")
    as_json(check)


def add_inbox(commands: Subparsers, name: str, about: str) -> None:
    inbox = add(
        commands,
        name,
        "inbox:list_inbox",
        about,
        "enginehouse inbox",
        "enginehouse inbox answer p_01k2 allow",
        "enginehouse inbox answer p_01k2 deny --reason 'not on main'",
        "enginehouse inbox answer q_01k2 2",
    )
    as_json(inbox)
    verbs = inbox.add_subparsers(metavar="VERB", title="verbs")
    answer = add(
        verbs,
        "answer",
        "inbox:answer",
        "answer a permission request or a question",
        "enginehouse inbox answer p_01k2 allow",
        'enginehouse inbox answer p_01k2 allow --input \'{"command": "pytest -q"}\'',
        "enginehouse inbox answer q_01k2 'the second one, but in blue'",
        more=(
            "A permission request is answered with allow, deny or always, which also stores the rule it offers. What\n"
            "would be allowed is shown first, and you are asked once more. A question is answered with the number or\n"
            "the label of an option, or with your own words."
        ),
    )
    answer.add_argument("id", metavar="ID", help="of what waits, or the beginning of it; see `enginehouse inbox`")
    answer.add_argument("answers", metavar="ANSWER", nargs="+", help="allow, deny, always; or what a question asks for")
    answer.add_argument("--reason", metavar="R", help="why not; the model reads it")
    answer.add_argument("--input", metavar="JSON", help="run it with this input instead of the one shown")
    answer.add_argument("--yes", action="store_true", help="do not ask once more")
