"""The time of a real kube-apiserver, as it is and as a relay in between rewrites it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from random import Random

import aiohttp
import pytest
from aiohttp import web

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.models import NODES
from agents.kube.server_clock import ServerClock
from agents.kube.tls import tls_context
from agents.kube.transport import HttpTransport


class Noting(ServerClock):
    """Remembers the headers."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock(), name="test")
        self.dates: list[str | None] = []

    def note(self, date: str | None, *, sent: float) -> None:
        """Take a header."""
        self.dates.append(date)
        super().note(date, sent=sent)


def new_client(access: ClusterAccess, clock: ServerClock) -> Client:
    """Return a client that learns the server's time."""
    return Client(transport=HttpTransport(access, user_agent="test/1", clock=clock, date=clock.note), rng=Random(1))


@asynccontextmanager
async def rewriting(access: ClusterAccess, by: timedelta) -> AsyncIterator[str]:
    """Run a reverse proxy before the API server that moves the `Date` of each answer; gives its URL."""
    context = tls_context(access)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), auto_decompress=False) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            headers = {key: value for key, value in request.headers.items() if key in ("Accept", "Content-Type")}
            async with session.request(
                request.method, access.url + request.path_qs, headers=headers, data=await request.read()
            ) as answer:
                date = format_datetime(parsedate_to_datetime(answer.headers["Date"]) + by, usegmt=True)
                kept = {"Date": date, "Content-Type": answer.headers["Content-Type"]}
                return web.Response(status=answer.status, headers=kept, body=await answer.read())

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", relay)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_each_answer_of_the_real_server_has_a_date(admin_access: ClusterAccess) -> None:
    """kube-apiserver sends `Date` with lists, watches and errors alike; by it our clock is right."""
    clock = Noting()
    client = new_client(admin_access, clock)
    listed = await client.list(NODES)
    async with client.watch(NODES, resource_version=listed.resource_version):
        pass
    with pytest.raises(NotFound):
        await client.get(NODES, "nobody")
    await client.close()
    assert len(clock.dates) == 3
    assert all(date is not None and date.endswith("GMT") for date in clock.dates)
    assert clock.ahead is None
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=0.1)


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_a_server_with_another_clock_is_followed(admin_access: ClusterAccess, by: timedelta) -> None:
    """One answer is enough to know an hour's difference to within a second."""
    async with rewriting(admin_access, by) as url:
        clock = Noting()
        client = new_client(ClusterAccess(server=url, credentials=type(admin_access.credentials)()), clock)
        await client.list(NODES)
        await client.close()
    assert clock.ahead is not None
    assert abs(clock.now() - (datetime.now(UTC) + by)) < timedelta(seconds=1.5)
