"""Other credentials and other authorities, against a local server that knows who comes to it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agents.core.clock import SystemClock
from agents.kube.errors import Unauthorized, Unavailable
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.transport import Call, HttpTransport
from agents.kube.trust import Trust
from tests.lab.pki import Authority

GET = Call("GET", "/api/v1/nodes/a")
PROOF = Call("GET", "/version", accept="*/*")


class Server:
    """Answers with the user's name; a stream goes on until `release`."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder, self.authority = folder, authority
        self.release, self.second = asyncio.Event(), asyncio.Event()
        self.refused: set[str] = set()
        self.status = 401
        self.seen: list[tuple[str, str]] = []
        self.url = ""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.load_verify_locations(cadata=authority.certificate_pem.decode())
        self.show(authority)

    def show(self, authority: Authority) -> None:
        """Show a certificate of this authority to new connections."""
        certificate, key = authority.issue_server("api", ["127.0.0.1"])
        path = self.folder / "server.pem"
        path.write_bytes(certificate + key)
        self.context.load_cert_chain(path)

    def access(self, user: str, **options: Any) -> ClusterAccess:
        """Return the access of a user."""
        certificate, key = self.authority.issue_client(user, [])
        credentials = Credentials(client_certificate=certificate, client_key=key)
        options = options or {"ca_data": self.authority.certificate_pem}
        return ClusterAccess(server=self.url, credentials=credentials, **options)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer."""
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        user = dict(pair for entry in subject for pair in entry)["commonName"]
        self.seen.append((user, request.path))
        if len(self.seen) > 1:
            self.second.set()
        if user in self.refused:
            return web.Response(status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(user.encode())
        if request.path == "/stream":
            await self.release.wait()
            await response.write(b" last")
        return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        """Serve for the time of the block."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.context).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A running server."""
    async with Server(tmp_path, Authority.create("first", age=timedelta(days=1))).running() as found:
        yield found


@asynccontextmanager
async def connected(access: ClusterAccess, trust: Trust | None = None) -> AsyncIterator[HttpTransport]:
    """Give a transport, and close it."""
    transport = HttpTransport(access, user_agent="test/1", clock=SystemClock(), trust=trust)
    try:
        yield transport
    finally:
        await transport.close()


async def nothing() -> None:
    """Keep nothing."""


async def test_new_requests_use_the_new_certificate_and_nothing_under_way_is_cut_off(server: Server) -> None:
    """Contract 4.6: a stream and a request under way end as who began them; what comes after is the new one."""
    kept: list[list[tuple[str, str]]] = []

    async def keep() -> None:
        kept.append(list(server.seen))

    async with connected(server.access("old")) as transport:
        async with transport.stream(Call("GET", "/stream"), read_deadline=5) as stream, asyncio.TaskGroup() as group:
            assert await stream.read() == b"old"
            slow = group.create_task(transport.request(Call("GET", "/stream")))
            await server.second.wait()
            await transport.switch(server.access("new"), proof=PROOF, keep=keep)
            assert await transport.request(GET) == b"new"
            server.release.set()
            assert await stream.read() == b" last"
            assert await slow == b"old last"
        assert await transport.request(GET) == b"new"
        await transport.reset_connections()
        assert await transport.request(GET) == b"new"
    assert kept == [[("old", "/stream"), ("old", "/stream"), ("new", "/version")]]


async def test_a_certificate_that_is_refused_changes_nothing(server: Server) -> None:
    """Contract 4.6: the proof fails: the old certificate stays in use, on the same connections, and nothing is kept."""
    server.refused.add("new")

    async def keep() -> None:
        pytest.fail("kept")

    async with connected(server.access("old")) as transport:
        await transport.request(GET)
        with pytest.raises(Unauthorized):
            await transport.switch(server.access("new"), proof=PROOF, keep=keep)
        broken = server.access("other")
        broken = ClusterAccess(server="https://127.0.0.1:1", ca_data=broken.ca_data, credentials=broken.credentials)
        with pytest.raises(Unavailable):
            await transport.switch(broken, proof=PROOF, keep=keep)
        assert await transport.request(GET) == b"old"


async def test_forbidden_is_accepted(server: Server) -> None:
    """Contract 4.8: whoever is refused for what he may is known; a webhook that is away holds no renewal up."""
    server.refused, server.status = {"new"}, 403
    async with connected(server.access("old")) as transport:
        await transport.switch(server.access("new"), proof=PROOF, keep=nothing)
        server.refused = set()
        assert await transport.request(GET) == b"new"


async def test_what_cannot_be_kept_is_not_used(server: Server) -> None:
    """A kubeconfig that cannot be written: the next process would have the old certificate, so this one has it too."""

    async def keep() -> None:
        raise OSError("disk full")

    async with connected(server.access("old")) as transport:
        with pytest.raises(OSError, match="disk full"):
            await transport.switch(server.access("new"), proof=PROOF, keep=keep)
        assert await transport.request(GET) == b"old"


async def test_a_rotation_of_the_authority_in_any_order(server: Server, tmp_path: Path) -> None:
    """Old and new are trusted together while the file is ahead of the server, or behind it; then only the new one."""
    first, second = server.authority, Authority.create("second")
    file, kept = tmp_path / "ca.crt", tmp_path / "kept"
    file.write_bytes(first.certificate_pem)

    async def answers(transport: HttpTransport) -> int:
        """Return how many attempts a new connection needs."""
        await transport.reset_connections()
        for attempt in range(1, 4):
            try:
                await transport.request(GET)
            except Unavailable:
                continue
            return attempt
        pytest.fail("not verified")

    trust = Trust(kept)
    async with connected(server.access("me", ca_file=file), trust) as transport:
        assert await answers(transport) == 1
        file.write_bytes(second.certificate_pem)  # the file is ahead
        assert await answers(transport) == 2
        server.show(second)
        assert await answers(transport) == 1
        trust.keep()
    file.write_bytes(first.certificate_pem)  # user data ran again
    async with connected(server.access("me", ca_file=file), Trust(kept)) as transport:
        assert await answers(transport) == 1
        server.show(first)  # whoever has the old key is not believed before the new one was tried
        assert await answers(transport) == 2
