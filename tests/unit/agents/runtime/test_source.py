"""Sources put keys on a queue."""

import asyncio
from datetime import timedelta
from random import Random

from agents.kube.models import NODES, Node
from agents.runtime.cache import Cache
from agents.runtime.predicate import created, updated
from agents.runtime.reconcile import Request
from agents.runtime.source import ChannelSource, KindSource, StartupSource, fixed_key
from agents.runtime.workqueue import WorkQueue
from tests.support.fake_api import FakeApi
from tests.support.tasks import running, settle

A = Request("", "a")
B = Request("", "b")


def new_queue() -> WorkQueue[Request]:
    """Return an empty queue."""
    return WorkQueue(rng=Random(1))


async def take_all(queue: WorkQueue[Request]) -> list[Request]:
    """Take all keys that are ready."""
    taken = []
    while len(queue):
        taken.append(await queue.get())
        queue.done(taken[-1])
    return taken


async def test_kind_source_queues_existing_and_changed_objects(api: FakeApi, cache: Cache) -> None:
    """What is known when the source starts counts as appearing; later changes and removals follow."""
    api.put(NODES, {"metadata": {"name": "a"}})
    source = KindSource(cache.informer(NODES))
    queue = new_queue()
    async with running(cache.run):
        await cache.wait_synced()
        source.start(queue)
        assert await take_all(queue) == [A]
        api.put(NODES, {"metadata": {"name": "b"}})
        await settle()
        assert await take_all(queue) == [B]
        api.remove(NODES, "a")
        await settle()
        assert await take_all(queue) == [A]


async def test_kind_source_filters(api: FakeApi, cache: Cache) -> None:
    """A change that the predicate does not accept queues nothing."""
    source = KindSource(cache.informer(NODES), predicate=created)
    queue = new_queue()
    source.start(queue)
    async with running(cache.run):
        await source.wait_ready()
        api.put(NODES, {"metadata": {"name": "a"}})
        await settle()
        assert await take_all(queue) == [A]
        api.put(NODES, {"metadata": {"name": "a", "labels": {"x": "y"}}})
        await settle()
        assert await take_all(queue) == []


async def test_kind_source_maps_old_and_new(api: FakeApi, cache: Cache) -> None:
    """An update queues the keys of the old and of the new object, each once."""
    owner = lambda item: [Request("", "always"), Request("", item.metadata.labels["owner"])]  # noqa: E731
    source = KindSource(cache.informer(NODES), predicate=updated, mapper=owner)
    queue = new_queue()
    source.start(queue)
    api.put(NODES, {"metadata": {"name": "a", "labels": {"owner": "old"}}})
    async with running(cache.run):
        await source.wait_ready()
        api.put(NODES, {"metadata": {"name": "a", "labels": {"owner": "new"}}})
        await settle()
        assert await take_all(queue) == [Request("", "always"), Request("", "old"), Request("", "new")]


async def test_kind_source_delays(api: FakeApi, cache: Cache) -> None:
    """A change for which a delay is asked is queued after it, one without at once."""

    def delay(old: Node | None, _new: Node | None) -> timedelta:
        return timedelta(0) if old is None else timedelta(seconds=30)

    source = KindSource(cache.informer(NODES), mapper=fixed_key(B), delay=delay)
    queue = new_queue()
    source.start(queue)
    async with running(cache.run):
        await source.wait_ready()
        api.put(NODES, {"metadata": {"name": "a"}})
        await settle()
        assert await take_all(queue) == [B]
        api.put(NODES, {"metadata": {"name": "a", "labels": {"x": "y"}}})
        await asyncio.sleep(29)
        assert await take_all(queue) == []
        await asyncio.sleep(2)
        assert await take_all(queue) == [B]


async def test_kind_source_stops(api: FakeApi, cache: Cache) -> None:
    """A stopped source queues nothing more; stopping twice is harmless."""
    source = KindSource(cache.informer(NODES))
    queue = new_queue()
    source.start(queue)
    source.stop()
    source.stop()
    async with running(cache.run):
        await source.wait_ready()
        api.put(NODES, {"metadata": {"name": "a"}})
        await settle()
        assert await take_all(queue) == []


async def test_startup_source_queues_once() -> None:
    """The given keys are queued when the source starts, and nothing after that."""
    source = StartupSource([A, B])
    queue = new_queue()
    source.start(queue)
    await source.wait_ready()
    assert await take_all(queue) == [A, B]
    source.stop()


async def test_channel_source_passes_on() -> None:
    """Contract 7.9: sending must not wait for the receiver to have started; what was sent before is kept, each key once."""
    source = ChannelSource()
    source.send(A)
    source.send(A)
    queue = new_queue()
    source.start(queue)
    await source.wait_ready()
    assert await take_all(queue) == [A]
    source.send(B)
    assert await take_all(queue) == [B]
    source.stop()
    source.start(queue)
    assert await take_all(queue) == []


async def test_channel_source_keeps_what_is_sent_while_stopped() -> None:
    """Between a stop and the next start nothing is lost."""
    source = ChannelSource()
    source.start(new_queue())
    source.stop()
    source.send(A)
    queue = new_queue()
    source.start(queue)
    assert await take_all(queue) == [A]
