"""Leader election in virtual time, on an API server in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import structlog

from agents.core.errors import FatalError
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.errors import Conflict, DeadlineExceeded, Forbidden, Unavailable
from agents.kube.events import EventRecorder
from agents.kube.models import LEASES, NODES
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Controller, Environment
from agents.runtime.election import ElectionTimes, LeaderElector, new_identity
from agents.runtime.health import InformerSync
from agents.runtime.manager import Manager
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import StartupSource
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import settle

NAMESPACE, NAME = "garden", "gardenlet-leader-election"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"


class Replica:
    """One candidate, and when it led."""

    def __init__(self, elector: LeaderElector, shutdown: Shutdown) -> None:
        self.elector = elector
        self.shutdown = shutdown
        self.began: list[float] = []
        self.ended: list[float] = []

    def led_from(self) -> float | None:
        """Return when it began to lead."""
        return self.began[0] if self.began else None

    def led_until(self) -> float | None:
        """Return when it ceased to lead."""
        return self.ended[0] if self.ended else None

    def lost(self) -> bool:
        """Return whether it lost leadership."""
        return (self.shutdown.requested, self.shutdown.failed) == ("leadership lost", True)

    async def run(self) -> None:
        """Be a candidate until cancelled, or until leadership is lost."""
        loop = asyncio.get_running_loop()
        async with self.elector.leading():
            self.began.append(loop.time())
            try:
                await self.shutdown.wait()
            finally:
                self.ended.append(loop.time())


NewReplica = Callable[..., Replica]


@pytest.fixture
def new_replica(api: FakeApi, clock: FakeClock) -> NewReplica:
    """Makes candidates."""

    def make(identity: str, *, seed: int = 1, on: FakeApi | None = None) -> Replica:
        shutdown = Shutdown()
        elector = LeaderElector(
            client=Client(transport=on or api, rng=Random(seed)),
            namespace=NAMESPACE,
            name=NAME,
            identity=identity,
            shutdown=shutdown,
            clock=clock,
            rng=Random(seed),
        )
        return Replica(elector, shutdown)

    return make


@asynccontextmanager
async def candidate(replica: Replica) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a candidate as long as the block, or until its task is cancelled."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(replica.run())
        try:
            yield task
        finally:
            task.cancel()


def lease(api: FakeApi) -> dict[str, Any]:
    """Return the Lease's spec."""
    found = api.read(LEASES, NAME, NAMESPACE)
    assert found is not None
    spec: dict[str, Any] = found["spec"]
    return spec


def held_by(
    api: FakeApi, identity: str, *, duration: int | None = 15, renew: str = "2026-01-01T00:00:00.000000Z"
) -> None:
    """Put a Lease of somebody who is not there."""
    spec = {"holderIdentity": identity, "renewTime": renew, "leaseTransitions": 7, "acquireTime": renew}
    if duration is not None:
        spec["leaseDurationSeconds"] = duration
    api.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})


async def end(task: "asyncio.Task[None]") -> None:
    """Stop a candidate in order."""
    task.cancel()
    await asyncio.wait([task])


async def test_without_a_lease_the_first_creates_it(api: FakeApi, new_replica: NewReplica, clock: FakeClock) -> None:
    """Contract core 1.3: nobody leads: the Lease is created at once, for 15 s, with whole identity and both times."""
    replica = new_replica("host_uid")
    async with candidate(replica):
        await settle()
        assert replica.led_from() == 1000
        assert lease(api) == {
            "holderIdentity": "host_uid",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }


async def test_renewed_every_two_seconds_by_put(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: a leader renews every 2 s, by PUT with the resource version and never by PATCH, and reads nothing."""
    async with candidate(new_replica("a")):
        await asyncio.sleep(60.5)
        assert lease(api)["renewTime"] == "2026-01-01T00:01:00.000000Z"
        assert lease(api)["acquireTime"] == "2026-01-01T00:00:00.000000Z"
        assert [len(api.requests(method)) for method in ("GET", "POST", "PUT", "PATCH")] == [1, 1, 30, 0]
        assert api.streams == []


async def test_what_others_wrote_into_the_lease_survives(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): labels, annotations and fields that we do not know stay in the Lease."""
    held_by(api, "")
    found = api.read(LEASES, NAME, NAMESPACE)
    assert found is not None
    api.put(
        LEASES,
        {
            "metadata": {**found["metadata"], "labels": {"a": "b"}, "finalizers": ["x/y"]},
            "spec": {**found["spec"], "strategy": "OldestEmulationVersion"},
        },
    )
    async with candidate(new_replica("a")) as task:
        await asyncio.sleep(10)
        await end(task)
    found = api.read(LEASES, NAME, NAMESPACE)
    assert found is not None
    assert (found["metadata"]["labels"], found["metadata"]["finalizers"]) == ({"a": "b"}, ["x/y"])
    assert found["spec"]["strategy"] == "OldestEmulationVersion"


async def test_released_on_stop(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: a clean stop empties the holder and sets the duration to 1 s; transitions stay."""
    held_by(api, "")
    replica = new_replica("a")
    async with candidate(replica) as task:
        await asyncio.sleep(5)
        await end(task)
        assert lease(api) == {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "acquireTime": "2026-01-01T00:00:05.000000Z",
            "renewTime": "2026-01-01T00:00:05.000000Z",
            "leaseTransitions": 8,
        }
    assert not replica.elector.is_leader


async def test_follower_takes_over_the_moment_it_is_given_back(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: an empty holder is free at once, whatever the duration says; a follower that watches wakes then."""
    first, second = new_replica("a"), new_replica("b", seed=2)
    async with candidate(first) as leader, candidate(second):
        await asyncio.sleep(3601.25)
        assert second.led_from() is None
        await end(leader)
        await settle()
        assert second.led_from() == first.led_until() == 4601.25
        assert (lease(api)["holderIdentity"], lease(api)["leaseTransitions"]) == ("b", 1)


async def test_follower_takes_over_exactly_at_expiry(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: a Lease that nobody renews is taken 15 s after it was seen to change, not later and not earlier."""
    held_by(api, "dead")
    follower = new_replica("b")
    async with candidate(follower):
        await asyncio.sleep(14.999)
        assert follower.led_from() is None
        await asyncio.sleep(0.002)
        assert follower.led_from() == pytest.approx(1015, abs=1e-6)
        assert lease(api)["leaseTransitions"] == 8


@pytest.mark.parametrize("renew", ["2020-01-01T00:00:00.000000Z", "2030-01-01T00:00:00.000000Z"])
async def test_wall_clocks_are_never_compared(api: FakeApi, new_replica: NewReplica, renew: str) -> None:
    """Contract core 1.3: what the holder's clock wrote decides nothing, only how long we have seen it unchanged."""
    held_by(api, "dead", renew=renew)
    follower = new_replica("b")
    async with candidate(follower):
        await asyncio.sleep(16)
        assert follower.led_from() == pytest.approx(1015, abs=1e-6)


async def test_the_holders_duration_counts(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: it is the duration in the Lease that a follower waits for; without one it is its own."""
    held_by(api, "dead", duration=40)
    async with candidate(new_replica("b")):
        await asyncio.sleep(39.9)
        assert lease(api)["holderIdentity"] == "dead"
        held_by(api, "dead", duration=None)
        await asyncio.sleep(14.9)
        assert lease(api)["holderIdentity"] == "dead"
        await asyncio.sleep(0.2)
        assert lease(api)["holderIdentity"] == "b"


async def test_a_touched_lease_is_not_a_renewed_one(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: an annotation on the Lease does not keep a dead leader in office."""
    held_by(api, "dead")
    follower = new_replica("b")
    async with candidate(follower):
        for number in range(14):
            await asyncio.sleep(1)
            found = api.read(LEASES, NAME, NAMESPACE)
            assert found is not None
            api.put(
                LEASES, {"metadata": {**found["metadata"], "annotations": {"n": str(number)}}, "spec": found["spec"]}
            )
        await asyncio.sleep(1.1)
        assert follower.led_from() == pytest.approx(1015, abs=1e-6)


async def test_same_identity_takes_over_at_once(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): a container that is started again in the same Pod waits for nobody; acquireTime stays."""
    held_by(api, "host_uid")
    replica = new_replica("host_uid")
    async with candidate(replica):
        await settle()
        assert replica.led_from() == 1000
        assert (lease(api)["leaseTransitions"], lease(api)["acquireTime"]) == (7, "2026-01-01T00:00:00.000000Z")


@pytest.mark.parametrize("other", ["host_uid2", "host_ui", "host_", "host", "HOST_uid", " host_uid"])
async def test_only_the_exact_identity_may(api: FakeApi, new_replica: NewReplica, other: str) -> None:
    """Contract core 1.3 (ours): an identity that only resembles ours is somebody else's."""
    held_by(api, other)
    replica = new_replica("host_uid")
    async with candidate(replica):
        await asyncio.sleep(14.9)
        assert replica.led_from() is None


def test_identity() -> None:
    """Contract core 1.3 (ours): `<hostname>_<POD_UID>` where it is set, else `<hostname>_<random uuid>`, another each time."""
    rng = Random(1)
    assert new_identity(hostname="h", pod_uid="u", rng=rng) == "h_u"
    first, second = (new_identity(hostname="h", pod_uid="", rng=rng) for _ in range(2))
    assert first != second
    assert first.startswith("h_")
    assert len(first) == 38


async def test_follower_watches_one_lease_and_polls_nothing(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): a follower holds one watch of one Lease; six hours cost it only the watches that end."""
    leader, follower = new_replica("a"), new_replica("b", seed=2)
    async with candidate(leader):
        await settle()
        before = len(api.calls)
        own = FakeCalls(api)
        async with candidate(follower):
            await asyncio.sleep(6 * 3600)
            assert leader.led_from() is not None
            assert follower.led_from() is None
            assert follower.shutdown.requested is None
            assert len(api.streams) == 1
            assert dict(api.streams[0].call.query)["fieldSelector"] == f"metadata.name={NAME}"
            assert own.count("POST", "PATCH") == 0
            # two reads at the start, then a watch every 5 to 10 minutes
            assert len(api.calls) - before - own.count("PUT") < 2 + 6 * 12 + 2
    assert leader.shutdown.requested is None


class FakeCalls:
    """Counts the requests from now on."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._before = len(api.calls)

    def count(self, *methods: str) -> int:
        """Return how many requests of these methods there were."""
        return sum(call.method in methods for call in self._api.calls[self._before :])


async def test_leader_that_cannot_renew_stops_before_anybody_else_leads(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: 10 s after the last good renewal the leader asks for its end, 5 s before the Lease is free."""
    own = FakeApi()
    own._objects, own._history = api._objects, api._history
    leader, follower = new_replica("a", on=own), new_replica("b", seed=2)
    async with candidate(leader), candidate(follower):
        await asyncio.sleep(20.5)  # last renewal at 20
        own.go_away()
        await asyncio.sleep(9.4)
        assert not leader.lost()
        await asyncio.sleep(0.2)
        assert leader.lost()
        assert leader.led_until() == pytest.approx(1030)
        await asyncio.sleep(30)
        assert follower.led_from() is not None
        assert (follower.led_from() or 0) >= 1035
        assert lease(api)["holderIdentity"] == "b"


async def test_request_that_hangs_is_given_up_in_time_for_another(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): a connection that died silently costs one attempt of 5 s; the next one is a fresh one."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        api.fail(DeadlineExceeded("no answer in time"), times=1, method="PUT")
        await asyncio.sleep(10)
        assert api.resets == 1
        assert replica.shutdown.requested is None
        assert lease(api)["renewTime"] == "2026-01-01T00:00:12.000000Z"


@pytest.mark.parametrize("error", [Unavailable("gone"), DeadlineExceeded("slow"), Forbidden("no", status=403)])
async def test_failures_within_the_deadline_are_survived(
    api: FakeApi, new_replica: NewReplica, error: Exception
) -> None:
    """Contract core 1.3: an outage that is shorter than the renew deadline costs nothing, whatever its error."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(0.5)
        api.fail(error)  # type: ignore[arg-type]
        await asyncio.sleep(8)
        api.heal()
        await asyncio.sleep(3)
        assert replica.shutdown.requested is None
        assert lease(api)["renewTime"] >= "2026-01-01T00:00:10"


async def test_conflict_of_a_leader_is_ordinary(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: somebody who touches the Lease without taking it delays nothing."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        found = api.read(LEASES, NAME, NAMESPACE)
        assert found is not None
        api.put(LEASES, {"metadata": {**found["metadata"], "labels": {"touched": "yes"}}, "spec": found["spec"]})
        await asyncio.sleep(1.5)
        assert lease(api)["renewTime"] == "2026-01-01T00:00:04.000000Z"
        found = api.read(LEASES, NAME, NAMESPACE)
        assert found is not None
        assert found["metadata"]["labels"] == {"touched": "yes"}


async def test_lost_answer_of_a_renewal_is_ordinary(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: a renewal that arrived although its answer did not makes the next one a conflict, and no more."""
    replica = new_replica("a")
    original = api.request
    lose = True

    async def request(call: Any, **deadlines: float) -> bytes:
        nonlocal lose
        answer = await original(call, **deadlines)
        if call.method == "PUT" and lose:
            lose = False
            raise Unavailable("connection broke")
        return answer

    api.request = request  # type: ignore[method-assign]
    async with candidate(replica):
        await asyncio.sleep(11)
        assert not lose
        assert replica.shutdown.requested is None
        assert lease(api)["renewTime"] == "2026-01-01T00:00:10.000000Z"


async def test_leader_that_was_replaced_gives_up_at_once(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): somebody else's name in the Lease ends leadership at the next renewal; it is not given back."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        held_by(api, "thief")
        await asyncio.sleep(1.1)
        assert replica.shutdown.requested == "leadership lost"
        await settle()
        assert lease(api)["holderIdentity"] == "thief"


async def test_leader_that_was_replaced_and_freed_gives_up(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): an empty Lease that somebody else held meanwhile is not simply taken back."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        held_by(api, "")  # with seven transitions
        await asyncio.sleep(1.1)
        assert replica.shutdown.requested == "leadership lost"


@pytest.mark.parametrize("change", ["emptied", "deleted"])
async def test_lease_that_nobody_took_is_written_again(api: FakeApi, new_replica: NewReplica, change: str) -> None:
    """Contract core 1.3: an operator who empties or deletes the Lease does not end the leader."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        if change == "deleted":
            api.remove(LEASES, NAME, NAMESPACE)
        else:
            held_by(api, "")
            found = api.read(LEASES, NAME, NAMESPACE)
            assert found is not None
            api.put(LEASES, {"metadata": found["metadata"], "spec": {**found["spec"], "leaseTransitions": 0}})
        await asyncio.sleep(3)
        assert replica.shutdown.requested is None
        assert lease(api)["holderIdentity"] == "a"


async def test_deleted_lease_makes_no_second_leader(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): a follower that saw the Lease go waits until it would have expired; its leader still leads."""
    leader, follower = new_replica("a"), new_replica("b", seed=2)
    async with candidate(leader), candidate(follower):
        await asyncio.sleep(20.5)
        api.remove(LEASES, NAME, NAMESPACE)
        await asyncio.sleep(3600)
        assert follower.led_from() is None
        assert leader.led_until() is None


async def test_lease_that_is_gone_when_the_watch_begins(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): also a Lease that vanished between our first look and the list counts until its end."""
    held_by(api, "dead")
    follower = new_replica("b")
    async with candidate(follower):
        api.fail(Unavailable("gone"), times=1, method="GET", path=PATH.removesuffix(f"/{NAME}"))
        await settle()
        assert follower.elector.holder == "dead"
        api.remove(LEASES, NAME, NAMESPACE)
        await asyncio.sleep(14.9)
        assert follower.led_from() is None
        await asyncio.sleep(0.2)
        assert follower.led_from() == pytest.approx(1015, abs=1e-6)


async def test_conflict_that_cannot_be_looked_into(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: a conflict followed by a failing read is tried again; leadership is kept if it is still ours."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        held_by(api, "a")
        api.fail(Unavailable("gone"), times=1, method="GET")
        await asyncio.sleep(4)
        assert not replica.lost()
        assert lease(api)["renewTime"] >= "2026-01-01T00:00:06"


async def test_release_after_somebody_touched_the_lease(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.7: the Lease is given back also if somebody touched it since the last renewal; never somebody else's."""
    replica = new_replica("a")
    async with candidate(replica) as task:
        await asyncio.sleep(3)
        held_by(api, "a")
        await end(task)
        assert lease(api)["holderIdentity"] == ""
    other = new_replica("b")
    async with candidate(other) as task:
        await asyncio.sleep(3)
        held_by(api, "thief")
        await end(task)
        assert lease(api)["holderIdentity"] == "thief"


async def test_frozen_loop_does_not_lead_on(api: FakeApi, new_replica: NewReplica, clock: FakeClock) -> None:
    """Contract core 1.3: a leader whose process stood still for longer than the deadline asks for its end before any request."""
    replica = new_replica("a")
    async with candidate(replica):
        await asyncio.sleep(3)
        calls = len(api.calls)
        clock.advance(30)
        await asyncio.sleep(1.1)
        assert replica.lost()
        await settle()
        # The release is the only thing that was sent.
        assert [call.method for call in api.calls[calls:]] == ["PUT"]
        assert lease(api)["holderIdentity"] == ""


async def test_of_two_followers_one_leads(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: followers that wake at the same moment are told apart by the resource version: one 409, one leader."""
    replicas = [new_replica(name, seed=seed) for seed, name in enumerate("bcd")]
    held_by(api, "dead")
    async with candidate(replicas[0]), candidate(replicas[1]), candidate(replicas[2]):
        await asyncio.sleep(100)
        assert sum(replica.led_from() is not None for replica in replicas) == 1
        assert all(replica.shutdown.requested is None for replica in replicas)


async def test_endless_conflicts_do_not_spin(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: after a second conflict in a row a follower waits 2 to 4.4 s, the jitter of client-go."""
    held_by(api, "")
    api.fail(Conflict("changed", status=409), method="PUT")
    async with candidate(new_replica("b")):
        await asyncio.sleep(60)
        assert 2 * 60 / 4.4 - 4 < len(api.requests("PUT")) <= 2 * 60 / 2 + 2


async def test_silent_watch_costs_no_wrong_leader_and_no_delay(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3 (ours): while its watch is silent a follower reads at what looks like the expiry, and watches anew."""
    leader, follower = new_replica("a"), new_replica("b", seed=2)
    async with candidate(leader) as task, candidate(follower):
        await asyncio.sleep(20.5)
        [stream] = api.streams
        stream.silent = True
        await asyncio.sleep(20)
        assert follower.led_from() is None
        assert api.streams != [stream]
        await end(task)
        await settle()
        assert follower.led_from() == 1040.5


async def test_follower_survives_an_outage(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: an API server that is away for an hour ends no follower; when it is back somebody leads within 5 s."""
    held_by(api, "dead")
    follower = new_replica("b")
    with structlog.testing.capture_logs() as logs:
        async with candidate(follower):
            await asyncio.sleep(1)
            api.go_away()
            await asyncio.sleep(3600)
            assert follower.led_from() is None
            api.heal()
            await asyncio.sleep(4.5)
            assert follower.led_from() is not None
    assert sum(line["event"] == "Lease is not reachable" and line["log_level"] == "error" for line in logs) == 1


async def test_release_that_hangs_delays_the_end_by_two_seconds(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.7: giving the Lease back must fit into the 5 s that a process has for its end."""
    replica = new_replica("a")
    async with candidate(replica) as task:
        await asyncio.sleep(3)
        api.latency = 1000
        await end(task)
        assert asyncio.get_running_loop().time() - 1003 <= 2.001


async def test_cancelled_while_taking_the_lease_gives_it_back(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: a process that is stopped while its first PUT is under way leaves no Lease that has to expire."""
    held_by(api, "")
    original = api.request

    async def request(call: Any, **deadlines: float) -> bytes:
        answer = await original(call, **deadlines)
        if call.method == "PUT":
            await asyncio.sleep(1)
        return answer

    api.request = request  # type: ignore[method-assign]
    replica = new_replica("a")
    async with candidate(replica) as task:
        await asyncio.sleep(0.5)
        assert lease(api)["holderIdentity"] == "a"
        await end(task)
    assert replica.led_from() is None
    assert lease(api)["holderIdentity"] == ""


@pytest.mark.parametrize("begun", [True, False], ids=["lease was free", "no lease yet"])
async def test_cancelled_before_the_server_takes_the_lease_for_us(
    api: FakeApi, new_replica: NewReplica, begun: bool
) -> None:
    """Contract core 1.3, 6: a request that is under way may be carried out after we were told to stop; then nobody would give the Lease back.

    As of a Pod that is replaced the moment it was to take over: its successor would wait for 15 s.
    """
    if begun:
        held_by(api, "")
    original, late = api.request, asyncio.TaskGroup()

    async def request(call: Any, **deadlines: float) -> bytes:
        async def carry_out() -> bytes:
            await asyncio.sleep(0.5)
            with suppress(Conflict):
                return await original(call, **deadlines)
            return b""

        if call.method in ("PUT", "POST"):
            return await asyncio.shield(late.create_task(carry_out()))
        return await original(call, **deadlines)

    api.request = request  # type: ignore[method-assign]
    replica = new_replica("a")
    async with late, candidate(replica) as task:
        await asyncio.sleep(0.1)
        api.request = original  # type: ignore[method-assign]
        await end(task)
    assert replica.led_from() is None
    assert lease(api)["holderIdentity"] == ""


async def test_stopped_while_the_leaders_lease_is_gone(api: FakeApi, new_replica: NewReplica) -> None:
    """Contract core 1.3: that there was no Lease when we asked for it does not mean that nobody leads: the next one waits its time."""
    stopped, leader, follower = new_replica("b", seed=2), new_replica("a"), new_replica("c", seed=3)
    api.fail(Unavailable("connection failed"), method="POST")
    async with candidate(stopped) as first:
        await asyncio.sleep(0.1)
        api.heal()
        async with candidate(leader) as second, candidate(follower) as third:
            await asyncio.sleep(12.05)
            assert leader.elector.is_leader
            api.remove(LEASES, NAME, NAMESPACE)
            await end(first)
            for _ in range(300):
                await asyncio.sleep(0.01)
                assert not follower.elector.is_leader
            await end(third)
            await end(second)


@pytest.mark.parametrize(
    ("lease_duration", "renew_deadline", "retry_period"),
    [(10, 10, 2), (15, 2.4, 2), (15, 10, 0), (0.5, 0.4, 0.1), (2.9, 2.5, 1)],
)
def test_times_that_cannot_work_are_refused(lease_duration: float, renew_deadline: float, retry_period: float) -> None:
    """Contract core 2.2 (ours): leaseDuration > renewDeadline > 1.2 * retryPeriod > 0."""
    with pytest.raises(FatalError):
        ElectionTimes(*(timedelta(seconds=value) for value in (lease_duration, renew_deadline, retry_period)))


def test_identity_is_mandatory(client: Client, clock: FakeClock) -> None:
    """Contract core 1.3: an empty identity would hold a Lease that counts as free."""
    with pytest.raises(FatalError):
        LeaderElector(
            client=client, namespace="n", name="l", identity="", shutdown=Shutdown(), clock=clock, rng=Random(1)
        )


def new_cluster(api: FakeApi, environment: Environment) -> Cluster:
    """Return a cluster with an informer."""
    client = Client(transport=api, rng=Random(1))
    cache = Cache(client=client, clock=environment.clock, rng=Random(1))
    cache.informer(NODES)
    recorder = EventRecorder(client=client, instance="host", clock=environment.clock)
    return Cluster(name="seed", client=client, cache=cache, recorder=recorder)


class Process:
    """A whole process around the manager, in virtual time."""

    def __init__(
        self,
        api: FakeApi,
        environment: Environment,
        identity: str,
        *,
        stop_seconds: float = 0,
        with_cluster: bool = False,
    ) -> None:
        self.informer_sync = InformerSync(clock=environment.clock)
        self.lines: list[tuple[float, str]] = []
        self.aborts: list[int] = []
        self.shutdown = Shutdown()
        process = self

        class Reconciler:
            async def reconcile(self, _request: Request) -> Result:
                process.note("works")
                try:
                    await asyncio.sleep(100_000)
                finally:
                    await asyncio.sleep(stop_seconds)
                    process.note("stopped")
                return Result()

        elector = LeaderElector(
            client=Client(transport=api, rng=Random(1)),
            namespace=NAMESPACE,
            name=NAME,
            identity=identity,
            shutdown=self.shutdown,
            clock=environment.clock,
            rng=Random(1),
        )
        self.manager = Manager(
            environment=environment,
            shutdown=self.shutdown,
            informer_sync=self.informer_sync,
            servers=[self.part("server")],
            clusters=[new_cluster(api, environment)] if with_cluster else [],
            election=elector.leading(),
            startup=[self.step],
            controllers=[
                Controller(
                    name=identity, reconciler=Reconciler(), sources=[StartupSource([Request("", "a")])], deadline=None
                )
            ],
            abort=self.aborts.append,
        )

    def note(self, line: str) -> None:
        """Write a line."""
        self.lines.append((asyncio.get_running_loop().time(), line))

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """A part that notes when it is entered and left."""
        self.note(f"+{name}")
        try:
            yield
        finally:
            self.note(f"-{name}")

    async def step(self) -> None:
        """Note that the startup step ran."""
        self.note("step")


async def test_only_the_leader_starts_up(api: FakeApi, environment: Environment) -> None:
    """Contract core 1.2, 1.3: servers answer on followers too; startup steps and controllers run on the leader alone."""
    held_by(api, "dead")
    process = Process(api, environment, "b")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.manager.run())
        await asyncio.sleep(20)
        process.shutdown.request("end of the test")
    assert running.result() == 0
    assert [line for _, line in process.lines] == ["+server", "step", "works", "stopped", "-server"]
    assert [round(moment, 3) for moment, _ in process.lines] == [1000, 1015, 1015, 1020, 1020]
    assert lease(api)["holderIdentity"] == ""


async def test_lease_is_kept_until_the_controllers_have_stopped(api: FakeApi, environment: Environment) -> None:
    """Contract core 1.3, 1.7: the Lease is renewed while controllers stop, and given back only after that."""
    process = Process(api, environment, "a", stop_seconds=4.5)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.manager.run())
        await asyncio.sleep(10.5)
        process.shutdown.request("end of the test")
        await asyncio.sleep(4.4)
        assert lease(api)["holderIdentity"] == "a"
        assert lease(api)["renewTime"] == "2026-01-01T00:00:14.000000Z"
    assert running.result() == 0
    assert lease(api)["holderIdentity"] == ""


async def test_losing_the_lease_ends_the_process_with_1(api: FakeApi, environment: Environment) -> None:
    """Contract core 1.3, 1.7: a leader that cannot renew stops in order, with exit code 1, and never becomes a follower."""
    process = Process(api, environment, "a")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.manager.run())
        await asyncio.sleep(1)
        api.go_away()
    assert running.result() == 1
    assert process.shutdown.requested == "leadership lost"
    assert [(round(moment, 3), line) for moment, line in process.lines][3:] == [(1010, "stopped"), (1010, "-server")]
    assert process.aborts == []


async def test_controllers_that_do_not_stop_are_abandoned_before_the_lease_expires(
    api: FakeApi, environment: Environment
) -> None:
    """Contract core 1.3, 1.7: 10 s without renewal and 5 s to stop are the 15 s that others wait."""
    process = Process(api, environment, "a", stop_seconds=60)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.manager.run())
        await asyncio.sleep(1)
        api.go_away()
        await asyncio.sleep(14.01)
        assert process.aborts == [1]
        running.cancel()


async def test_follower_is_healthy_and_ready_for_hours(api: FakeApi, environment: Environment) -> None:
    """Contract core 1.5, 1.3, 13.1.7: followers serve, keep their caches, and are healthy and ready however long they wait."""
    leader, follower = Process(api, environment, "a"), Process(api, environment, "b", with_cluster=True)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(leader.manager.run())
        await settle()
        second = group.create_task(follower.manager.run())
        for _ in range(12):
            await asyncio.sleep(1800)
            assert await follower.informer_sync.liveness() is None
            assert await follower.informer_sync.readiness() is None
        assert [line for _, line in follower.lines] == ["+server"]
        leader.shutdown.request("end of the test")
        await asyncio.sleep(1)
        assert [line for _, line in follower.lines] == ["+server", "step", "works"]
        follower.shutdown.request("end of the test")
    assert (first.result(), second.result()) == (0, 0)


async def test_stopping_a_follower_exits_0(api: FakeApi, environment: Environment) -> None:
    """Contract core 1.7: a follower that is asked to stop leaves the Lease alone and exits with 0."""
    held_by(api, "leader", duration=3600)
    process = Process(api, environment, "b")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.manager.run())
        await asyncio.sleep(100)
        process.shutdown.request("end of the test")
    assert running.result() == 0
    assert [line for _, line in process.lines] == ["+server", "-server"]
    assert lease(api)["holderIdentity"] == "leader"
