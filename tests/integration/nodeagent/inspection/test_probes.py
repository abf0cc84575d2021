"""The running agent's own word on its heartbeat, from real metrics over real HTTP."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from agents.runtime.metrics import Metrics
from agents.runtime.server import HttpServer, metrics_server
from nodeagent.config import NodeAgentConfiguration
from nodeagent.inspection.probes import NotAnswered, metrics_url, read_lease_age
from tests.unit.nodeagent.test_config import MINIMAL

NAME = "gardener_node_agent_lease_age_seconds"


def config(address: str, port: int) -> NodeAgentConfiguration:
    """Return a configuration with these metrics."""
    server = {"metrics": {"bindAddress": address, "port": port}}
    return NodeAgentConfiguration.model_validate({**MINIMAL, "server": server})


@pytest.fixture
async def metrics() -> AsyncIterator[tuple[Metrics, str]]:
    """The metrics of an agent, and where they are."""
    found = Metrics()
    async with metrics_server(bind_address="127.0.0.1", port=0, metrics=found) as server:
        yield found, f"http://127.0.0.1:{server.port}/metrics"


async def test_the_age_is_read(metrics: tuple[Metrics, str]) -> None:
    """The gauge that the agent shows is the age."""
    metrics[0].gauge(NAME, "Age.", lambda: 12.5)
    assert await read_lease_age(metrics[1]) == 12.5


async def test_before_the_first_heartbeat_there_is_none(metrics: tuple[Metrics, str]) -> None:
    """An agent that has not renewed its Lease shows no value."""
    metrics[0].gauge(NAME, "Age.", lambda: None)
    assert await read_lease_age(metrics[1]) is None


@pytest.mark.parametrize("status", [404, 302])
async def test_something_else_on_the_port_is_no_answer(status: int) -> None:
    """Whoever else listens there is not taken for the agent, and not followed elsewhere."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "/other"})

    async def other(_request: web.Request) -> web.Response:
        return web.Response(text=f"{NAME} 1.0\n")

    routes = [web.get("/metrics", answer), web.get("/other", other)]
    async with HttpServer(name="x", bind_address="127.0.0.1", port=0, routes=routes) as server:
        assert await read_lease_age(f"http://127.0.0.1:{server.port}/other") == 1.0
        with pytest.raises(NotAnswered):
            await read_lease_age(f"http://127.0.0.1:{server.port}/metrics")


async def test_nobody_on_the_port_is_no_answer() -> None:
    """A connection that is refused is told as such."""
    with pytest.raises(NotAnswered):
        await read_lease_age("http://127.0.0.1:1/metrics")


def test_the_place_is_the_configured_one_seen_from_here() -> None:
    """Contract 1.6: port 2752 unless configured; all interfaces means loopback for us."""
    assert metrics_url(None) == "http://127.0.0.1:2752/metrics"
    assert metrics_url(config("0.0.0.0", 0)) == "http://127.0.0.1:2752/metrics"
    assert metrics_url(config("192.0.2.7", 99)) == "http://192.0.2.7:99/metrics"
    assert metrics_url(config("::", 99)) == "http://[::1]:99/metrics"
    assert metrics_url(config("2001:db8::1", 99)) == "http://[2001:db8::1]:99/metrics"
