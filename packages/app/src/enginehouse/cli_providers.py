"""The command line of `providers`.

Rule: as in `cli`, argparse and nothing else is imported here. No option takes a key: it would be in the shell's history
and in every list of processes.
"""

from __future__ import annotations

from enginehouse.parsing import add, as_json, group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enginehouse.parsing import Subparsers


def add_providers(commands: Subparsers, name: str, about: str) -> None:
    providers = group(commands, name, about, "enginehouse providers add deepseek")
    _add_add(providers)
    _add_list(providers)
    _add_test(providers)
    _add_remove(providers)


def _add_add(providers: Subparsers) -> None:
    new = add(
        providers,
        "add",
        "providers:add_provider",
        "add a provider, and store its key",
        "enginehouse providers add deepseek",
        "enginehouse providers add work --base-url https://models.example.com/v1 --key-env WORK_KEY",
        "pass show openrouter | enginehouse providers add openrouter --key-stdin",
        "enginehouse providers add ollama --model qwen3-coder",
        more=(
            "NAME may be one that is known (`enginehouse providers list --known`); then the address, and more, is\n"
            "known too. The key is asked for without showing it and goes into the system's keyring. Where there is\n"
            "none nothing is stored, unless you choose --store unencrypted-file; --key-env names a variable instead."
        ),
    )
    new.add_argument("name", metavar="NAME", help="what to call it")
    new.add_argument("--known", metavar="K", help="it is this one of the known ones, under another name")
    new.add_argument("--base-url", metavar="U", help="where its interface begins, such as https://host/v1")
    new.add_argument("-m", "--model", metavar="M", help="the model used when nobody asks for another")
    new.add_argument("--engine", metavar="E", help="the engine that speaks to it (default: openai_compatible)")
    new.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="options",
        help="an option of its engine; VALUE as JSON, else as text",
    )
    key = new.add_mutually_exclusive_group()
    key.add_argument("--key-env", metavar="VAR", help="the key is in this variable; nothing is stored")
    key.add_argument("--key-stdin", action="store_true", help="read the key from stdin")
    key.add_argument("--no-key", action="store_true", help="it needs none")
    new.add_argument(
        "--store",
        choices=("keyring", "unencrypted-file"),
        help="where the key is kept (default: the system's keyring)",
    )
    new.add_argument("--update", action="store_true", help="it is there already: change what is said here")


def _add_list(providers: Subparsers) -> None:
    listed = add(
        providers,
        "list",
        "providers:list_providers",
        "list the providers of the profile, those that are known, or servers on this machine",
        "enginehouse providers list",
        "enginehouse providers list --local",
    )
    which = listed.add_mutually_exclusive_group()
    which.add_argument("--known", action="store_true", help="those that can be added by their name alone")
    which.add_argument("--local", action="store_true", help="servers that answer on the usual ports of this machine")
    as_json(listed)


def _add_test(providers: Subparsers) -> None:
    test = add(
        providers,
        "test",
        "provider_check:check_provider",
        "put a server through its paces: what works, what is tolerated, what is missing",
        "enginehouse providers test deepseek",
        "enginehouse providers test --base-url http://127.0.0.1:8000/v1 -m my-model",
        more=(
            "About twenty small requests are sent, which cost what they cost. exit code: 0 an agent can work with it,\n"
            "1 it cannot, 2 usage or configuration."
        ),
    )
    test.add_argument("name", metavar="NAME", nargs="?", help="a provider of the profile")
    test.add_argument("--base-url", metavar="U", help="any server, without adding it; OPENAI_API_KEY is not sent")
    test.add_argument("-m", "--model", metavar="M", help="the model to test with")
    as_json(test)


def _add_remove(providers: Subparsers) -> None:
    gone = add(
        providers,
        "remove",
        "providers:remove",
        "remove a provider, and its key from where it is stored",
        "enginehouse providers remove deepseek",
    )
    gone.add_argument("name", metavar="NAME")
    gone.add_argument("--keep-key", action="store_true", help="leave its key in the store")
