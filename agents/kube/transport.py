"""Bytes to the API server and back: connections, credentials, a deadline on every wait, an error class for every failure.

`Transport` is the seam that tests replace. The real one drives the library's client, see `api_client.py`. Bodies pass as bytes, in
both directions; the library's own decoding, which logs them, is never used.

Connections come in generations. `reset_connections` retires the current one: new requests connect and resolve names anew,
what is under way ends on the old connections, which are closed after that. `switch` does the same with other credentials,
after it has seen that the API server accepts them: nothing that runs is cut off, and nothing is changed if they are refused.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.names import Names
from agents.kube.api_client import new_api_client
from agents.kube.errors import MAX_TEXT, DeadlineExceeded, Forbidden, NotFound, Unavailable, from_response
from agents.kube.kubeconfig import ClusterAccess, TokenFile
from agents.kube.ratelimit import RateLimiter
from agents.kube.tls import tls_context
from agents.kube.trust import Authorities, Trust

KEEPALIVE_IDLE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 15, 5, 3
"""A watch whose peer is gone fails after 30 s: the first probe after 15 s of silence, then three without an answer."""
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


class DateObserver(Protocol):
    """Told what time each answer said it was; see `agents.kube.server_clock`."""

    def __call__(self, date: str | None, *, sent: float) -> None:
        """Take the `Date` header of an answer that has just come to a request that was sent then, monotonic."""
        ...


def ignore_date(date: str | None, *, sent: float) -> None:
    """Take no notice."""


class WarningObserver(Protocol):
    """Told what answers warn about; see `agents.kube.warnings`."""

    def __call__(self, headers: Sequence[str], *, method: str, path: str) -> None:
        """Take the `Warning` headers of an answer, at least one."""
        ...


def ignore_warnings(headers: Sequence[str], *, method: str, path: str) -> None:
    """Take no notice."""


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

    async def switch(self, access: ClusterAccess, *, proof: Call, keep: Callable[[], Awaitable[None]]) -> None:
        """Have new requests use another access; see `HttpTransport.switch`."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def _notice_a_dead_peer(response: aiohttp.ClientResponse) -> None:
    """Have the kernel ask whether the other side of a connection still lives, as the connection itself may be silent for long.

    A server that moved, lost power or was cut off says no goodbye; without this a watch on it is dead until its read deadline.
    """
    transport = None if response.connection is None else response.connection.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


@dataclass(frozen=True, slots=True)
class _Identity:
    """Where, and as whom, with the token that is read now and then."""

    access: ClusterAccess
    token_file: TokenFile | None


@dataclass(slots=True)
class _Generation:
    """One set of connections, and how many calls are using it."""

    identity: _Identity
    authorities: Authorities | None
    api: Any
    session: aiohttp.ClientSession
    users: int = 0
    retired: bool = False
    verified: bool = False


class HttpTransport:
    """Transport over kubernetes_asyncio and aiohttp.

    Args:
        access: where, and as whom.
        user_agent: for example `gardener-node-agent/v1.150.0`.
        clock: for the age of a token file, and for durations.
        limiter: delays requests; none by default. Its delay counts towards a call's deadline.
        observe: told about each request, for metrics.
        trust: chooses the authorities that the server is verified with; by default those that `access` names.
        date: told the server's time by each answer, whatever its status.
        warn: told the warnings that an answer carries.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        user_agent: str,
        clock: Clock,
        limiter: RateLimiter | None = None,
        observe: RequestObserver = lambda _method, _code, _seconds: None,
        trust: Trust | None = None,
        date: DateObserver = ignore_date,
        warn: WarningObserver = ignore_warnings,
    ) -> None:
        self._trust = trust or Trust()
        self._date = date
        self._warn = warn
        self._user_agent = user_agent
        self._clock = clock
        self._limiter = limiter
        self._observe = observe
        self._names = Names()
        self._identity = self._identify(access)
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
                    await self._check(generation, response, call)
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
                        await self._check(generation, response, call)
                    except BaseException:
                        response.close()
                        raise
                    _notice_a_dead_peer(response)
            try:
                yield _HttpStream(response, read_deadline, lambda: self._explain(call))
            finally:
                response.close()

    async def reset_connections(self) -> None:
        """Retire the current connections; what is under way on them ends there."""
        generation, self._generation = self._generation, None
        await self._retire(generation)

    async def switch(self, access: ClusterAccess, *, proof: Call, keep: Callable[[], Awaitable[None]]) -> None:
        """Use another access for all new requests, once the API server has accepted it; what is under way ends as it began.

        Args:
            access: where, and as whom, from now on.
            proof: a cheap request that is made with it first. Forbidden or not found is good enough: the API server knows who
                we are before it decides on what we may.
            keep: has the access written down; called after the proof and before anything else uses it.

        Raises:
            ApiError: it is not accepted, or the API server cannot be reached; the old access stays in use, nothing is kept.
            Exception: what `keep` raised; the old access stays in use.
        """
        generation = await self._open(self._identify(access))
        try:
            with suppress(Forbidden, NotFound), self._explain(proof):
                async with asyncio.timeout(DEADLINE_SECONDS):
                    response = await self._send(generation, proof, CONNECT_DEADLINE_SECONDS)
                    async with response:
                        await self._check(generation, response, proof)
                        await response.read()
            await keep()
            await self._opening.acquire()
        except BaseException:
            await generation.session.close()
            raise
        try:
            self._identity = generation.identity
            retired, self._generation = self._generation, generation
        finally:
            self._opening.release()
        await self._retire(retired)

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
                    self._generation = await self._open(self._identity)
        generation = self._generation
        generation.users += 1
        try:
            yield generation
        finally:
            generation.users -= 1
            if generation.retired and generation.users == 0:
                await generation.session.close()

    async def _retire(self, generation: _Generation | None) -> None:
        if generation is not None:
            generation.retired = True
            if generation.users == 0:
                await generation.session.close()

    def _identify(self, access: ClusterAccess) -> _Identity:
        path = access.credentials.token_file
        if path is None:
            return _Identity(access, None)
        return _Identity(access, TokenFile(path, clock=self._clock, mounted=access.mounted))

    async def _open(self, identity: _Identity) -> _Generation:
        access, token_file = identity.access, identity.token_file
        try:
            authorities = await asyncio.to_thread(self._trust.choose, access)
            context = await asyncio.to_thread(tls_context, access, authorities)
        except AgentError as error:
            raise Unavailable("credentials or CA cannot be used", cause=str(error)[:MAX_TEXT]) from error
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, use_dns_cache=False, force_close=False, resolver=self._names),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            raise_for_status=False,
        )

        async def refresh(configuration: Any) -> None:
            """Hook of the library before each request: put the current token in."""
            if token_file is not None:
                configuration.api_key["BearerToken"] = await token_file.get()

        return _Generation(identity, authorities, new_api_client(access, session, self._user_agent, refresh), session)

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
            self._date(response.headers.get("Date"), sent=started)
            if warnings := response.headers.getall("Warning", ()):
                self._warn(warnings, method=call.method, path=call.path)
            if not generation.verified:
                generation.verified = True
                self._trust.verified(generation.authorities)
        except aiohttp.ClientConnectorCertificateError:
            await self._refused(generation)
            raise
        finally:
            self._observe(call.method, code, self._clock.monotonic() - started)
        return response

    async def _refused(self, generation: _Generation) -> None:
        """Have the next request read the CA anew, after the server could not be verified."""
        if not generation.retired:
            self._trust.refused(generation.authorities)
        if generation is self._generation:
            await self.reset_connections()

    async def _check(self, generation: _Generation, response: aiohttp.ClientResponse, call: Call) -> None:
        if response.status in _SUCCESS:
            return
        body = await response.content.read(MAX_ERROR_BODY_BYTES)
        token_file = generation.identity.token_file
        if response.status == _UNAUTHORIZED and token_file is not None:
            token_file.expire()
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
