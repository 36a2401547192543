"""The HTTP client: the `openai` package's, over aiohttp, with everything it would guess from the environment given.

Rule: this is the only module that imports `openai`, and it is imported in a worker thread when the engine is entered:
that takes a second. Bodies go out as the bytes they are and come in raw; the package's own parsing is not used.
"""

import contextlib
import functools
import os
import re
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import anyio
import httpx2
import msgspec
import openai

from enginehouse_engines.openai_compatible.options import Options
from enginehouse_engines.openai_compatible.patience import Incoming, Patience
from enginehouse_engines.openai_compatible.provider_errors import ProviderError, ProviderErrors
from enginehouse_protocol.capabilities import ModelInfo
from enginehouse_protocol.engine import Access, Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject

DEFAULT_BASE_URL = "https://api.openai.com/v1"
VERSION = openai.__version__
_CLOSE_S = 1.0
_LIST_S = 15.0
_NO_BODY = b""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_QUERY = re.compile(r"[?#]")
_FAILURES = (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, aiohttp.ClientError, OSError)


class ModelClient:
    """One provider, one account. Made in a worker thread, used on the event loop."""

    def __init__(self, access: Access, options: Options) -> None:
        """Raises `EngineError` for an address or a key that cannot be one."""
        given = access.provider.base_url if access.provider is not None else None
        self.base_url = (given or DEFAULT_BASE_URL).rstrip("/")
        self.address = _without_credentials(self.base_url)
        """The base URL as people and models may see it."""
        self.errors = ProviderErrors(self.address, access.secret)
        self._options = options
        self._more_patience = _more_patience(access.provider)
        self._headers: dict[str, str | openai.Omit]
        try:
            address = urlsplit(self.base_url)
            _ = address.port  # raises for one that is no number
        except ValueError:
            address = urlsplit("")
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise self.errors.make(
                "provider.bad_address", "not a web address", advice="a base URL begins with http:// or https://"
            )
        if address.username or address.password:
            raise self.errors.make(
                "provider.bad_address", "has a password in it", advice="store the API key as a secret instead"
            )
        key = access.secret.reveal().strip() if access.secret is not None else ""
        if not key.isascii() or not key.isprintable() or " " in key:
            raise self.errors.make(
                "provider.bad_key", "the API key has characters no key can have", advice="store it again"
            )
        # Reading has no limit here: `answer` and `models` have their own, and know what they wait for.
        timeout = httpx2.Timeout(
            connect=options.connect_timeout_s, read=None, write=None, pool=options.connect_timeout_s
        )
        self._http = openai.DefaultAioHttpClient(
            timeout=timeout,
            follow_redirects=False,  # a redirect would carry the key to an address nobody chose
            trust_env=False,  # the hub's own environment is not the person's
            verify=_trusted(address.scheme, access.environment.get("SSL_CERT_FILE"), options.ca_file),
            proxy=options.proxy or proxy_for(self.base_url, access.environment),
        )
        with self._translated():
            self._openai = openai.AsyncOpenAI(
                api_key=key or "none",  # the package insists on one
                organization="",
                project="",
                base_url=self.base_url,
                max_retries=0,
                timeout=timeout,
                http_client=self._http,
            )
        self._headers = (
            options.headers | {"Accept-Encoding": "identity"} | dict.fromkeys(_ambient_headers(), openai.Omit())
        )
        if not key:
            self._headers["Authorization"] = openai.Omit()

    async def aclose(self) -> None:
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._openai.close()

    async def models(self) -> tuple[ModelInfo, ...]:
        """What the server lists.

        Raises:
            EngineError: it cannot be reached, refuses, or answers something else.
        """
        with self._translated(), anyio.move_on_after(_LIST_S) as deadline:
            response = await self._openai.get("/models", cast_to=httpx2.Response, options={"headers": self._headers})
            body = await response.aread()
            return self._listed(body)
        assert deadline.cancelled_caught
        raise self.errors.make("provider.timeout", f"no list of models after {_LIST_S:g} s", advice="is it running?")

    @asynccontextmanager
    async def answer(self, body: bytes) -> AsyncGenerator[Incoming, None]:
        """Send a request and read its answer as it comes. Leaving early closes the connection.

        Raises:
            ProviderError: also inside, when the connection breaks or a time limit has passed.
        """
        options = self._options
        scope = anyio.CancelScope()
        patience = Patience(scope, total_s=options.total_timeout_s)
        with scope:
            patience.wait("first", options.first_byte_timeout_s)
            with self._translated():
                response = await self._openai.post(
                    "/chat/completions",
                    content=body,
                    cast_to=httpx2.Response,
                    options={"headers": self._headers | {"Accept": "text/event-stream"}},
                    stream=True,
                    stream_cls=openai.AsyncStream[Any],
                )
            raw = cast(httpx2.Response, cast(object, response))
            chunks = self._chunks(raw, patience)
            try:
                yield Incoming(chunks, patience)
            finally:
                with (
                    anyio.move_on_after(_CLOSE_S, shield=True),
                    contextlib.suppress(httpx2.HTTPError, aiohttp.ClientError),
                ):
                    await chunks.aclose()
                    await raw.aclose()
        if scope.cancelled_caught:
            raise self._too_late(patience)

    async def _chunks(self, response: httpx2.Response, patience: Patience) -> AsyncGenerator[bytes, None]:
        with self._translated():
            async for data in response.aiter_bytes():
                patience.heard(self._options.idle_timeout_s)
                yield data

    def _too_late(self, patience: Patience) -> ProviderError:
        limit_s, option = {
            "first": (self._options.first_byte_timeout_s, "first_byte_timeout_s"),
            "idle": (self._options.idle_timeout_s, "idle_timeout_s"),
            "total": (self._options.total_timeout_s, "total_timeout_s"),
        }[patience.waits_for]
        if patience.waits_for == "total":
            return self.errors.make(
                "provider.timeout",
                f"the answer was not complete after {limit_s:g} s",
                advice=self._more_patience.format(option=option),
                retries=0,  # it would only take as long again
            )
        return self.errors.make(
            "provider.timeout",
            f"the server sent nothing for {limit_s:g} s",
            advice=f"try again, or {self._more_patience.format(option=option)}",
        )

    def _listed(self, body: bytes) -> tuple[ModelInfo, ...]:
        try:
            found: Any = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._no_list() from error
        entries: Any = cast(JsonObject, found).get("data") if isinstance(found, dict) else found
        if not isinstance(entries, list):
            raise self._no_list()
        models: list[ModelInfo] = []
        for entry in cast(list[Any], entries):
            fields = cast(JsonObject, entry) if isinstance(entry, dict) else {}
            if isinstance(name := fields.get("id"), str) and name:
                models.append(ModelInfo(name=name, context_window=_window(fields)))
        return tuple(models)

    def _no_list(self) -> ProviderError:
        return self.errors.make(
            "provider.bad_reply", "/models gave no list of models", advice="check the base URL (many end in /v1)"
        )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Every way HTTP can fail, as an `EngineError`."""
        try:
            yield
        except openai.APIStatusError as error:
            body = error.response.content if error.response.is_stream_consumed else _NO_BODY
            raise self.errors.of_status(error.status_code, error.response.headers, body) from error
        except (*_FAILURES, ValueError) as error:  # the latter: an address that is none, found out late
            raise self._broken(error) from error

    def _broken(self, error: BaseException) -> ProviderError:
        """What happened underneath: the package and its transport rename causes on the way up."""
        causes = list(_causes(error))
        for cause in causes:
            match cause:
                case aiohttp.ClientConnectorDNSError():
                    return self._unreachable("its name cannot be resolved")
                case ssl.SSLCertVerificationError() | aiohttp.ClientConnectorCertificateError():
                    return self.errors.make(
                        "provider.tls",
                        f"no trusted connection: {_certificate_problem(cause)}",
                        advice="check the address and the date; a private authority's file is named by SSL_CERT_FILE "
                        "or options.ca_file",
                    )
                case ssl.SSLError() | aiohttp.ClientSSLError():
                    return self.errors.make(
                        "provider.tls",
                        f"no trusted connection: {cause}",
                        advice="does it speak https, or http?",
                        retries=1,  # a handshake can also break
                    )
                case aiohttp.ClientHttpProxyError() | aiohttp.ClientProxyConnectionError():
                    return self.errors.make("provider.proxy", f"the proxy refused: {cause}", advice="check HTTPS_PROXY")
                case aiohttp.ClientConnectorError():
                    return self._unreachable(cause.os_error.strerror or "the connection was refused")
                case aiohttp.ServerTimeoutError() | TimeoutError():
                    return self._unreachable(f"no connection after {self._options.connect_timeout_s:g} s")
                case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | aiohttp.ClientOSError():
                    return self.errors.make(
                        "provider.cut_stream", "the server closed the connection in the middle", advice="try again"
                    )
                case aiohttp.ClientResponseError():
                    return self.errors.make(
                        "provider.bad_reply",
                        f"what answers there does not speak HTTP: {cause.message}",
                        advice="check the base URL",
                        retries=1,  # it may also be a line that garbles
                    )
                case httpx2.DecodingError():
                    return self.errors.make(
                        "provider.bad_reply", f"its answer cannot be decompressed: {cause}", advice="check the proxy"
                    )
                case _:
                    pass
        root = causes[-1]
        return self.errors.make("provider.unreachable", f"{type(root).__name__}: {root}", advice="check the base URL")

    def _unreachable(self, why: str) -> ProviderError:
        return self.errors.make(
            "provider.unreachable", f"cannot be reached: {why}", advice="is it running, and is the base URL right?"
        )


def proxy_for(base_url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy the person's environment names for this address: `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, any case."""
    lower = {name.lower(): value for name, value in environment.items()}
    address = urlsplit(base_url)
    host, port = address.hostname or "", address.port
    proxy = lower.get(f"{address.scheme}_proxy") or lower.get("all_proxy")
    if not proxy or host in {"localhost", "127.0.0.1", "::1"}:
        return None
    for entry in lower.get("no_proxy", "").lower().split(","):
        name = entry.strip().removeprefix("*").lstrip(".")
        if entry.strip() == "*" or (name and (f".{host}".endswith(f".{name}") or f"{host}:{port}" == name)):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _more_patience(provider: Provider | None) -> str:
    """Where a person says how long a silent server is waited for."""
    if provider is None or provider.name == "environment":  # variables alone said where the model is
        return "describe this server in the profile, in providers/<name>.toml, with a larger options.{option}"
    return f"set a larger options.{{option}} in the profile's providers/{provider.name}.toml"


def _without_credentials(base_url: str) -> str:
    """A base URL may carry a login or, in its query, a key. It may also be none, and then nobody knows where a login
    ends: everything up to the last `@` goes, and all of it when a query may be meant."""
    found = _SCHEME.match(base_url)
    scheme = found.group() if found else ""
    login, _, address = base_url.removeprefix(scheme).rpartition("@")
    if "?" in login or "#" in login:
        return f"{scheme}…"
    return f"{scheme}{_QUERY.split(address, maxsplit=1)[0]}"


def _ambient_headers() -> list[str]:
    """What the package would add to every request from the variables of this very process."""
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
    names = [line.partition(":")[0].strip() for line in lines]
    return ["OpenAI-Organization", "OpenAI-Project", *(name for name in names if name)]


def _trusted(scheme: str, by_variable: str | None, by_options: str | None) -> ssl.SSLContext | bool:
    """The certificates to trust: the machine's, and with them the person's own files where they name some."""
    if scheme == "http":
        return False  # nothing to verify, and no certificates to load: redirects are not followed
    own = {"SSL_CERT_FILE": by_variable, "options.ca_file": by_options}
    if not any(own.values()):
        return _machine_certificates()
    context = httpx2.create_ssl_context(trust_env=False)
    for source, file in own.items():
        try:
            if file:
                context.load_verify_locations(cafile=file)
        except OSError as error:
            raise EngineError(f"{source} {file!r} cannot be used: {error}", code="provider.tls") from error
    return context


@functools.cache
def _machine_certificates() -> ssl.SSLContext:
    """Loading them takes a tenth of a second, so it is done once."""
    return httpx2.create_ssl_context(trust_env=False)


def _certificate_problem(error: BaseException) -> str:
    """In one sentence; the library's own begins with a number and ends with a line of its source."""
    inner: BaseException = getattr(error, "certificate_error", error)
    return getattr(inner, "verify_message", "") or str(inner)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _window(fields: JsonObject) -> int | None:
    """No standard field; these are what servers use."""
    for name in ("context_window", "context_length", "max_model_len", "max_context_length"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
