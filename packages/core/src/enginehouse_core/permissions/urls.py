"""URLs as rules see them: scheme, host and path taken apart so that two spellings of one place are one place.

Rule: a URL made to look like another one (user names, backslashes, control characters) matches no allow rule.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from fnmatch import translate
from urllib.parse import urlsplit

import idna

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
_UNRESERVED = re.compile(r"%([0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class Url:
    scheme: str
    host: str
    """Lower case, in ASCII, without a trailing dot; an address in its usual form."""
    port: int | None
    path: str
    """Dot segments resolved; with the query, when there is one."""
    tricky: bool = False
    """Made so that people and programs may read different hosts in it."""

    @property
    def origin(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{shown}" + ("" if self.port == _PORTS.get(self.scheme) else f":{self.port}")


@dataclass(frozen=True)
class UrlPattern:
    text: str
    scheme: str
    host: str
    below: bool
    """The host is `*.host`: everything below it, not itself."""
    port: int | None
    path: str

    def matches(self, url: Url) -> bool:
        if url.scheme != self.scheme or url.port != self.port:
            return False
        if self.below != (url.host != self.host and url.host.endswith("." + self.host)) or not (
            self.below or url.host == self.host
        ):
            return False
        glob = re.sub(r"([?\[\]])", r"[\1]", self.path)
        return re.match(translate(glob), url.path) is not None


def parse_url(text: str) -> Url | None:
    """None when it is no URL with a host."""
    tricky = bool(re.search(r"[\x00-\x20\x7f\\]", text))
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    scheme = parts.scheme.lower()
    if not host or not scheme:
        return None
    name = canonical_host(host)
    if name is None:
        return None
    path = _path(parts.path) + (f"?{parts.query}" if parts.query else "")
    return Url(scheme, name, port or _PORTS.get(scheme), path, tricky or "@" in parts.netloc or "%" in parts.netloc)


def canonical_host(host: str) -> str | None:
    host = host.rstrip(".").lower()
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if re.fullmatch(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]+|\d+)){0,3}", host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            return None
    try:
        encoded = idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        return host if re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", host) else None
    return encoded.rstrip(".")


def _path(path: str) -> str:
    def plain(found: re.Match[str]) -> str:
        character = chr(int(found[1], 16))
        return character if re.fullmatch(r"[A-Za-z0-9._~-]", character) else found[0].upper()

    kept: list[str] = []
    parts = _UNRESERVED.sub(plain, path or "/").split("/")[1:]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part == "..":
            kept = kept[:-1]
        elif part != ".":
            kept.append(part)
            continue
        if last:
            kept.append("")
    return "/" + "/".join(kept)


def parse_url_pattern(text: str) -> UrlPattern:
    """Raises `ValueError`, which says what is wrong."""
    found = re.fullmatch(r"(https?)://(\*\.)?([^/?#*\\@\s]+)(/[^\s#]*)?", text, re.IGNORECASE)
    if found is None:
        raise ValueError("a URL pattern is http:// or https://, a host (or *.host) and a path, without a user name")
    url = parse_url(f"{found[1]}://{found[3]}/")
    if url is None or url.tricky:
        raise ValueError(f"{found[3]!r} is no host")
    path = found[4] or "/*"
    if "/../" in path + "/" or "/./" in path + "/":
        raise ValueError("a path pattern holds no '.' or '..'")
    below = found[2] is not None
    if below and ("." not in url.host or re.fullmatch(r"[\d.]+|.*:.*", url.host)):
        raise ValueError("'*.' needs a host with at least two parts behind it")
    origin = url.origin.replace("://", "://*.", 1) if below else url.origin
    return UrlPattern(f"{origin}{path}", url.scheme, url.host, below, url.port, path)
