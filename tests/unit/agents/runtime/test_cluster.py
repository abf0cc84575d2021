"""The end of a connection to a cluster: what is still to be told is told, and not for long."""

import asyncio
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import Unavailable
from agents.kube.events import EventRecorder, ObjectReference
from agents.kube.models import EVENTS
from agents.runtime.cache import Cache
from agents.runtime.cluster import LAST_EVENTS_SECONDS, Cluster
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi


@pytest.fixture
def cluster(api: FakeApi, clock: FakeClock) -> Cluster:
    """A cluster without informers."""
    client = Client(transport=api, rng=Random(1))
    recorder = EventRecorder(client=client, instance="host", clock=clock)
    return Cluster(
        name="shoot", client=client, cache=Cache(client=client, clock=clock, rng=Random(1)), recorder=recorder
    )


def tell(cluster: Cluster) -> None:
    """Record an event."""
    node = ObjectReference(kind="Node", name="worker-1")
    cluster.recorder.event(node, event_type="Normal", reason="R", action="A", note="n", controller="c")


async def end(task: "asyncio.Task[None]") -> float:
    """Cancel, and return how long the end took."""
    started = asyncio.get_running_loop().time()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    return asyncio.get_running_loop().time() - started


async def test_events_that_wait_are_told_at_the_end(api: FakeApi, cluster: Cluster) -> None:
    """Contract 6.8: what happened a moment before an orderly end, and a repeat that waits for its turn."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cluster.run())
        await asyncio.sleep(1)
        tell(cluster)
        await asyncio.sleep(1)
        tell(cluster)
        await end(task)
    [event] = api.stored(EVENTS)
    assert event["series"]["count"] == 2


async def test_nobody_waits_for_events_that_cannot_be_told(api: FakeApi, cluster: Cluster) -> None:
    """Contract 1.7: an API server that is away holds the end up by no more than a second, and nothing to tell not at all."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cluster.run())
        await asyncio.sleep(1)
        api.fail(Unavailable("away"))
        tell(cluster)
        await asyncio.sleep(1)
        assert await end(task) == LAST_EVENTS_SECONDS
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cluster.run())
        await asyncio.sleep(1)
        assert await end(task) == 0
