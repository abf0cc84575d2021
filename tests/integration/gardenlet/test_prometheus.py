"""Asking Prometheus servers over real HTTP."""

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from agents.kube.objects import Document
from gardenlet.care.managed_resources import Failure
from gardenlet.care.prometheus import DOWN, ERROR, failures
from tests.lab.controlplane import free_ports

SUFFIX = "prometheus-operated.garden.svc.cluster.local:9090"


class Resolver(AbstractResolver):
    """Leads every name to this host; a name with `gone` in it to a port at which nobody listens."""

    def __init__(self, port: int) -> None:
        self.port, self.nobody = port, free_ports(1)[0]

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the one address."""
        assert port == 9090
        found = self.nobody if "gone" in host else self.port
        return [ResolveResult(hostname=host, host="127.0.0.1", port=found, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        """Keep nothing."""


@asynccontextmanager
async def serving(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[Resolver]:
    """Be all Prometheus servers."""

    async def handle(request: web.Request) -> web.Response:
        assert request.query["query"] == "healthcheck:up"
        return answer(request)

    application = web.Application()
    application.add_routes([web.get("/api/v1/query", handle)])
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_ports(1)[0]
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield Resolver(port)
    finally:
        await runner.cleanup()


def prometheus(name: str, replicas: int = 1) -> Document:
    """Return a Prometheus object."""
    return Document.model_validate({"metadata": {"name": name, "namespace": "garden"}, "spec": {"replicas": replicas}})


def vector(*values: str) -> web.Response:
    """Answer with samples."""
    result = [{"metric": {"task": str(number)}, "value": [1.5, value]} for number, value in enumerate(values)]
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


async def test_every_replica_is_asked() -> None:
    """Contract core 7: each replica by its own name; what is wrong comes in the order of names; well is nothing."""

    def answer(request: web.Request) -> web.Response:
        return vector("1", "0") if request.host.startswith("prometheus-b-1.") else vector("1", "1")

    async with serving(answer) as resolver:
        assert await failures([prometheus("b"), prometheus("a", 3)], resolver=resolver) == []
        found = await failures([prometheus("gone"), prometheus("b", 2), prometheus("a")], resolver=resolver)
    assert [(failure.reason, failure.message.split(":")[0]) for failure in found] == [
        (DOWN, "prometheus-b-1." + SUFFIX.partition(":")[0]),
        (ERROR, "prometheus-gone-0." + SUFFIX.partition(":")[0]),
    ]
    assert await failures([], resolver=None) == []


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (lambda: web.Response(status=503), "refuses the query"),
        (lambda: web.Response(text="{"), "something else than samples"),
        (lambda: web.json_response({"status": "success", "data": {"result": [{"value": [1]}]}}), "else than samples"),
        (lambda: web.Response(text=json.dumps({"data": None})), "something else than samples"),
    ],
)
async def test_an_answer_that_is_none(response: Callable[[], web.Response], named: str) -> None:
    """Contract core 7: errors are a reason of their own, and one line."""
    async with serving(lambda _request: response()) as resolver:
        (failure,) = await failures([prometheus("a")], resolver=resolver)
    assert isinstance(failure, Failure)
    assert failure.reason == ERROR
    assert named in failure.message


async def test_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract core 7: each answer has its time, and then counts as none."""
    monkeypatch.setattr("gardenlet.care.prometheus.DEADLINE", timedelta(seconds=0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (failure,) = await failures([prometheus("a")], resolver=Resolver(silent.getsockname()[1]))
    assert failure.reason == ERROR
    assert "does not answer" in failure.message
