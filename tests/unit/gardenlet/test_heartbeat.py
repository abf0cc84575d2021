"""The seed's heartbeat in virtual time: its rhythm, its Lease, and what it says about our health."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.errors import Forbidden, ServerError, Unavailable
from agents.kube.models import LEASES, format_micro_time
from agents.runtime.cache import Cache
from agents.runtime.health import PeriodicHealth
from agents.runtime.metrics import Metrics
from gardenlet.apis.seed import SEEDS
from gardenlet.heartbeat import NAMESPACE, Heartbeat, HeartbeatMetrics
from gardenlet.lease_conflict import LeaseConflict
from tests.support.clock import FakeClock
from tests.support.fake_api import Document, FakeApi
from tests.support.tasks import running

LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
READY = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady"}


class Beating:
    """A heartbeat between a garden and a seed in memory."""

    def __init__(self, beats: FakeApi | None = None) -> None:
        """Make one, whose beats go to the garden, or to another one with connections of its own."""
        self.clock = FakeClock()
        self.garden, self.seed, self.metrics = FakeApi(), FakeApi(), Metrics()
        self.client = Client(transport=self.garden, rng=Random(1))
        self.cache = Cache(client=self.client, clock=self.clock, rng=Random(2))
        self.gate = PeriodicHealth(clock=self.clock, deadline_seconds=20.0)
        self.seed.serve("/healthz", b"ok")
        self.register(READY | {"message": "Gardenlet is posting ready status."})
        self.told: list[str] = []
        conflict = LeaseConflict(
            leases=self.cache.informer(LEASES, namespace=NAMESPACE, field_selector="metadata.name=one"),
            tell=lambda reason, _note: self.told.append(reason),
            clock=self.clock,
            metrics=self.metrics,
        )
        self.heartbeat = Heartbeat(
            name="one",
            seeds=self.cache.informer(SEEDS),
            garden=self.client if beats is None else Client(transport=beats, rng=Random(5)),
            seed=Client(transport=self.seed, rng=Random(3)),
            writer=self.client,
            gate=self.gate,
            clock=self.clock,
            rng=Random(4),
            period=2.0,
            conflict=conflict,
            metrics=HeartbeatMetrics(self.metrics),
        )

    def register(self, *conditions: Document) -> None:
        """Have a Seed with these conditions."""
        self.garden.put(SEEDS, {"metadata": {"name": "one"}, "status": {"conditions": list(conditions)}})

    @asynccontextmanager
    async def going(self, seconds: float) -> AsyncIterator[None]:
        """Beat for so long, then do the block, then stop."""
        async with running(self.cache.run, self.heartbeat.run):
            await asyncio.sleep(seconds)
            yield

    def lease(self) -> Document:
        """Return the Lease."""
        found = self.garden.read(LEASES, "one", NAMESPACE)
        assert found is not None
        return found

    def writes(self) -> list[str]:
        """Return the methods of the requests for the Lease, without those that watch it."""
        return [call.method for call in self.garden.calls if call.path.startswith(LEASE_PATH) and call.method != "GET"]

    async def another(self, times: int, *, gap: float = 2.0) -> None:
        """Renew the Lease as a second gardenlet does, in the middle between two beats."""
        for _ in range(times):
            lease = self.lease()
            renewed = format_micro_time(self.clock.now() + timedelta(microseconds=1))
            self.garden.put(LEASES, {**lease, "spec": {**lease["spec"], "renewTime": renewed}})
            await asyncio.sleep(gap)

    def conditions(self) -> list[Document]:
        """Return the Seed's conditions."""
        seed = self.garden.read(SEEDS, "one")
        assert seed is not None
        return list(seed["status"]["conditions"])

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a value that is shown."""
        value: float | None = self.metrics.registry.get_sample_value(name, labels)
        return value


@pytest.fixture
async def beating() -> Beating:
    """A heartbeat whose two sides are well."""
    return Beating()


async def test_one_patch_for_each_beat(beating: Beating) -> None:
    """Contract core 6, W19: created once, then patched every 2 s and up to a tenth later, and nothing else is asked."""
    async with beating.going(100.5):
        assert beating.writes()[:2] == ["PATCH", "POST"]
        assert set(beating.writes()[2:]) == {"PATCH"}
        assert 46 <= len(beating.writes()) <= 52
        assert {call.path for call in beating.seed.calls} == {"/healthz"}
        assert await beating.gate.check() is None
        assert beating.metric("gardenlet_heartbeat_total", result="success") == len(beating.seed.calls)


async def test_what_the_lease_says(beating: Beating) -> None:
    """Contract core 6: holder, duration of a slot, the garden's time with microseconds, one plain owner reference."""
    beating.clock.jump(0.25)
    async with beating.going(0.5):
        lease = beating.lease()
        assert beating.seed.calls
    assert lease["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 2,
        "renewTime": "2026-01-01T00:00:00.250000Z",
    }
    seed = beating.garden.read(SEEDS, "one")
    assert seed is not None
    uid = seed["metadata"]["uid"]
    owner = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "name": "one", "uid": uid}
    assert lease["metadata"]["ownerReferences"] == [owner]


async def test_an_owner_reference_that_is_gone_comes_back(beating: Beating) -> None:
    """Contract core 6, OURS: what somebody took away from the Lease is there again with the next beat."""
    async with beating.going(5):
        lease = beating.lease()
        beating.garden.put(LEASES, {**lease, "metadata": {**lease["metadata"], "ownerReferences": []}})
        await asyncio.sleep(2.3)
        assert len(beating.lease()["metadata"]["ownerReferences"]) == 1


@pytest.mark.parametrize("side", ["garden", "seed"])
async def test_a_failure_counts_after_its_repetition_in_the_same_slot(beating: Beating, side: str) -> None:
    """Contract core 6, W18: one failure changes nothing; the second one does at once, and it says which side it is."""
    api, path = (beating.garden, LEASE_PATH) if side == "garden" else (beating.seed, "/healthz")
    async with beating.going(5):
        api.fail(Unavailable("away"), path=path, times=1)
        await asyncio.sleep(10)
        assert await beating.gate.check() is None
        assert beating.metric("gardenlet_heartbeat_total", result="error") == 0
        api.fail(Unavailable("away"), path=path)
        await asyncio.sleep(2.3)
        reason = await beating.gate.check()
        assert reason is not None
        assert reason.startswith(f"{side}: ")
        assert "tried again every 2 s" in reason
        api.heal()
        await asyncio.sleep(2.3)
        assert await beating.gate.check() is None


async def test_a_sick_seed_renews_no_lease(beating: Beating) -> None:
    """Contract core 6: the Lease says that the seed's API server is well, so a 500 there leaves it as it is."""
    async with beating.going(5):
        beating.seed.fail(ServerError("sick", status=500), path="/healthz")
        await asyncio.sleep(2.3)
        renewed = beating.lease()["spec"]["renewTime"]
        await asyncio.sleep(20)
        assert beating.lease()["spec"]["renewTime"] == renewed


@pytest.mark.parametrize("side", ["garden", "seed"])
async def test_a_step_that_hangs_takes_no_longer_than_its_slot(beating: Beating, side: str) -> None:
    """Contract core 6, W18: connections on which nothing comes back: unhealthy after one slot, well with the first answer."""
    api, path = (beating.garden, LEASE_PATH) if side == "garden" else (beating.seed, "/healthz")
    async with beating.going(5):
        api.slow_path, api.latency = path, 60.0
        await asyncio.sleep(4.4)
        reason = await beating.gate.check()
        assert reason is not None
        assert reason.startswith(f"{side}: no answer in time")
        assert api.resets >= 2
        api.latency = 0.0
        await asyncio.sleep(2.3)
        assert await beating.gate.check() is None


async def test_answers_after_half_a_second_are_good_enough(beating: Beating) -> None:
    """A garden that is slow is not a garden that is gone."""
    beating.garden.latency = 0.45
    async with beating.going(60):
        assert await beating.gate.check() is None
        assert beating.metric("gardenlet_heartbeat_total", result="error") == 0


async def test_a_distant_garden_may_take_longer_to_connect_than_to_renew() -> None:
    """Contract core 6: connecting to a garden and renewing takes 1.6 s, renewing 0.8 s: there is a beat in each slot but the cut one."""
    distant = FakeApi()
    distant.connect_latency = distant.latency = 0.8
    beating = Beating(beats=distant)
    distant.put(LEASES, {"metadata": {"name": "one", "namespace": NAMESPACE}, "spec": {}})
    async with beating.going(30):
        assert beating.metric("gardenlet_heartbeat_total", result="error") == 0
        assert beating.metric("gardenlet_heartbeat_total", result="success") in range(12, 16)
        distant.fail(Unavailable("away"), times=1)
        await asyncio.sleep(30)
        assert beating.metric("gardenlet_heartbeat_total", result="error") == 1
        assert beating.metric("gardenlet_heartbeat_total", result="success") in range(25, 31)


@pytest.mark.parametrize(
    "found",
    [
        [],
        [{"type": "GardenletReady", "status": "Unknown", "reason": "StatusUnknown", "message": "m"}],
        [{"type": "GardenletReady", "status": "Progressing", "reason": "GardenletReady", "message": "m"}],
    ],
)
async def test_the_condition_follows_the_first_good_beat(beating: Beating, found: list[Document]) -> None:
    """Contract core 6: GardenletReady is True with its reason and message; other conditions stay as they are."""
    other = {"type": "ExtensionsReady", "status": "False", "reason": "r", "message": "m"}
    beating.register(other, *found)
    async with beating.going(3):
        first, second = beating.conditions()
        assert first == other
        assert (second["type"], second["status"], second["reason"]) == ("GardenletReady", "True", "GardenletReady")
        assert second["message"] == "Gardenlet is posting ready status."


async def test_a_condition_that_is_right_is_not_written(beating: Beating) -> None:
    """Contract core 6: only patched when different."""
    async with beating.going(60):
        assert [call for call in beating.garden.calls if call.path.endswith("/status")] == []


async def test_a_condition_that_cannot_be_written_changes_no_health(beating: Beating) -> None:
    """Contract core 6: the gate is the Lease's; the condition is written as soon as that works."""
    beating.register()
    path = "/apis/core.gardener.cloud/v1beta1/seeds/one/status"
    beating.garden.fail(ServerError("no", status=500), path=path)
    async with beating.going(60):
        assert await beating.gate.check() is None
        assert 46 <= len(beating.seed.calls) * 60 // 36 <= 60
        beating.garden.heal()
        await asyncio.sleep(3)
        assert beating.conditions()[0]["status"] == "True"


async def test_a_garden_that_allows_no_patch_gets_a_put(beating: Beating) -> None:
    """Contract core 0, D8: older authorizers know create, get and update of Leases only."""
    beating.garden.fail(Forbidden("no", status=403), method="PATCH", path=LEASE_PATH)
    beating.garden.put(LEASES, {"metadata": {"name": "one", "namespace": NAMESPACE}, "spec": {}})
    async with beating.going(10):
        assert await beating.gate.check() is None
        assert beating.lease()["spec"]["holderIdentity"] == "one"
        assert "PUT" in beating.writes()


async def test_without_a_seed_there_is_no_beat(beating: Beating) -> None:
    """Contract core 6: a Seed that is gone stops the beats and says nothing about our health until the time is over."""
    beating.garden.remove(SEEDS, "one")
    async with beating.going(19):
        assert beating.writes() == []
        assert await beating.gate.check() is None
        await asyncio.sleep(2)
        assert await beating.gate.check() == "no heartbeat in time"


async def test_a_frozen_loop_is_seen_before_the_next_beat(beating: Beating) -> None:
    """Contract core 13.1.4: after 20 s without a beat no probe gets a 200, and none after the thaw before a fresh beat."""
    async with beating.going(10):
        beating.clock.advance(25)
        assert await beating.gate.check() == "no heartbeat in time"
        await asyncio.sleep(2.3)
        assert await beating.gate.check() is None


async def test_another_gardenlet_of_the_same_seed_is_told_once(beating: Beating) -> None:
    """Contract core 6: a second gardenlet of the same Seed is said once, as an event too; our own beat stays as it was."""
    async with beating.going(5):
        await beating.another(20)
        assert beating.told == ["LeaseConflict"]
        assert beating.metric("gardenlet_heartbeat_foreign_renewals_total") == 20
        assert set(beating.writes()[2:]) == {"PATCH"}
        assert 19 <= len(beating.writes()) <= 25
        assert await beating.gate.check() is None


async def test_a_predecessor_that_stops_is_no_conflict(beating: Beating) -> None:
    """Contract core 6: two late renewals of who led before us are not reported, nor is one now and then."""
    async with beating.going(5):
        await beating.another(2)
        await asyncio.sleep(60)
        await beating.another(5, gap=40)
        assert beating.metric("gardenlet_heartbeat_foreign_renewals_total") == 7
        assert beating.told == []


async def test_a_conflict_that_comes_again_is_told_again(beating: Beating) -> None:
    """Contract core 6: after a minute without somebody else's renewals the conflict is over."""
    async with beating.going(5):
        await beating.another(3)
        await asyncio.sleep(70)
        await beating.another(3)
        assert beating.told == ["LeaseConflict"] * 2


async def test_own_renewals_without_an_answer_are_ours(beating: Beating) -> None:
    """Contract core 6: what we sent and nobody confirmed is not somebody else's, nor is another change of the Lease."""
    async with beating.going(5):
        lease = beating.lease()
        for number in range(5):
            beating.garden.slow_path, beating.garden.latency = LEASE_PATH, 1.5
            await asyncio.sleep(4.4)
            sent = [call.body for call in beating.garden.calls if call.method == "PATCH" and call.body]
            beating.garden.put(LEASES, {**lease, "spec": json.loads(sent[-2])["spec"]})
            beating.garden.put(
                LEASES, {**beating.lease(), "metadata": {**lease["metadata"], "labels": {"a": str(number)}}}
            )
            beating.garden.latency = 0.0
            await asyncio.sleep(2.3)
        assert beating.metric("gardenlet_heartbeat_foreign_renewals_total") == 0
        assert beating.metric("gardenlet_heartbeat_total", result="error") != 0
        assert beating.told == []


def test_names_of_what_is_shown(beating: Any) -> None:
    """Contract core 6: three metrics under fixed names."""
    text = beating.metrics.render().decode()
    for name in ("total", "duration_seconds", "last_success_timestamp_seconds"):
        assert f"gardenlet_heartbeat_{name}" in text
