"""The transport against a local HTTP server that misbehaves in ways in which a real API server can hardly be made to.

That the Status objects here have the real shape is checked against the real server at the end.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.errors import (
    ApiError,
    DeadlineExceeded,
    Forbidden,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnexpectedStatus,
)
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import NODES
from agents.kube.ratelimit import RateLimiter
from agents.kube.transport import Call, HttpTransport
from tests.integration.agents.conftest import NewClient
from tests.support.clock import FakeClock

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GET = Call("GET", "/api/v1/nodes/a")
ANONYMOUS = Credentials()

TOO_MANY = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "too many requests, please try again later",
    "reason": "TooManyRequests",
    "details": {"retryAfterSeconds": 3},
    "code": 429,
}


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Run a server for the time of the block; gives its URL."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(url: str, credentials: Credentials = ANONYMOUS, **options: object) -> AsyncIterator[HttpTransport]:
    """Give a transport to a URL, and close it."""
    transport = HttpTransport(
        ClusterAccess(server=url, credentials=credentials),
        user_agent="test/1",
        clock=SystemClock(),
        **options,  # type: ignore[arg-type]
    )
    try:
        yield transport
    finally:
        await transport.close()


def answering(status: int, body: object = "", **headers: str) -> Handler:
    """Return a handler that always answers the same."""
    text = body if isinstance(body, str) else json.dumps(body)

    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers=headers)

    return handler


async def fail(handler: Handler, **options: float) -> ApiError:
    """Return the error that a request gets."""
    async with serving(handler) as url, connected(url) as transport:
        with pytest.raises(ApiError) as caught:
            await transport.request(GET, **options)
    return caught.value


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (302, UnexpectedStatus),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (418, UnexpectedStatus),
        (500, ServerError),
        (503, ServerError),
    ],
)
async def test_status_becomes_an_error_class(status: int, expected: type[ApiError]) -> None:
    """Each status has its class; text that is not a Status, from a proxy for example, is dropped."""
    error = await fail(answering(status, "<html>secret</html>", Location="http://127.0.0.1:1/"))
    assert type(error) is expected
    assert (error.status, "secret" in str(error)) == (status, False)


async def test_retry_after_header() -> None:
    """The wait that a 429 asks for in its header is carried by the error, and wins over the one in the Status."""
    error = await fail(answering(429, TOO_MANY, **{"Retry-After": "7"}))
    assert isinstance(error, TooManyRequests)
    assert error.after == timedelta(seconds=7)
    assert error.fields["serverMessage"] == "too many requests, please try again later"


async def test_retry_after_in_the_status() -> None:
    """Without a header the wait of the Status counts."""
    error = await fail(answering(429, TOO_MANY))
    assert isinstance(error, TooManyRequests)
    assert error.after == timedelta(seconds=3)


async def test_slow_server_exceeds_the_deadline() -> None:
    """A server that does not answer in time is given up at the deadline."""

    async def slow(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(10)
        return web.Response()

    started = asyncio.get_running_loop().time()
    assert isinstance(await fail(slow, deadline=0.2), DeadlineExceeded)
    assert asyncio.get_running_loop().time() - started < 2


async def test_slow_body_exceeds_the_deadline() -> None:
    """A body that drips counts towards the same deadline."""

    async def dripping(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response

    assert isinstance(await fail(dripping, deadline=0.3), DeadlineExceeded)


async def test_server_that_does_not_accept_exceeds_the_connect_deadline() -> None:
    """A connection that is not established in time is given up at the deadline for connecting."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        async with connected(f"http://127.0.0.1:{full.getsockname()[1]}") as transport:
            started = asyncio.get_running_loop().time()
            with pytest.raises(DeadlineExceeded):
                await transport.request(GET, connect_deadline=0.3)
            assert asyncio.get_running_loop().time() - started < 2
        for filler in fillers:
            filler.close()


async def test_refused_connection_is_unavailable() -> None:
    """Nobody listens: unavailable, at once."""
    async with connected("http://127.0.0.1:1") as transport:
        with pytest.raises(Unavailable) as caught:
            await transport.request(GET)
    assert "Connect" in str(caught.value.fields["cause"])


async def test_reset_connection_is_unavailable() -> None:
    """A connection that is reset before the answer is complete is unavailable."""

    async def reset(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"part")
        assert request.transport is not None
        request.transport.abort()
        return response

    assert isinstance(await fail(reset), Unavailable)


@pytest.mark.parametrize("body", ["not json", "[]", '{"metadata": {"name": 1}}', ""])
async def test_answer_that_is_no_object_is_invalid(body: str) -> None:
    """A success whose body is not the object that was asked for is an error that does not quote it."""
    async with serving(answering(200, body)) as url, connected(url) as transport:
        with pytest.raises(InvalidResponse) as caught:
            await Client(transport=transport, rng=None).get(NODES, "a")  # type: ignore[arg-type]
    assert "not json" not in str(caught.value)


async def test_list_without_version_is_invalid() -> None:
    """A list from which no watch can continue is not one."""
    async with serving(answering(200, {"items": []})) as url, connected(url) as transport:
        with pytest.raises(InvalidResponse):
            await Client(transport=transport, rng=None).list(NODES)  # type: ignore[arg-type]


async def test_headers() -> None:
    """Our User-Agent and the content type are sent, and nothing from `.netrc` or the environment."""
    seen: list[dict[str, str]] = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append(dict(request.headers))
        return web.Response(text="{}")

    async with serving(note) as url, connected(url) as transport:
        await transport.request(Call("PATCH", "/x", body=b"{}", content_type="application/merge-patch+json"))
    [headers] = seen
    assert headers["User-Agent"] == "test/1"
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert headers["Accept"] == "application/json"
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        (Credentials(token="secret"), "Bearer secret"),
        (Credentials(username="user", password="secret"), "Basic dXNlcjpzZWNyZXQ="),
    ],
)
async def test_authorization(credentials: Credentials, expected: str) -> None:
    """Contract 4.2: a token or basic auth must be sent with each request."""
    seen: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.Response(text="{}")

    async with serving(note) as url, connected(url, credentials) as transport:
        await transport.request(GET)
        await transport.request(GET)
    assert seen == [expected, expected]


async def test_expired_token_is_read_again(tmp_path: Path) -> None:
    """A token file whose token is refused is read again for the next request; no restart is needed."""
    path = tmp_path / "token"
    path.write_text("old\n")

    async def check(request: web.Request) -> web.StreamResponse:
        good = request.headers["Authorization"] == "Bearer new"
        return web.Response(status=200 if good else 401, text="{}")

    async with serving(check) as url, connected(url, Credentials(token_file=path)) as transport:
        with pytest.raises(Unauthorized):
            await transport.request(GET)
        path.write_text("new\n")
        assert await transport.request(GET) == b"{}"


async def test_rate_limit() -> None:
    """Requests above the burst wait as the rate says, and the wait counts towards the deadline."""
    async with serving(answering(200, "{}")) as url:
        limiter = RateLimiter(qps=10, burst=2, clock=SystemClock())
        async with connected(url, limiter=limiter) as transport:
            started = asyncio.get_running_loop().time()
            for _ in range(5):
                await transport.request(GET)
            assert asyncio.get_running_loop().time() - started >= 0.25
            with pytest.raises(DeadlineExceeded):
                await transport.request(GET, deadline=0.01)


async def test_requests_are_observed() -> None:
    """Each request is told with its method and status, those without an answer, too."""
    seen: list[tuple[str, str]] = []
    observe = lambda method, code, seconds: seen.append((method, code)) if seconds >= 0 else None  # noqa: E731
    async with serving(answering(404)) as url, connected(url, observe=observe) as transport:
        with pytest.raises(NotFound):
            await transport.request(GET)
    async with connected("http://127.0.0.1:1", observe=observe) as transport:
        with pytest.raises(Unavailable):
            await transport.request(GET)
    assert seen == [("GET", "404"), ("GET", "<error>")]


async def test_reset_connections_connects_anew_and_lets_streams_end() -> None:
    """After a reset requests use a new connection, while a stream on the old one goes on to its end."""
    peers: list[object] = []
    release = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        peers.append(request.transport and request.transport.get_extra_info("peername"))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        if request.path == "/stream":
            await release.wait()
            await response.write(b"last")
        return response

    async with serving(handler) as url, connected(url) as transport:
        await transport.request(GET)
        await transport.request(GET)
        assert peers[0] == peers[1]
        async with transport.stream(Call("GET", "/stream"), read_deadline=5) as stream:
            assert await stream.read() == b"first"
            await transport.reset_connections()
            await transport.reset_connections()
            await transport.request(GET)
            assert peers[3] not in peers[:3]
            release.set()
            assert await stream.read() == b"last"
            assert await stream.read() == b""
        await transport.reset_connections()
        await transport.request(GET)
        assert peers[4] != peers[3]


async def test_stream_that_is_silent_exceeds_its_read_deadline() -> None:
    """Contract 9 W25: a stream on which nothing comes must be given up at its read deadline."""

    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(10)
        return response

    async with (
        serving(silent) as url,
        connected(url) as transport,
        transport.stream(GET, read_deadline=0.2) as stream,
    ):
        with pytest.raises(DeadlineExceeded):
            await stream.read()


async def test_stream_without_headers_exceeds_its_deadline() -> None:
    """A stream that does not begin in time is given up."""

    async def silent(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(10)
        return web.Response()

    async with serving(silent) as url, connected(url) as transport:
        with pytest.raises(DeadlineExceeded):
            await transport.stream(GET, read_deadline=5, deadline=0.2).__aenter__()


async def test_stream_that_is_refused() -> None:
    """A stream whose answer is not a success is an error like any other."""
    status = {**TOO_MANY, "code": 410, "reason": "Expired"}
    async with serving(answering(410, status)) as url, connected(url) as transport:
        with pytest.raises(ApiError) as caught:
            await transport.stream(GET, read_deadline=5).__aenter__()
    assert caught.value.reason == "Expired"


async def test_concurrent_first_requests_share_connections() -> None:
    """Two requests that come first at the same time read the credentials once."""
    async with serving(answering(200, "{}")) as url, connected(url) as transport:
        opened: list[object] = []
        original = transport._open

        async def counting(identity: object) -> object:
            opened.append(None)
            return await original(identity)  # type: ignore[arg-type]

        transport._open = counting  # type: ignore[method-assign, assignment]
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(transport.request(GET))
        assert len(opened) == 1


async def test_close_without_use_is_harmless() -> None:
    """A transport that never connected can be reset and closed."""
    async with connected("http://127.0.0.1:1") as transport:
        await transport.reset_connections()
        await transport.close()


async def test_proxy_of_the_kubeconfig_is_used() -> None:
    """Requests go to the proxy that the kubeconfig names."""
    seen: list[str] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        seen.append(str(request.url))
        return web.Response(text="{}")

    async with serving(proxy) as url:
        access = ClusterAccess(server="http://api.invalid", proxy=url)
        transport = HttpTransport(access, user_agent="test/1", clock=FakeClock())
        await transport.request(GET)
        await transport.close()
    assert seen == ["http://api.invalid/api/v1/nodes/a"]


async def test_status_has_the_shape_of_the_real_one(new_client: NewClient) -> None:
    """The real server's Status has the fields that the ones above have."""
    with pytest.raises(NotFound) as caught:
        await new_client().get(NODES, "does-not-exist")
    assert caught.value.reason == "NotFound"
    assert caught.value.fields["serverMessage"] == 'nodes "does-not-exist" not found'
