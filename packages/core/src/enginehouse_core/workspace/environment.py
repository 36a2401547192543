"""The environment of commands: what a build needs, and nothing that opens a door.

Rule: by name, from the environment a client resolved, never from the hub's own. What looks like a credential stays out
even when it is named.
"""

import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit, urlunsplit

_PASSED = frozenset(
    "PATH HOME USER LOGNAME SHELL TERM COLORTERM TZ TMPDIR LANG LANGUAGE VIRTUAL_ENV CONDA_PREFIX "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO PIP_CERT "
    "CARGO_HTTP_CAINFO AWS_CA_BUNDLE".split()
)
_ABSENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
_NOBODY_AT_THE_KEYBOARD = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",  # an editor would wait for a person until the time limit
    "GIT_TERMINAL_PROMPT": "0",
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL_NAME = re.compile(
    r"TOKEN|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|COOKIE|AUTHORIZATION|API_?KEY|(^|_)(AUTH|PAT|DSN)$"
    r"|KEY(_?ID|S)?$|PRIVATE_?KEY",
    re.IGNORECASE,
)
_CREDENTIAL_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(sk-|sk_live_|ghp_|gho_|ghs_|ghu_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza)"
    r"[A-Za-z0-9_-]{12}|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\."
)


def command_environment(launch: Mapping[str, str], *, also: Collection[str] = ()) -> dict[str, str]:
    """What commands get of a launch environment: a short list of names, `LC_*`, and the names in `also`.

    A user name and password inside a URL (a proxy) are cut out of it. `NO_COLOR` is not set: output goes to a pipe
    anyway, and the variable changes what the tests of a project print.
    """
    environment = dict(_ABSENT)
    for name, value in launch.items():
        if name not in _PASSED and name not in also and not name.startswith("LC_"):
            continue
        if _NAME.fullmatch(name) is None or "\0" in value or looks_like_credential(name, value):
            continue
        environment[name] = _without_login(value)
    environment.update(_NOBODY_AT_THE_KEYBOARD)
    return environment


def looks_like_credential(name: str, value: str) -> bool:
    """By its name, or by the shape of its value. Errs on the side of yes."""
    return _CREDENTIAL_NAME.search(name) is not None or _CREDENTIAL_VALUE.search(value) is not None


def _without_login(value: str) -> str:
    if "://" not in value or "@" not in value:
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return value.rpartition("@")[2]
    if "@" not in parts.netloc:
        return value
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
