"""Health and metrics over HTTP, as probes and Prometheus see them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import pytest

from agents.core.errors import FatalError
from agents.runtime.health import Checks
from agents.runtime.metrics import Metrics
from agents.runtime.server import HttpServer, health_server, metrics_server
from agents.runtime.workqueue import WorkQueue


async def passing() -> str | None:
    """Pass."""
    return None


async def failing() -> str | None:
    """Fail with a reason that nobody outside may see."""
    return "secret reason"


async def broken() -> str | None:
    """Raise."""
    raise ValueError("secret reason")


async def hanging() -> str | None:
    """Take too long."""
    await asyncio.sleep(60)
    return None


@asynccontextmanager
async def asking(server: HttpServer) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a server and give a client of it."""
    async with server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session


async def ask(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    """Return status and text of an answer."""
    async with session.get(path) as response:
        return response.status, await response.text()


def health(checks: Checks) -> HttpServer:
    """Return a health server on a free port."""
    return health_server(bind_address="127.0.0.1", port=0, checks=checks)


async def test_all_checks_pass() -> None:
    """Contract 1.6: `/healthz` must ask its checks, `/healthz/<check>` one of them, and `?verbose` must list them."""
    checks = Checks()
    checks.add_liveness("informer-sync", passing)
    checks.add_readiness("informer-sync", passing)
    async with asking(health(checks)) as session:
        assert await ask(session, "/healthz") == (200, "ok")
        assert await ask(session, "/healthz/") == (200, "ok")
        assert await ask(session, "/readyz") == (200, "ok")
        assert await ask(session, "/healthz/ping") == (200, "ok")
        assert await ask(session, "/healthz?verbose") == (
            200,
            "[+]ping ok\n[+]informer-sync ok\nhealthz check passed\n",
        )


@pytest.mark.parametrize("check", [failing, broken])
async def test_failing_check(check: object) -> None:
    """Contract 1.6: a failing check must fail its endpoint and no other; the reason is not told."""
    checks = Checks()
    checks.add_readiness("informer-sync", check)  # type: ignore[arg-type]
    async with asking(health(checks)) as session:
        assert await ask(session, "/healthz") == (200, "ok")
        status, text = await ask(session, "/readyz")
        assert (status, text) == (500, "[-]informer-sync failed: reason withheld\nreadyz check failed\n")
        assert (await ask(session, "/readyz/informer-sync"))[0] == 500


async def test_check_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 9 W25: a check must have a deadline; a hanging one fails."""
    checks = Checks()
    checks.add_liveness("slow", hanging)
    monkeypatch.setattr("agents.runtime.server.CHECK_DEADLINE_SECONDS", 0.1)
    async with asking(health(checks)) as session:
        assert (await ask(session, "/healthz/slow"))[0] == 500


@pytest.mark.parametrize("path", ["/healthz/unknown", "/", "/debug/pprof", "/debug/pprof/profile", "/metrics"])
async def test_unknown_paths(path: str) -> None:
    """Contract 1.6 (ours): there must be no profiles, and nothing else, on the health port."""
    async with asking(health(Checks())) as session:
        assert (await ask(session, path))[0] == 404


async def test_metrics() -> None:
    """Contract 1.6: `/metrics` must be in Prometheus' text format; `/debug/pprof` on the same port is not found."""
    metrics = Metrics()
    metrics.watch_controller("token", WorkQueue(rng=Random(1)), workers=1)
    async with asking(metrics_server(bind_address="127.0.0.1", port=0, metrics=metrics)) as session:
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            assert (
                'controller_runtime_reconcile_total{controller="token",result="success"} 0.0' in await response.text()
            )
        for path in ("/debug/pprof", "/debug/pprof/", "/debug/pprof/trace"):
            assert (await ask(session, path))[0] == 404


async def test_all_interfaces_by_default() -> None:
    """Contract 1.6: without a bind address the server must listen on all interfaces, IPv4 and IPv6 where there is one."""
    async with health_server(bind_address="", port=0, checks=Checks()) as server, aiohttp.ClientSession() as session:
        ports = {address[0]: address[1] for address in server._runner.addresses}
        for host, url in (("0.0.0.0", "http://127.0.0.1"), ("::", "http://[::1]")):
            if host in ports:
                assert await ask(session, f"{url}:{ports[host]}/healthz") == (200, "ok")
        assert "0.0.0.0" in ports


async def test_port_in_use_is_fatal() -> None:
    """A port that is taken ends the start with a clear error."""
    async with health(Checks()) as server:
        with pytest.raises(FatalError) as caught:
            await health_server(bind_address="127.0.0.1", port=server.port, checks=Checks()).__aenter__()
    assert caught.value.fields["port"] > 0  # type: ignore[operator]
    assert health_server(bind_address="", port=2751, checks=Checks()).port == 2751


async def test_slow_client_does_not_hold_up_the_stop() -> None:
    """A request that is under way delays the end of the server by half a second at most."""
    checks = Checks()
    checks.add_liveness("slow", hanging)
    server = health(checks)
    async with aiohttp.ClientSession() as session, server:
        url = f"http://127.0.0.1:{server.port}/healthz/slow"
        async with asyncio.TaskGroup() as group:
            request = group.create_task(quietly(session, url))
            await asyncio.sleep(0.1)
            started = asyncio.get_running_loop().time()
            await server.__aexit__()
            assert asyncio.get_running_loop().time() - started < 2
            request.cancel()


async def quietly(session: aiohttp.ClientSession, url: str) -> None:
    """Ask, whatever comes of it."""
    try:
        await session.get(url)
    except aiohttp.ClientError:
        return


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(("address", "elsewhere"), [("127.0.0.1", False), ("", True)])
async def test_w43_ports_can_be_kept_to_one_address(address: str, elsewhere: bool) -> None:
    """Contract 1.6, 9 W43: with a bindAddress nothing listens on other addresses; without one on all, as Gardener's agent does."""
    for server in (
        health_server(bind_address=address, port=free_port(), checks=Checks()),
        metrics_server(bind_address=address, port=free_port(), metrics=Metrics()),
    ):
        async with server:
            assert await listens("127.0.0.1", server.port)
            assert await listens("127.0.0.2", server.port) is elsewhere


async def listens(host: str, port: int) -> bool:
    """Tell whether somebody accepts connections."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_checks_can_be_left_out() -> None:
    """Contract core 1.5: `?exclude=` leaves checks out; what is no check is said; `?verbose` tells notes, which fail nothing."""
    checks = Checks()
    checks.add_liveness("broken", broken)
    checks.add_note("lag", lambda: "0.001 s")
    async with asking(health(checks)) as session:
        assert (await ask(session, "/healthz"))[0] == 500
        assert await ask(session, "/healthz?exclude=broken") == (200, "ok")
        status, text = await ask(session, "/healthz?exclude=broken&exclude=nothing&verbose")
        assert status == 200
        assert text.splitlines() == [
            "[+]ping ok",
            "[+]broken excluded: ok",
            "warn: nothing cannot be excluded: there is no such check",
            "[i]lag: 0.001 s",
            "healthz check passed",
        ]
