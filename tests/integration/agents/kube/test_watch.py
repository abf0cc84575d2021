"""Watches and the informers on them, against a real kube-apiserver and a network that fails."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from agents.core.clock import SystemClock
from agents.kube.client import Client, Selector
from agents.kube.errors import DeadlineExceeded, Gone, Unavailable
from agents.kube.models import NODES, SECRETS, Node, Secret
from agents.kube.patch import merge
from agents.kube.transport import Call
from agents.kube.watch import READ_DEADLINE_SECONDS, EventType, Watch, WatchEvent, open_watch
from agents.runtime.cache import Cache, Informer
from agents.runtime.reconcile import Request
from tests.integration.agents.conftest import NewClient
from tests.lab.controlplane import ControlPlane
from tests.support.relay import Relay, relay
from tests.support.tasks import running


class Short(Random):
    """Asks for watches of so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(1)
        self.seconds = seconds

    def randint(self, _low: int, _high: int) -> int:
        """Return the length of a watch."""
        return self.seconds


@pytest.fixture
async def way(integration_control_plane: ControlPlane) -> AsyncIterator[Relay]:
    """A relay on the way to the API server."""
    url = urlsplit(integration_control_plane.server)
    async with relay(url.hostname or "", url.port or 0) as instance:
        yield instance


async def eventually(condition: object, seconds: float = 15) -> None:
    """Wait until something is true."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the world outside tells nobody when it changes
            await asyncio.sleep(0.02)


def secrets(client: Client, name: str, read_deadline: float = READ_DEADLINE_SECONDS) -> tuple[Cache, Informer[Secret]]:
    """Return a cache with an informer of one Secret."""
    cache = Cache(client=client, clock=SystemClock(), rng=Random(1), read_deadline=read_deadline)
    return cache, cache.informer(SECRETS, namespace="default", field_selector=f"metadata.name={name}")


def value(informer: Informer[Secret], name: str) -> bytes | None:
    """Return what the informer's Secret holds."""
    found = informer.get(Request("default", name))
    return found.data.get("v") if found else None


async def put(client: Client, name: str, text: str) -> None:
    """Change the Secret."""
    await client.patch(SECRETS, name, merge({"stringData": {"v": text}}), namespace="default")


async def test_events_in_order(client: Client, name: str) -> None:
    """A watch from a list's version gives each later change of what is selected, and nothing else."""
    selector = Selector(field=f"metadata.name={name}")
    listed = await client.list(NODES, selector=selector)
    async with client.watch(NODES, selector=selector, resource_version=listed.resource_version) as watch:
        await client.create(NODES, {"metadata": {"name": f"{name}-other"}})
        await client.create(NODES, {"metadata": {"name": name}})
        await client.patch(NODES, name, merge({"metadata": {"labels": {"a": "b"}}}))
        await client.delete(NODES, name)
        seen: list[tuple[EventType, Node]] = []
        async for event in watch:
            if event.object is not None:
                seen.append((event.type, event.object))
            if len(seen) == 3:
                break
    assert [kind for kind, _ in seen] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
    assert {item.metadata.name for _, item in seen} == {name}
    assert seen[1][1].metadata.labels == {"a": "b"}


async def test_server_ends_the_watch(new_client: NewClient) -> None:
    """The server ends a watch after the time that was asked for, which is no error."""
    client = new_client(rng=Short(1))
    listed = await client.list(NODES)
    async with asyncio.timeout(10):
        async with client.watch(NODES, resource_version=listed.resource_version) as watch:
            assert [event async for event in watch] == []


async def test_bookmark(client: Client, name: str) -> None:
    """A bookmark of the real server has no object but a version from which a watch can be continued.

    The server sends one about every minute. Asked for a streamed list, it sends one after the initial events.
    """
    await client.create(NODES, {"metadata": {"name": name}})
    query = (("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan"))
    call = Call("GET", NODES.collection(), query=query)
    async with asyncio.timeout(10):
        async with open_watch(client._transport, call, Node, resource_version="", rng=Random(1)) as watch:
            events = [event async for event in until_bookmark(watch)]
    assert name in {event.object.metadata.name for event in events[:-1] if event.object}
    assert (events[-1].type, events[-1].object) == (EventType.BOOKMARK, None)
    async with client.watch(NODES, resource_version=events[-1].resource_version) as watch:
        await client.delete(NODES, name)
        assert (await anext(aiter(watch))).type is EventType.DELETED


async def until_bookmark(watch: Watch[Node]) -> AsyncIterator[WatchEvent[Node]]:
    """Give events up to the first bookmark."""
    async for event in watch:
        yield event
        if event.type is EventType.BOOKMARK:
            return


async def test_old_version_is_gone(client: Client, integration_control_plane: ControlPlane) -> None:
    """A version that the server has forgotten, by a restart for example, is told as gone."""
    await asyncio.to_thread(integration_control_plane.stop_apiserver)
    await asyncio.to_thread(integration_control_plane.start_apiserver)

    async def first_event() -> object:
        async with client.watch(NODES, resource_version="1") as watch:
            return await anext(aiter(watch))

    with pytest.raises(Gone) as caught:
        await first_event()
    assert caught.value.status == 410


async def test_informer_lists_again_after_gone(client: Client, name: str) -> None:
    """An informer whose version is gone lists again and goes on."""
    cache, informer = secrets(client, name)
    await client.create(SECRETS, {"metadata": {"name": name}, "stringData": {"v": "1"}}, namespace="default")
    async with running(cache.run):
        await informer.wait_synced()
        reflector = informer._reflector
        reflector._version = "1"
        reflector.select(Selector(field=f"metadata.name={name}"))
        await put(client, name, "2")
        await eventually(lambda: value(informer, name) == b"2")


async def test_watch_is_resumed(new_client: NewClient, name: str) -> None:
    """An informer whose watches end all the time misses nothing and lists only once."""
    client = new_client(rng=Short(1))
    seen: list[bytes] = []
    cache, informer = secrets(client, name)
    informer.add_handler(lambda _old, new: seen.append(new.data["v"]) if new else None)
    await client.create(SECRETS, {"metadata": {"name": name}, "stringData": {"v": "0"}}, namespace="default")
    async with running(cache.run):
        for number in range(1, 12):
            await asyncio.sleep(0.3)
            await put(client, name, str(number))
        await eventually(lambda: value(informer, name) == b"11")
    assert seen[-11:] == [str(number).encode() for number in range(1, 12)]


async def test_informer_survives_a_restart_of_the_server(
    client: Client, integration_control_plane: ControlPlane, name: str
) -> None:
    """Contract 4.8: an API server that goes away and comes back must end nothing; the informer catches up by itself."""
    cache, informer = secrets(client, name)
    told: list[str] = []
    cache.on_recovery(lambda: told.append("recovered"))
    await client.create(SECRETS, {"metadata": {"name": name}, "stringData": {"v": "1"}}, namespace="default")
    async with running(cache.run):
        await informer.wait_synced()
        await asyncio.to_thread(integration_control_plane.kill_apiserver)
        await eventually(lambda: not informer.answered)
        assert (informer.synced, value(informer, name)) == (True, b"1")
        with pytest.raises(Unavailable):
            await put(client, name, "2")
        await asyncio.to_thread(integration_control_plane.start_apiserver)
        await put(client, name, "2")
        await eventually(lambda: value(informer, name) == b"2", seconds=40)
        await eventually(lambda: told == ["recovered"])


async def test_half_open_watch_is_noticed(client: Client, new_client: NewClient, way: Relay, name: str) -> None:
    """Contract 9 W25: when packets of an established connection are dropped, the watch must notice within its read deadline."""
    await client.create(SECRETS, {"metadata": {"name": name}, "stringData": {"v": "1"}}, namespace="default")
    cache, informer = secrets(new_client(server=f"https://127.0.0.1:{way.port}"), name, read_deadline=2.0)
    async with running(cache.run):
        await eventually(lambda: value(informer, name) == b"1")
        await asyncio.sleep(0.2)
        assert way.silence() >= 1
        before = way.accepted
        await put(client, name, "2")
        await eventually(lambda: value(informer, name) == b"2", seconds=6)
        assert way.accepted > before


async def test_the_kernel_looks_after_a_silent_watch(new_client: NewClient, way: Relay, name: str) -> None:
    """Contract 9 W25: the connection of a watch has TCP keep-alive, whose timer the kernel shows."""
    cache, informer = secrets(new_client(server=f"https://127.0.0.1:{way.port}"), name)
    async with running(cache.run):
        await informer.wait_synced()
        await eventually(lambda: way.accepted >= 1 and "02" in timers_towards(way.port))


def timers_towards(port: int) -> set[str]:
    """Return the timers of established connections to a local port: 00 none, 01 retransmission, 02 keep-alive."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[5].partition(":")[0] for row in rows if int(row[2].partition(":")[2], 16) == port and row[3] == "01"}


async def test_half_open_request_ends_at_its_deadline(new_client: NewClient, way: Relay) -> None:
    """Contract 9 W25: a request on a half-open connection must end at its deadline; after a reset the next one works."""
    client = new_client(server=f"https://127.0.0.1:{way.port}")
    await client.get_raw("/readyz")
    assert way.silence() == 1
    with pytest.raises(DeadlineExceeded):
        await client.get_raw("/readyz", deadline=0.5)
    await client.reset_connections()
    assert await client.get_raw("/readyz", deadline=5) == b"ok"
    assert way.accepted == 2


async def test_cut_watch_is_resumed(client: Client, new_client: NewClient, way: Relay, name: str) -> None:
    """A connection that is reset in the middle of a watch is replaced; the attempts stay few."""
    await client.create(SECRETS, {"metadata": {"name": name}, "stringData": {"v": "1"}}, namespace="default")
    cache, informer = secrets(new_client(server=f"https://127.0.0.1:{way.port}"), name)
    async with running(cache.run):
        await eventually(lambda: value(informer, name) == b"1")
        await asyncio.sleep(0.2)
        before = way.accepted
        way.cut()
        await put(client, name, "2")
        await eventually(lambda: value(informer, name) == b"2")
        assert 1 <= way.accepted - before <= 2
