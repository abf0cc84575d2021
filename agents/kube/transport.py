"""Bytes to the API server and back: connections, credentials, a deadline on every wait, an error class for every failure.

`Transport` is the seam that tests replace. The real one drives kubernetes_asyncio's ApiClient with a session of our own,
because the library's has no deadlines, follows redirects, reads `.netrc` and caches name resolution. Bodies pass as bytes, in
both directions; the library's own decoding, which logs them, is never used.

Connections come in generations. `reset_connections` retires the current one: new requests connect and resolve names anew,
what is under way ends on the old connections, which are closed after that.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from yarl import URL

from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.kube import lean
from agents.kube.errors import MAX_TEXT, DeadlineExceeded, Unavailable, from_response
from agents.kube.kubeconfig import ClusterAccess, TokenFile
from agents.kube.ratelimit import RateLimiter
from agents.kube.tls import tls_context

CONNECT_DEADLINE_SECONDS = 3.0
"""Name resolution, TCP and TLS together."""

DEADLINE_SECONDS = 30.0
"""From the call to the last byte of the answer; for a stream, to its first."""

MAX_ERROR_BODY_BYTES = 64 * 1024
"""How much of an answer that is not a success is read."""

_SUCCESS = range(200, 300)
_UNAUTHORIZED = 401

RequestObserver = Callable[[str, str, float], None]
"""Told about each request that ended: method, status or `<error>`, seconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request. The path starts with a slash and is already quoted."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    accept: str = "application/json"


class ByteStream(Protocol):
    """The body of an answer that does not end soon."""

    async def read(self) -> bytes:
        """Return the next bytes, none at the end.

        Raises:
            DeadlineExceeded: nothing came within the read deadline.
            Unavailable: the connection broke.
        """
        ...


class Transport(Protocol):
    """What a client needs from the wire."""

    async def request(
        self, call: Call, *, deadline: float = DEADLINE_SECONDS, connect_deadline: float = CONNECT_DEADLINE_SECONDS
    ) -> bytes:
        """Return the body of a successful answer; everything else is an ApiError. Deadlines in seconds."""
        ...

    def stream(
        self, call: Call, *, read_deadline: float, deadline: float = DEADLINE_SECONDS
    ) -> AbstractAsyncContextManager[ByteStream]:
        """Open a successful answer whose body is read bit by bit; leaving closes its connection."""
        ...

    async def reset_connections(self) -> None:
        """Have new requests connect and resolve names anew."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(slots=True)
class _Generation:
    """One set of connections, and how many calls are using it."""

    api: Any
    session: aiohttp.ClientSession
    users: int = 0
    retired: bool = False


class HttpTransport:
    """Transport over kubernetes_asyncio and aiohttp.

    Args:
        access: where, and as whom.
        user_agent: for example `gardener-node-agent/v1.150.0`.
        clock: for the age of a token file, and for durations.
        limiter: delays requests; none by default. Its delay counts towards a call's deadline.
        observe: told about each request, for metrics.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        user_agent: str,
        clock: Clock,
        limiter: RateLimiter | None = None,
        observe: RequestObserver = lambda _method, _code, _seconds: None,
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._clock = clock
        self._limiter = limiter
        self._observe = observe
        token_file = access.credentials.token_file
        self._token_file = TokenFile(token_file, clock=clock) if token_file is not None else None
        self._generation: _Generation | None = None
        self._opening = asyncio.Lock()

    async def request(
        self, call: Call, *, deadline: float = DEADLINE_SECONDS, connect_deadline: float = CONNECT_DEADLINE_SECONDS
    ) -> bytes:
        """Return the body of a successful answer; everything else is an ApiError. Deadlines in seconds."""
        with self._explain(call):
            async with asyncio.timeout(deadline), self._borrow() as generation:
                response = await self._send(generation, call, connect_deadline)
                async with response:
                    await self._check(response, call)
                    return await response.read()

    @asynccontextmanager
    async def stream(
        self, call: Call, *, read_deadline: float, deadline: float = DEADLINE_SECONDS
    ) -> AsyncIterator[ByteStream]:
        """Open a successful answer whose body is read bit by bit; leaving closes its connection."""
        async with self._borrow() as generation:
            with self._explain(call):
                async with asyncio.timeout(deadline):
                    response = await self._send(generation, call, CONNECT_DEADLINE_SECONDS)
                    try:
                        await self._check(response, call)
                    except BaseException:
                        response.close()
                        raise
            try:
                yield _HttpStream(response, read_deadline, lambda: self._explain(call))
            finally:
                response.close()

    async def reset_connections(self) -> None:
        """Retire the current connections; what is under way on them ends there."""
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.retired = True
            if generation.users == 0:
                await generation.session.close()

    async def close(self) -> None:
        """Close all connections that are not retired; calls on them fail."""
        generation, self._generation = self._generation, None
        if generation is not None:
            await generation.session.close()

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[_Generation]:
        if self._generation is None:
            async with self._opening:
                if self._generation is None:
                    self._generation = await self._open()
        generation = self._generation
        generation.users += 1
        try:
            yield generation
        finally:
            generation.users -= 1
            if generation.retired and generation.users == 0:
                await generation.session.close()

    async def _open(self) -> _Generation:
        try:
            context = await asyncio.to_thread(tls_context, self._access)
        except AgentError as error:
            raise Unavailable("credentials or CA cannot be used", cause=str(error)[:MAX_TEXT]) from error
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, use_dns_cache=False, force_close=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            raise_for_status=False,
        )
        return _Generation(_api_client(self._access, session, self._user_agent, self._refresh), session)

    async def _refresh(self, configuration: Any) -> None:
        """Hook of the library before each request: put the current token in."""
        if self._token_file is not None:
            configuration.api_key["BearerToken"] = await self._token_file.get()

    async def _send(self, generation: _Generation, call: Call, connect_deadline: float) -> aiohttp.ClientResponse:
        if self._limiter is not None:
            await self._limiter.wait()
        started = self._clock.monotonic()
        code = "<error>"
        try:
            response: aiohttp.ClientResponse = await generation.api.call_api(
                call.path,
                call.method,
                query_params=list(call.query),
                header_params={"Accept": call.accept, "Content-Type": call.content_type},
                body=call.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(connect=connect_deadline, sock_connect=connect_deadline),
            )
            code = str(response.status)
        finally:
            self._observe(call.method, code, self._clock.monotonic() - started)
        return response

    async def _check(self, response: aiohttp.ClientResponse, call: Call) -> None:
        if response.status in _SUCCESS:
            return
        body = await response.content.read(MAX_ERROR_BODY_BYTES)
        if response.status == _UNAUTHORIZED and self._token_file is not None:
            self._token_file.expire()
        raise from_response(
            response.status,
            body,
            retry_after=response.headers.get("Retry-After"),
            method=call.method,
            path=call.path,
        )

    @contextmanager
    def _explain(self, call: Call) -> Iterator[None]:
        """Turn what the network and the library raise into ApiErrors."""
        try:
            yield
        except TimeoutError as error:
            raise DeadlineExceeded("no answer in time", method=call.method, path=call.path) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"[:MAX_TEXT]
            raise Unavailable("connection failed", method=call.method, path=call.path, cause=cause) from error


class _HttpStream:
    """The body of one answer, chunk by chunk."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        read_deadline: float,
        explain: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._response = response
        self._read_deadline = read_deadline
        self._explain = explain

    async def read(self) -> bytes:
        """Return the next bytes, none at the end."""
        with self._explain():
            async with asyncio.timeout(self._read_deadline):
                return await self._response.content.readany()


def _api_client(
    access: ClusterAccess,
    session: aiohttp.ClientSession,
    user_agent: str,
    refresh: Callable[[Any], Any],
) -> Any:
    """Return the library's ApiClient on our session; its constructor would make a session of its own."""
    configuration = lean.load("Configuration")(host=access.url)
    credentials = access.credentials
    if credentials.token or credentials.token_file is not None:
        configuration.api_key = {"BearerToken": credentials.token}
        configuration.api_key_prefix = {"BearerToken": "Bearer"}
        configuration.refresh_api_key_hook = refresh
    client_class = lean.load("ApiClient")
    api = client_class.__new__(client_class)
    api.configuration = configuration
    api.rest_client = _Rest(session, access)
    api.default_headers = {"User-Agent": user_agent}
    if credentials.username:
        pair = f"{credentials.username}:{credentials.password}".encode()
        api.default_headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
    api.cookie = None
    api.client_side_validation = False
    return api


class _Rest:
    """Stands in for the library's RESTClientObject: the same calls, our session, no redirects, bodies as bytes."""

    def __init__(self, session: aiohttp.ClientSession, access: ClusterAccess) -> None:
        self._session = session
        self._proxy = access.proxy or None
        self._server_hostname = access.tls_server_name or None
        # The library calls one method for each verb.
        self.GET = self._verb("GET")
        self.POST = self._verb("POST")
        self.PUT = self._verb("PUT")
        self.PATCH = self._verb("PATCH")
        self.DELETE = self._verb("DELETE")

    def _verb(self, method: str) -> Callable[..., Any]:
        async def send(
            url: str,
            *,
            headers: Mapping[str, str],
            query_params: list[tuple[str, str]],
            body: bytes | None = None,
            _request_timeout: aiohttp.ClientTimeout,
            **_unused: object,
        ) -> aiohttp.ClientResponse:
            return await self._session.request(
                method,
                URL(url, encoded=True).with_query(query_params),
                headers=headers,
                data=body,
                timeout=_request_timeout,
                allow_redirects=False,
                proxy=self._proxy,
                server_hostname=self._server_hostname,
            )

        return send
