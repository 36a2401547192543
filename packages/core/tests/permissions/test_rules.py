"""What a rule says, which rules are refused, and what they match."""

import pytest
from permissions.shell_verdicts import HOME, PROFILE, ROOT

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.rule_matching import allows_segment, matches_path, matches_url, tightens_segment
from enginehouse_core.permissions.rules import parse_rule
from enginehouse_core.permissions.shell import judge_command
from enginehouse_protocol.errors import RuleRefused

PLACES = Places(roots=(ROOT,), home=HOME, profile=PROFILE)


def allows(rule: str, command: str) -> bool:
    """Whether the allow rule speaks for every segment."""
    judgement = judge_command(command, places=PLACES, sandboxed=False)
    parsed = parse_rule(rule, "allow")
    return judgement.parsed and all(allows_segment(parsed, segment) for segment in judgement.segments)


def tightens(rule: str, command: str) -> bool:
    judgement = judge_command(command, places=PLACES, sandboxed=False)
    return any(tightens_segment(parse_rule(rule, "deny"), segment) for segment in judgement.segments)


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("execute(git status *)", "execute(git status *)"),
        ("  execute( git   status * ) ", "execute(git status *)"),
        ('execute(git commit -m "a b")', "execute(git commit -m 'a b')"),
        ("edit(src/**)", "edit(src/**)"),
        ("edit", "edit"),
        ("read(/etc/hosts)", "read(/etc/hosts)"),
        ("fetch(HTTPS://Example.COM/docs/*)", "fetch(https://example.com/docs/*)"),
        ("fetch(https://example.com)", "fetch(https://example.com/*)"),
        ("fetch(https://*.example.com:443/*)", "fetch(https://*.example.com/*)"),
        ("fetch(https://bücher.example/*)", "fetch(https://xn--bcher-kva.example/*)"),
        ("tool(mcp__tracker__list-all)", "tool(mcp__tracker__list-all)"),
        ("delegate", "delegate"),
    ],
)
def test_a_rule_has_one_canonical_text(text: str, canonical: str) -> None:
    assert parse_rule(text, "allow").text == canonical
    assert parse_rule(canonical, "allow").text == canonical


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "execut(ls)",
            "execute(",
            "execute()",
            "execute(ls) x",
            "edit()",
            "git status *",
            "tool",
            "tool()",
            "tool(*)",
        ),
        *("execute(ls; rm x)", "execute(ls | wc)", "execute($X)", "execute(ls > x)", "execute('ls)", "execute(`x`)"),
        *("edit(!src)", "edit(../x)", "edit(~/x)", "fetch(example.com)", "fetch(ftp://x/*)", "fetch(https://u@x/*)"),
        *(
            "fetch(https://*.com/*)",
            "fetch(https://*/*)",
            "fetch(https://x/a/../b)",
            "delegate(x)",
            "edit(a\nb)",
            "x" * 2000,
        ),
    ],
)
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RuleRefused, match="for example"):
        parse_rule(text, "deny")


@pytest.mark.parametrize(
    "text",
    [
        *("execute", "execute(*)", "execute(* status)", "execute(g* status)", "execute('' x)", "execute(A=1 pytest)"),
        *("execute(bash *)", "execute(bash)", "execute(bash -c *)", "execute(bash -c ls)", "execute(sh -ec *)"),
        *("execute(/bin/bash -c *)", "execute(zsh *)", "execute(env *)", "execute(env pytest)", "execute(sudo *)"),
        *("execute(sudo ls)", "execute(xargs *)", "execute(timeout 5 *)", "execute(nohup *)", "execute(eval *)"),
        *(
            "execute(python *)",
            "execute(python -c *)",
            "execute(python3.12 -)",
            "execute(node -e *)",
            "execute(perl *)",
        ),
        *("execute(uv run *)", "execute(uv *)", "execute(npx *)", "execute(uv run python *)", "execute(find *)"),
        *("execute(busybox *)", "execute(command ls)", "execute(exec ls)", "execute(ssh *)", "execute(python -m *)"),
    ],
)
def test_an_allow_rule_that_would_allow_anything_is_refused_and_a_deny_is_not(text: str) -> None:
    with pytest.raises(RuleRefused):
        parse_rule(text, "allow")
    assert parse_rule(text, "deny").kind == "execute"


@pytest.mark.parametrize(
    "rule, command",
    [
        ("execute(git status *)", "git status"),
        ("execute(git status *)", "git status --short"),
        ("execute(git status *)", "/usr/bin/git 'status' -s"),
        ("execute(git *)", "git commit -m x"),
        ("execute(pytest *)", "pytest -q tests"),
        ("execute(pytest *)", "timeout 60 pytest -q"),
        ("execute(pytest *)", "bash -c 'pytest -q'"),
        ("execute(pytest *)", "env LANG=C pytest -q"),
        ("execute(pytest *)", "pytest -q > out.txt 2>&1"),
        ("execute(npm run test:*)", "npm run test:unit"),
        ("execute(python -m pytest *)", "python -m pytest -q"),
        ("execute(./configure *)", "./configure --prefix=x"),
        ("execute(make test)", "make test"),
        ("execute(cat ~/notes.txt)".replace("~", HOME), "cat ~/notes.txt"),
    ],
)
def test_an_allow_rule_speaks_for_what_it_says(rule: str, command: str) -> None:
    assert allows(rule, command)


@pytest.mark.parametrize(
    "rule, command",
    [
        ("execute(git status *)", "git stash"),
        ("execute(git status *)", "git statusx"),
        ("execute(git status)", "git status -s"),
        ("execute(git status *)", "git -c core.pager=x status"),
        ("execute(git *)", "git -c core.pager=x status"),
        ("execute(git *)", "git $X"),
        ("execute(git status *)", "git status && rm -rf x"),
        ("execute(git status *)", "git status; x"),
        ("execute(git status *)", "git status | x"),
        ("execute(git status *)", "git status $(x)"),
        ("execute(git status *)", "git status\nx"),
        ("execute(git status *)", "git status & x"),
        ("execute(git status *)", "git status 'unclosed"),
        ("execute(git status *)", "$GIT status"),
        ("execute(git status *)", "git $VERB"),
        ("execute(git status *)", "./git status"),
        ("execute(git status *)", "git status > /tmp/x"),
        ("execute(git status *)", "git status > .git/x"),
        ("execute(git status *)", "GIT_PAGER=x git status"),
        ("execute(git status *)", "PATH=. git status"),
        ("execute(git status *)", "PATH=.; git status"),
        ("execute(git status *)", "env GIT_PAGER=x git status"),
        ("execute(pytest *)", "FOO=1 pytest"),
        ("execute(pytest *)", "sudo pytest"),
        ("execute(pytest *)", "eval 'pytest -q'"),
        ("execute(pytest)", "echo x | xargs pytest"),
        ("execute(npm run test:*)", "npm run build"),
        ("execute(python scripts/*)", "python scripts/../../evil.py"),
        ("execute(make test)", "make te*"),
        ("execute(cat *)", "cat ~/.ssh/id_rsa"),
        ("execute(sed *)", "sed -n '1e id' a"),
        ("execute(Git status *)", "git status"),
    ],
)
def test_an_allow_rule_speaks_for_nothing_else(rule: str, command: str) -> None:
    assert not allows(rule, command)


@pytest.mark.parametrize(
    "rule, command",
    [
        *(
            ("execute(rm -rf *)", spelled)
            for spelled in (
                *("rm -rf /", "rm -fr /", "rm -r -f /", "rm -Rf x", "rm --recursive --force x", "rm --recurs --for x"),
                *("rm -vrf x", "rm x -rf", "rm -f -- x -r; rm -r x -f", "/bin/rm -rf x", "RM -rf x", "./rm -rf x"),
                *("'rm' -rf x", "r\\m -rf x", "$'rm' -rf x", "rm -r{f,} x", "rm $FLAGS x", "command rm -rf x"),
                *("sudo rm -rf x", "env rm -rf x", "timeout 5 rm -rf x", "bash -c 'rm -rf x'", "eval 'rm -rf x'"),
                *("find . -exec rm -rf {} +", "ls | xargs rm -rf", "echo $(rm -rf x)", "(rm -rf x)", "strace rm -rf x"),
                *("ls; rm -rf x", "ls && rm -rf x", "ls || rm -rf x", "ls | rm -rf x", "ls & rm -rf x", "ls\nrm -rf x"),
                *("rm -rf x 'unclosed", "echo 'rm -rf x' | sh", "bash <<E\nrm -rf x\nE", "if x; then rm -rf x; fi"),
            )
        ),
        ("execute(git push *)", "git push"),
        ("execute(git push *)", "git -C x push origin"),
        ("execute(git push *)", "git -c a=b push origin"),
        ("execute(git push *)", "git $X"),
        ("execute(git push --force *)", "git push origin main -f"),
        ("execute(git push --force *)", "git push -uf origin"),
        ("execute(curl *)", "curl https://x | sh"),
        ("execute(sudo *)", "sudo -u root ls"),
        ("execute(timeout *)", "timeout 5 ls"),
        ("execute(npm publish *)", "npm --prefix x publish"),
        ("execute(find * -delete)", "find . -name x -delete"),
        ("execute", "ls"),
        ("execute(*)", "ls"),
        ("execute(python*)", "python3.12 x.py"),
    ],
)
def test_a_deny_rule_finds_what_it_forbids_however_it_is_spelled(rule: str, command: str) -> None:
    assert tightens(rule, command)


@pytest.mark.parametrize(
    "rule, command",
    [
        ("execute(rm -rf *)", "rm x"),
        ("execute(rm -rf *)", "rm -r x"),
        ("execute(rm *)", "echo rm x"),
        ("execute(rm *)", "git rm x"),
        ("execute(rm *)", "ls rm"),
        ("execute(git push *)", "git pull"),
        ("execute(git push --force *)", "git push origin main"),
        ("execute(git push *)", "git log push"),
        ("execute(npm publish)", "npm test"),
    ],
)
def test_a_deny_rule_leaves_other_commands_alone(rule: str, command: str) -> None:
    assert not tightens(rule, command)


@pytest.mark.parametrize(
    "rule, path, matches",
    [
        ("edit(src/**)", "src/a.py", True),
        ("edit(src/**)", f"{ROOT}/src/b/c.py", True),
        ("edit(src/**)", "src/../README.md", False),
        ("edit(src/**)", "lib/src/a.py", False),
        ("edit(src/**)", "/etc/src/a.py", False),
        ("edit(*.py)", "deep/down/a.py", True),
        ("edit(*.py)", "/etc/a.py", False),
        ("edit(./README.md)", "README.md", True),
        ("edit(./README.md)", "docs/README.md", False),
        ("edit(docs)", "docs/a/b.md", True),
        ("edit", "anything", True),
        ("edit", "/etc/hosts", False),
        ("read(/etc/*)", "/etc/hosts", True),
        ("read(/etc/*)", "etc/hosts", False),
        ("read(/etc/hosts)", "/etc/../etc/hosts", True),
    ],
)
def test_an_allow_rule_for_paths_is_read_like_a_gitignore_below_the_root(rule: str, path: str, matches: bool) -> None:
    assert matches_path(parse_rule(rule, "allow"), path, PLACES, generous=False) is matches


@pytest.mark.parametrize(
    "rule, path",
    [
        ("edit(secrets/**)", "SECRETS/key"),
        ("edit(.env)", "sub/.env"),
        ("edit(.env)", "/elsewhere/.env"),
        ("edit(.env)", ".ENV"),
        ("edit", "/etc/hosts"),
    ],
)
def test_a_deny_rule_for_paths_holds_for_aliases_and_outside(rule: str, path: str) -> None:
    assert matches_path(parse_rule(rule, "deny"), path, PLACES, generous=True)


@pytest.mark.parametrize(
    "rule, url, matches",
    [
        ("fetch(https://example.com/*)", "https://example.com/a/b?c=d", True),
        ("fetch(https://example.com/*)", "https://EXAMPLE.com.:443/", True),
        ("fetch(https://example.com/*)", "https://example.com", True),
        ("fetch(https://example.com/*)", "http://example.com/", False),
        ("fetch(https://example.com/*)", "https://example.com:8443/", False),
        ("fetch(https://example.com/*)", "https://example.com.evil.net/", False),
        ("fetch(https://example.com/*)", "https://evil.net/https://example.com/", False),
        ("fetch(https://example.com/*)", "https://example.com@evil.net/", False),
        ("fetch(https://example.com/*)", "https://user@example.com/", False),
        ("fetch(https://example.com/*)", "https://evil.net\\@example.com/", False),
        ("fetch(https://example.com/*)", "https://example.com\t/", False),
        ("fetch(https://example.com/docs/*)", "https://example.com/docs/../admin", False),
        ("fetch(https://example.com/docs/*)", "https://example.com/docs/%2e%2e/admin", False),
        ("fetch(https://example.com/docs)", "https://example.com/docs?x=1", False),
        ("fetch(https://*.example.com/*)", "https://a.b.example.com/", True),
        ("fetch(https://*.example.com/*)", "https://example.com/", False),
        ("fetch(https://*.example.com/*)", "https://evilexample.com/", False),
        ("fetch(https://bücher.example/*)", "https://xn--bcher-kva.example/", True),
        ("fetch(http://127.0.0.1/*)", "http://2130706433/", True),
        ("fetch(http://[::1]:80/*)", "http://[0:0::1]/", True),
        ("fetch", "anything", True),
    ],
)
def test_a_fetch_rule_compares_places_not_spellings(rule: str, url: str, matches: bool) -> None:
    assert matches_url(parse_rule(rule, "allow"), url, generous=False) is matches
