"""Informers hold what they select, are shared, and say how things stand."""

import asyncio

import pytest
import structlog

from agents.core.errors import FatalError
from agents.kube.client import Selector
from agents.kube.errors import Forbidden, Unavailable
from agents.kube.models import NODES, SECRETS, Node
from agents.runtime.cache import Cache
from agents.runtime.reconcile import Request
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running, settle


def put(api: FakeApi, name: str, **labels: str) -> None:
    """Create or replace a node."""
    api.put(NODES, {"metadata": {"name": name, "labels": labels}})


def state(cache: Cache) -> tuple[bool, bool]:
    """Return whether the cache, and its first informer, are synced."""
    return cache.synced, next(iter(cache)).synced


def names(items: list[Node]) -> list[str]:
    """Return the names of objects, sorted."""
    return sorted(item.metadata.name for item in items)


async def test_informer_holds_what_it_selects(api: FakeApi, cache: Cache) -> None:
    """Typed reads answer from the local copy, which follows the server."""
    put(api, "a", color="red")
    put(api, "b", color="blue")
    informer = cache.informer(NODES, label_selector="color=red")
    async with running(cache.run):
        await informer.wait_synced()
        assert names(informer.list()) == ["a"]
        put(api, "c", color="red")
        api.remove(NODES, "a")
        await settle()
        assert names(informer.list()) == ["c"]
        assert informer.get(Request("", "a")) is None
        found = informer.get(Request("", "c"))
        assert found is not None
        assert found.metadata.labels == {"color": "red"}


async def test_informer_in_a_namespace(api: FakeApi, cache: Cache) -> None:
    """Contract 1.5: the Secret informer must list and watch one namespace by metadata.name, as the authorizer allows."""
    informer = cache.informer(SECRETS, namespace="kube-system", field_selector="metadata.name=osc")
    api.put(SECRETS, {"metadata": {"name": "osc", "namespace": "kube-system"}, "data": {"osc.yaml": "aGk="}})
    api.put(SECRETS, {"metadata": {"name": "osc", "namespace": "default"}})
    async with running(cache.run):
        await cache.wait_synced()
    [secret] = informer.list()
    assert secret.data == {"osc.yaml": b"hi"}
    assert {call.path for call in api.calls} == {"/api/v1/namespaces/kube-system/secrets"}
    assert all(("fieldSelector", "metadata.name=osc") in call.query for call in api.calls)


async def test_informers_are_shared(api: FakeApi, cache: Cache) -> None:
    """The same kind and selection give the same informer and one watch; another selection gives another one."""
    first = cache.informer(NODES, field_selector="metadata.name=a")
    assert cache.informer(NODES, field_selector="metadata.name=a") is first
    assert cache.informer(NODES, label_selector="x=y") is not first
    async with running(cache.run):
        await cache.wait_synced()
        assert cache.informer(NODES, field_selector="metadata.name=a") is first
        await settle()
        assert len(api.streams) == 2
    assert len(list(cache)) == 2


async def test_informer_added_while_running_starts(api: FakeApi, cache: Cache) -> None:
    """An informer that is asked for later starts at once; the cache is unsynced until it has listed."""
    put(api, "a")
    async with running(cache.run):
        await cache.wait_synced()
        informer = cache.informer(NODES)
        assert not state(cache)[0]
        await informer.wait_synced()
        assert state(cache)[0]
        assert names(informer.list()) == ["a"]


async def test_handlers_see_each_change(api: FakeApi, cache: Cache) -> None:
    """A handler gets what is known already, then each change, until it unsubscribes."""
    seen: list[tuple[str | None, str | None]] = []

    def handler(old: Node | None, new: Node | None) -> None:
        seen.append((old.metadata.resource_version if old else None, new.metadata.resource_version if new else None))

    put(api, "a")
    informer = cache.informer(NODES)
    async with running(cache.run):
        await informer.wait_synced()
        unsubscribe = informer.add_handler(handler)
        assert seen == [(None, "2")]
        put(api, "a", x="y")
        await settle()
        api.remove(NODES, "a")
        await settle()
        unsubscribe()
        unsubscribe()
        put(api, "b")
        await settle()
    assert seen == [(None, "2"), ("2", "3"), ("4", None)]


async def test_known_version_is_no_change(api: FakeApi, cache: Cache) -> None:
    """An event that brings what is known already tells nobody."""
    put(api, "a")
    informer = cache.informer(NODES)
    seen: list[str] = []
    async with running(cache.run):
        await informer.wait_synced()
        await settle()
        informer.add_handler(lambda old, _new: seen.append("change" if old else "known"))
        stored = api.read(NODES, "a")
        assert stored is not None
        api.streams[0].send("MODIFIED", stored)
        await settle()
    assert seen == ["known"]


async def test_broken_handler_harms_nobody_else(api: FakeApi, cache: Cache) -> None:
    """Contract 9 W5: an exception in one controller's handler must not stop the cache; it is logged."""
    informer = cache.informer(NODES)
    seen: list[str] = []

    def broken(_old: Node | None, _new: Node | None) -> None:
        raise ValueError("boom")

    informer.add_handler(broken)
    informer.add_handler(lambda _old, new: seen.append(new.metadata.name if new else "gone"))
    with structlog.testing.capture_logs() as logs:
        async with running(cache.run):
            await informer.wait_synced()
            put(api, "a")
            put(api, "b")
            await settle()
    assert seen == ["a", "b"]
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["Handler failed"] * 2


async def test_fatal_handler_ends_the_cache(api: FakeApi, cache: Cache) -> None:
    """A fatal error of a handler is passed on."""
    informer = cache.informer(NODES)

    def fatal(_old: Node | None, _new: Node | None) -> None:
        raise FatalError("broken")

    informer.add_handler(fatal)
    put(api, "a")
    with pytest.raises(ExceptionGroup) as caught:
        await cache.run()
    assert caught.group_contains(FatalError)


async def test_select_drops_what_no_longer_matches(api: FakeApi, cache: Cache) -> None:
    """Contract 1.5: once the node name is known the label selector is dropped for a field selector, in the running process."""
    put(api, "a", hostname="here")
    put(api, "b", hostname="here")
    informer = cache.informer(NODES, label_selector="hostname=here")
    gone: list[str] = []
    informer.add_handler(lambda old, new: gone.append(old.metadata.name) if old and not new else None)
    async with running(cache.run):
        await informer.wait_synced()
        informer.select(Selector(field="metadata.name=b"))
        assert state(cache) == (False, False)
        await informer.wait_synced()
        assert names(informer.list()) == ["b"]
        assert gone == ["a"]
        assert cache.informer(NODES, field_selector="metadata.name=b") is informer
        informer.select(Selector(field="metadata.name=b"))
        assert state(cache) == (True, True)


async def test_synced_survives_an_outage(api: FakeApi, cache: Cache) -> None:
    """While the API server is away, what was listed stays readable and the informer stays synced."""
    put(api, "a")
    informer = cache.informer(NODES)
    async with running(cache.run):
        await informer.wait_synced()
        await settle()
        api.go_away()
        await asyncio.sleep(600)
        assert state(cache) == (True, True)
        assert not informer.answered
        assert names(informer.list()) == ["a"]


async def test_unsynced_since_is_the_beginning(api: FakeApi, cache: Cache, clock: FakeClock) -> None:
    """The time since which something has been unsynced does not move until all is synced."""
    api.fail(Forbidden("no", status=403), path="/api/v1/nodes")
    started = clock.monotonic()
    cache.informer(SECRETS, namespace="x")
    seen = [cache.unsynced_since]
    async with running(cache.run):
        await asyncio.sleep(100)
        seen.append(cache.unsynced_since)
        cache.informer(NODES)
        await asyncio.sleep(100)
        seen.append(cache.unsynced_since)
        api.heal()
        await cache.wait_synced()
        seen.append(cache.unsynced_since)
    assert seen == [started, None, started + 100, None]


async def test_recovery_is_told_once_all_are_back(api: FakeApi, cache: Cache) -> None:
    """After an outage subscribers are told when the last informer has what it selects again, and only then, once."""
    told: list[float] = []
    cache.on_recovery(lambda: told.append(asyncio.get_running_loop().time()))
    cache.informer(NODES)
    cache.informer(SECRETS, namespace="x")
    async with running(cache.run):
        await cache.wait_synced()
        await asyncio.sleep(10)
        assert told == []
        api.go_away()
        await asyncio.sleep(60)
        api.heal()
        api.fail(Unavailable("still away"), path="/api/v1/nodes")
        await asyncio.sleep(61)
        assert told == []
        api.heal()
        await asyncio.sleep(61)
        assert len(told) == 1
        api.bookmark()
        await cache.informer(NODES, label_selector="x=y").wait_synced()
        await asyncio.sleep(100)
    assert len(told) == 1


async def test_recovery_waits_for_informers_that_are_not_synced(api: FakeApi, cache: Cache) -> None:
    """While an informer has not listed what it selects, the outage is not over, even if the API server answers."""
    told: list[float] = []
    cache.on_recovery(lambda: told.append(asyncio.get_running_loop().time()))
    cache.informer(NODES)
    secrets = cache.informer(SECRETS, namespace="x")
    async with running(cache.run):
        await cache.wait_synced()
        await settle()
        api.fail(Unavailable("away"), path="/api/v1/nodes")
        for stream in api.streams:
            if stream.call.path == "/api/v1/nodes":
                stream.fail(Unavailable("away"))
        await asyncio.sleep(60)
        api.latency, api.slow_path = 29.0, "/api/v1/namespaces/x/secrets"
        api.heal()
        for number in range(6):
            secrets.select(Selector(label=f"number={number}"))
            await asyncio.sleep(10)
        assert told == []
        await asyncio.sleep(30)
    assert len(told) == 1


async def test_recovery_is_told_after_a_late_start(api: FakeApi, cache: Cache) -> None:
    """An API server that is away when the process starts is an outage, too."""
    told: list[str] = []
    cache.on_recovery(lambda: told.append("told"))
    cache.informer(NODES)
    api.go_away()
    async with running(cache.run):
        await asyncio.sleep(60)
        api.heal()
        await asyncio.sleep(61)
    assert told == ["told"]


async def test_cache_can_be_asked_after_it_ended(api: FakeApi, cache: Cache) -> None:
    """An informer that is asked for when the cache has ended is not started and does not fail."""
    async with running(cache.run):
        await settle()
    assert cache.informer(NODES).list() == []
    assert api.calls == []


async def test_reconnecting_opens_watches_anew_and_loses_nothing(api: FakeApi, cache: Cache) -> None:
    """Contract 7.1: a connection that died in silence is replaced at once; what happened meanwhile is seen, nothing is listed."""
    put(api, "a")
    informer = cache.informer(NODES)
    async with running(cache.run):
        await informer.wait_synced()
        await settle()
        api.streams[-1].silent = True
        put(api, "b")
        await settle()
        assert names(informer.list()) == ["a"]
        cache.reconnect()
        cache.reconnect()
        await settle()
        assert names(informer.list()) == ["a", "b"]
        lists = [call for call in api.requests("GET") if "/nodes" in call.path]
        assert len(lists) == 1


async def test_one_that_is_answered_wakes_the_others(api: FakeApi, cache: Cache) -> None:
    """After an outage nobody waits out a back-off: the first informer that is answered tells all."""
    nodes, secrets = cache.informer(NODES), cache.informer(SECRETS)
    api.fail(Forbidden("no", status=403), path="/api/v1/secrets")
    api.fail(Unavailable("away"), path="/api/v1/nodes")
    async with running(cache.run):
        await asyncio.sleep(600)
        api.heal()
        await nodes.wait_synced()
        await settle()
        assert secrets.synced
