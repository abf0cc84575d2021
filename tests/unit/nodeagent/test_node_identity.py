"""Which Node is ours: found by host name, kept by name."""

import asyncio
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.models import NODES, Node
from agents.runtime.cache import Cache
from agents.runtime.reconcile import Request
from agents.runtime.workqueue import WorkQueue
from nodeagent.host.node_identity import NodeIdentity, OwnNodeSource, hostname_selector
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running


class Fleet:
    """Nodes, and the identity of the one with host name `worker-1`."""

    def __init__(self, clock: FakeClock) -> None:
        self.api = FakeApi()
        self.cache = Cache(client=Client(transport=self.api, rng=Random(1)), clock=clock, rng=Random(1))
        self.nodes = self.cache.informer(NODES, label_selector=hostname_selector("worker-1").label)
        self.rivals: list[list[str]] = []
        self.identity = NodeIdentity(
            hostname="worker-1",
            nodes=self.nodes,
            ambiguous=lambda nodes: self.rivals.append(sorted(node.metadata.name for node in nodes)),
        )

    def register(self, name: str, hostname: str = "worker-1") -> None:
        """Create or change a Node."""
        self.api.put(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": hostname}}})


@pytest.fixture
def fleet(clock: FakeClock) -> Fleet:
    """An empty cluster."""
    return Fleet(clock)


async def test_the_node_is_found_when_it_appears(fleet: Fleet) -> None:
    """Contract 1.4, 1.8: unknown until a Node with our host name shows up, then known in the running process."""
    fleet.register("other", "worker-2")
    async with running(fleet.cache.run):
        await fleet.nodes.wait_synced()
        fleet.identity.start()
        assert (fleet.identity.name, fleet.identity.node) == (None, None)
        fleet.register("ip-10-0-0-1")
        await asyncio.sleep(1)
        assert fleet.identity.name == "ip-10-0-0-1"
        node = fleet.identity.node
        assert node is not None
        assert node.metadata.name == "ip-10-0-0-1"


async def test_from_then_on_only_this_node_is_watched(fleet: Fleet) -> None:
    """Contract 1.5: the label selector is dropped for the field selector metadata.name; a changed label takes nothing away."""
    fleet.register("node-1")
    async with running(fleet.cache.run):
        await fleet.nodes.wait_synced()
        fleet.identity.start()
        await asyncio.sleep(1)
        queries = [dict(call.query) for call in fleet.api.requests("GET", watch=True)]
        assert queries[-1]["fieldSelector"] == "metadata.name=node-1"
        assert "labelSelector" not in queries[-1]
        fleet.register("node-1", "renamed")
        fleet.register("node-2")
        await asyncio.sleep(1)
        assert fleet.identity.name == "node-1"
        assert fleet.identity.node is not None


async def test_a_node_that_is_gone_is_none_and_comes_back_under_its_name(fleet: Fleet) -> None:
    """Contract 6.2: a deleted Node leaves the name and no object; when it is registered again it is ours again."""
    fleet.register("node-1")
    async with running(fleet.cache.run):
        await fleet.nodes.wait_synced()
        fleet.identity.start()
        await asyncio.sleep(1)
        fleet.api.remove(NODES, "node-1")
        await asyncio.sleep(1)
        assert (fleet.identity.name, fleet.identity.node) == ("node-1", None)
        fleet.register("node-1")
        await asyncio.sleep(1)
        assert fleet.identity.node is not None


async def test_two_nodes_with_our_host_name_are_nobodys_until_one_is_gone(fleet: Fleet) -> None:
    """Contract 1.4: two Nodes with our host name do not end the process: said once for the same ones, resolved when one is gone."""
    fleet.register("node-1")
    fleet.register("node-2")
    async with running(fleet.cache.run):
        await fleet.nodes.wait_synced()
        fleet.identity.start()
        fleet.register("node-1")
        await asyncio.sleep(1)
        assert (fleet.identity.name, fleet.identity.node) == (None, None)
        assert fleet.rivals == [["node-1", "node-2"]]
        fleet.register("node-3")
        await asyncio.sleep(1)
        assert fleet.rivals[1:] == [["node-1", "node-2", "node-3"]]
        fleet.api.remove(NODES, "node-1")
        fleet.api.remove(NODES, "node-3")
        await asyncio.sleep(1)
        assert fleet.identity.name == "node-2"
        assert fleet.identity.node is not None


async def test_changes_of_our_node_alone_become_keys(fleet: Fleet) -> None:
    """Contract 1.5: controllers of the Node see ours appear, whenever it becomes known, change and go; and no other one."""
    queue: WorkQueue[Request] = WorkQueue(rng=Random(1))
    changes: list[tuple[bool, bool]] = []

    def note(old: Node | None, new: Node | None, /) -> bool:
        changes.append((old is not None, new is not None))
        return True

    fleet.register("node-1")
    fleet.register("node-2")
    async with running(fleet.cache.run):
        await fleet.nodes.wait_synced()
        fleet.identity.start()
        source = OwnNodeSource(fleet.identity, predicate=note)
        source.start(queue)
        await source.wait_ready()
        fleet.register("node-1")
        await asyncio.sleep(1)
        assert changes == []
        fleet.api.remove(NODES, "node-2")
        await asyncio.sleep(1)
        fleet.register("node-1", "renamed")
        await asyncio.sleep(1)
        fleet.api.remove(NODES, "node-1")
        await asyncio.sleep(1)
        assert changes == [(False, True), (True, True), (True, False)]
        assert (await queue.get(), len(queue)) == (Request("", "node-1"), 0)
        source.stop()
        fleet.register("node-1")
        await asyncio.sleep(1)
        assert len(changes) == 3
        late = OwnNodeSource(fleet.identity, predicate=note)
        late.start(queue)
        assert changes[3:] == [(False, True)]


async def test_a_second_node_later_does_not_change_who_we_are(fleet: Fleet) -> None:
    """Contract 1.5: once the name is known another Node with our host name label is not even seen."""
    fleet.register("node-1")
    async with running(fleet.cache.run):
        await fleet.nodes.wait_synced()
        fleet.identity.start()
        await asyncio.sleep(1)
        fleet.register("node-2")
        await asyncio.sleep(1)
        assert [node.metadata.name for node in fleet.nodes.list()] == ["node-1"]
