"""Commands get what a build needs and nothing that opens a door."""

import pytest

from enginehouse_core.workspace.environment import command_environment, looks_like_credential

QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_EDITOR": "true", "GIT_TERMINAL_PROMPT": "0"}


def test_only_the_short_list_passes() -> None:
    launch = {
        "PATH": "/opt/bin:/bin", "HOME": "/home/ada", "LANG": "de_DE.UTF-8", "LC_ALL": "C", "TERM": "xterm",
        "VIRTUAL_ENV": "/home/ada/.venv", "https_proxy": "http://proxy:3128", "SSL_CERT_FILE": "/etc/ca.pem",
        "OPENAI_API_KEY": "sk-1", "AWS_PROFILE": "work", "BASH_ENV": "/tmp/evil", "LD_PRELOAD": "/tmp/evil.so",
        "BASH_FUNC_ls%%": "() { evil; }", "SSH_AUTH_SOCK": "/run/agent", "PAGER": "less",
    }  # fmt: skip
    assert command_environment(launch) == {
        "PATH": "/opt/bin:/bin", "HOME": "/home/ada", "LANG": "de_DE.UTF-8", "LC_ALL": "C", "TERM": "xterm",
        "VIRTUAL_ENV": "/home/ada/.venv", "https_proxy": "http://proxy:3128", "SSL_CERT_FILE": "/etc/ca.pem",
        **QUIET,
    }  # fmt: skip


def test_without_a_launch_environment_a_shell_still_finds_its_programs() -> None:
    assert command_environment({}) == {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb", **QUIET,
    }  # fmt: skip


def test_what_is_named_passes_unless_it_looks_like_a_credential() -> None:
    launch = {"JAVA_HOME": "/opt/java", "SSH_AUTH_SOCK": "/run/agent", "GITHUB_TOKEN": "x", "CARGO_HOME": "/c\0d"}
    environment = command_environment(launch, also=launch)
    assert environment.keys() - command_environment({}).keys() == {"JAVA_HOME", "SSH_AUTH_SOCK"}


@pytest.mark.parametrize(
    "value, passed",
    [
        ("http://ada:secret@proxy.example:3128", "http://proxy.example:3128"),
        ("http://ada@proxy.example", "http://proxy.example"),
        ("http://ada:a@b@proxy.example/x", "http://proxy.example/x"),
        ("http://proxy.example/a@b", "http://proxy.example/a@b"),
        ("http://[broken:secret@proxy", "proxy"),
    ],
)
def test_a_login_is_cut_out_of_a_proxys_address(value: str, passed: str) -> None:
    assert command_environment({"HTTP_PROXY": value})["HTTP_PROXY"] == passed


@pytest.mark.parametrize(
    "name",
    "OPENAI_API_KEY ANTHROPIC_AUTH_TOKEN npm_config__auth DB_PASSWORD PGPASSWORD AWS_SECRET_ACCESS_KEY APIKEY GH_PAT "
    "SENTRY_DSN GOOGLE_APPLICATION_CREDENTIALS SESSION_COOKIE SSH_PRIVATE_KEY AWS_ACCESS_KEY_ID LC_SECRET".split(),
)
def test_a_credential_is_known_by_its_name(name: str) -> None:
    assert looks_like_credential(name, "x")
    assert name not in command_environment({name: "x"}, also=(name,))


@pytest.mark.parametrize(
    "value",
    [
        "sk-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrst",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.x",
    ],
)
def test_a_credential_is_known_by_its_shape(value: str) -> None:
    assert looks_like_credential("NOTE", value)


@pytest.mark.parametrize("name", ["PATH", "HOME", "KEYBOARD", "AUTHOR", "GIT_AUTHOR_NAME", "COMPAT", "SSH_AUTH_SOCK"])
def test_ordinary_names_are_not_mistaken_for_credentials(name: str) -> None:
    assert not looks_like_credential(name, "/usr/share/task-runner")
