"""What the Prometheus servers of a seed say about its health: the series `healthcheck:up` of each replica.

Only with the gate `PrometheusHealthChecks`. Source: gardener pkg/utils/kubernetes/health/checker/checker.go,
pkg/utils/kubernetes/health/monitoring.go (contract core 7).
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from agents.core.errors import RetriableError
from agents.kube.objects import Document
from agents.kube.resource import Resource
from gardenlet.care.managed_resources import Failure

PROMETHEUSES = Resource("monitoring.coreos.com", "v1", "prometheuses", "Prometheus", namespaced=True, model=Document)
SELECTOR = "health-check-by=gardenlet"
DOWN = "PrometheusHealthCheckDown"
ERROR = "PrometheusHealthCheckError"
DEADLINE = timedelta(seconds=5)
QUERY = "healthcheck:up"
_LONGEST_ANSWER_BYTES = 1024 * 1024
_OK = 200


class _Sample(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    value: tuple[float, str]


class _Vector(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    result: tuple[_Sample, ...]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    data: _Vector


class NoAnswer(RetriableError):
    """A Prometheus does not answer, or not with samples."""


def replicas(item: Document) -> list[str]:
    """Return where the replicas of a Prometheus object answer: `host:port`."""
    spec: dict[str, Any] = item.content.get("spec") or {}
    service = spec.get("serviceName") or "prometheus-operated"
    name, namespace = item.metadata.name, item.metadata.namespace
    # Absent means one, zero means none.
    number = 1 if spec.get("replicas") is None else int(spec["replicas"])
    return [f"prometheus-{name}-{index}.{service}.{namespace}.svc.cluster.local:9090" for index in range(number)]


async def failures(items: Iterable[Document], *, resolver: aiohttp.abc.AbstractResolver | None = None) -> list[Failure]:
    """Ask every replica, all at the same time; returns what is wrong, by the names of the objects and their replicas.

    Args:
        items: Prometheus objects.
        resolver: finds addresses; None for the system's.
    """
    hosts = [host for item in sorted(items, key=lambda item: item.metadata.name) for host in replicas(item)]
    connector = aiohttp.TCPConnector(resolver=resolver, force_close=True)
    timeout = aiohttp.ClientTimeout(total=DEADLINE.total_seconds())
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        asked = [group.create_task(_failure(session, host)) for host in hosts]
    return [failure for task in asked if (failure := task.result()) is not None]


async def _failure(session: aiohttp.ClientSession, host: str) -> Failure | None:
    try:
        samples = await _ask(session, host)
    except NoAnswer as error:
        return Failure(ERROR, f"{host}: {error}")
    return judge(host, samples)


def judge(host: str, samples: Sequence[str]) -> Failure | None:
    """Return what is wrong with the samples of a replica, None if all of them are 1."""
    if not samples:
        return Failure(DOWN, f"{host}: there is no sample of {QUERY}")
    if "0" in samples:
        return Failure(DOWN, f"{host}: {QUERY} is 0")
    if others := sorted({sample for sample in samples if sample != "1"}):
        return Failure(DOWN, f"{host}: {QUERY} is neither 0 nor 1: {', '.join(others)}")
    return None


async def _ask(session: aiohttp.ClientSession, host: str) -> list[str]:
    url = f"http://{host}/api/v1/query"
    try:
        async with session.get(url, params={"query": QUERY}, allow_redirects=False) as response:
            body = await response.content.read(_LONGEST_ANSWER_BYTES)
            if response.status != _OK:
                raise NoAnswer("Prometheus refuses the query", status=response.status)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NoAnswer("Prometheus does not answer", problem=str(error) or type(error).__name__) from error
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as error:
        raise NoAnswer("Prometheus answers with something else than samples") from error
    return [sample.value[1] for sample in answer.data.result]
