"""Pods of the seed that nobody needs any more."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.errors import Forbidden, Gone, ServerError, Unavailable
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from gardenlet.apis.pods import PODS, Pod
from gardenlet.controllers.seed import garbage
from tests.support.clock import EPOCH, FakeClock
from tests.support.fake_api import Document, FakeApi
from tests.support.tasks import running

FAILED = {"phase": "Failed"}
OF_REPLICA_SET = {"ownerReferences": [{"kind": "ReplicaSet", "name": "r"}]}
OF_JOB = {"ownerReferences": [{"kind": "Job", "name": "j"}]}


def going(minutes: float, **metadata: Any) -> Document:
    """Return the metadata of a pod that should have ended so many minutes ago."""
    ends = (EPOCH - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"deletionTimestamp": ends, "deletionGracePeriodSeconds": 30, **metadata}


def disrupted(status: str) -> Document:
    """Return the status of a running pod with this condition."""
    return {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": status}]}


GOES: list[tuple[Document, Document]] = [
    ({}, {**FAILED, "reason": "Evicted"}),
    ({}, {**FAILED, "reason": "NodeAffinity"}),
    ({}, {"phase": "Running", "reason": "NodeLost"}),
    ({}, {**FAILED, "reason": "Preempting"}),
    ({}, {**FAILED, "reason": "PodEvictedByX"}),
    ({}, {**FAILED, "reason": "OutOfcpu"}),
    ({}, {**FAILED, "reason": "OutOfpods"}),
    ({}, disrupted("True")),
    (OF_REPLICA_SET, FAILED),
    (OF_REPLICA_SET, {"phase": "Succeeded"}),
]
FORCED: list[tuple[Document, Document]] = [
    (going(5.1), {"phase": "Running"}),
    (going(60), {"phase": "Running", "reason": "NodeLost"}),
    (going(60), disrupted("True")),
    (going(60, finalizers=["a/b"]), {"phase": "Running"}),
    (going(60, deletionGracePeriodSeconds=0), {"phase": "Running"}),
]
STAYS: list[tuple[Document, Document]] = [
    ({}, {}),
    ({}, {"phase": "Running"}),
    ({}, {"phase": "Pending", "reason": "SchedulingGated"}),
    ({}, {**FAILED, "reason": "RunsOutOfcpu"}),
    ({}, FAILED),
    (OF_JOB, {"phase": "Succeeded"}),
    (OF_REPLICA_SET, {"phase": "Running"}),
    ({}, disrupted("False")),
    (going(4.9), {"phase": "Running"}),
    (going(-0.5), {**FAILED, "reason": "Evicted"}),
    (going(60, deletionGracePeriodSeconds=0, finalizers=["a/b"]), FAILED),
    ({"deletionTimestamp": "soon"}, {"phase": "Running"}),
    ({"namespace": "kube-system"}, {**FAILED, "reason": "Evicted"}),
    (going(60, namespace="kube-system"), {"phase": "Running"}),
]


def pod(name: str, metadata: Document, status: Document) -> Document:
    """Return a pod of the namespace `shoot--a--b`, if nothing else is said."""
    return {"metadata": {"namespace": "shoot--a--b", **metadata, "name": name}, "status": status}


@pytest.mark.parametrize(
    ("cases", "expected"), [(GOES, "deleted"), (FORCED, "forced"), (STAYS, "stays")], ids=["goes", "forced", "stays"]
)
def test_which_pods_go(cases: list[tuple[Document, Document]], expected: str) -> None:
    """Contract core 7: by reason, DisruptionTarget, end of a ReplicaSet's pod; forced if stuck for five minutes; else it stays."""
    for metadata, status in cases:
        found = garbage.judge(Pod.model_validate(pod("p", metadata, status)), EPOCH)
        verdict = "stays" if found is None else "forced" if found.force else "deleted"
        assert (metadata, status, verdict) == (metadata, status, expected)


class Seed:
    """A seed with pods."""

    def __init__(self) -> None:
        self.api, self.clock, self.metrics = FakeApi(), FakeClock(), Metrics()

    def put(self, name: str, status: Document | None = None, **metadata: Any) -> None:
        """Create a pod, an evicted one by default."""
        self.api.put(PODS, pod(name, metadata, status or {**FAILED, "reason": "Evicted"}))

    def left(self) -> list[str]:
        """Return the names of the pods that are there."""
        return sorted(item["metadata"]["name"] for item in self.api.stored(PODS))

    @asynccontextmanager
    async def going(self, page: int = 500) -> AsyncIterator[None]:
        """Run the controller."""
        client = Client(transport=self.api, rng=Random(1))
        controller = garbage.new_controller(garbage.Parts(seed=client, clock=self.clock, page=page))
        environment = Environment(clock=self.clock, rng=Random(2), metrics=self.metrics)
        async with running(lambda: controller.run(environment)):
            await asyncio.sleep(1)
            yield


@pytest.fixture
async def seed() -> Seed:
    """A seed without pods."""
    return Seed()


async def test_every_five_minutes(seed: Seed) -> None:
    """Contract core 7, W43: at the start and then every five minutes, one list each time, and never kube-system."""
    seed.put("first")
    seed.put("system", namespace="kube-system")
    async with seed.going():
        assert seed.left() == ["system"]
        seed.put("second")
        await asyncio.sleep(290)
        assert seed.left() == ["second", "system"]
        await asyncio.sleep(20)
        assert seed.left() == ["system"]
        await asyncio.sleep(3000)
        assert len(seed.api.requests("GET")) == 12
        assert {dict(call.query)["fieldSelector"] for call in seed.api.requests("GET")} == {
            "metadata.namespace!=kube-system"
        }


async def test_page_by_page(seed: Seed) -> None:
    """Contract core 7, W43: never more than a page in one answer, and the whole of the seed is looked at."""
    for number in range(25):
        seed.put(f"p-{number:02}", {"phase": "Running"} if number % 3 else None)
    async with seed.going(page=4):
        assert seed.left() == [f"p-{number:02}" for number in range(25) if number % 3]
        assert len(seed.api.requests("GET")) == 7
        assert {dict(call.query)["limit"] for call in seed.api.requests("GET")} == {"4"}


async def test_one_failure_does_not_stop_the_others(seed: Seed, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 7: the others are deleted; the failure is said once, and tried again after a minute, not at once."""
    for name in ("a", "b", "c"):
        seed.put(name)
    seed.api.fail(ServerError("no", status=500), method="DELETE", path="/api/v1/namespaces/shoot--a--b/pods/b")
    async with seed.going():
        assert seed.left() == ["b"]
        await asyncio.sleep(20)
        assert len(seed.api.requests("GET")) == 1
        assert "".join(capsys.readouterr()).count("Reconcile failed") == 1
        seed.api.heal()
        await asyncio.sleep(130)
        assert seed.left() == []


@pytest.mark.parametrize(
    "error",
    [Gone("too old", status=410), Forbidden("no", status=403), Unavailable("connection failed")],
    ids=["gone", "forbidden", "unavailable"],
)
async def test_a_list_that_fails(seed: Seed, error: Gone | Forbidden | Unavailable) -> None:
    """Contract core 7: nothing is deleted on half of a list; it is asked for again, a few times in ten minutes."""
    seed.put("a")
    seed.api.fail(error, method="GET")
    async with seed.going():
        await asyncio.sleep(600)
        assert seed.left() == ["a"]
        assert 2 <= len(seed.api.requests("GET")) <= 8
        seed.api.heal()
        await asyncio.sleep(330)
        assert seed.left() == []


async def test_a_pod_that_changes_meanwhile(seed: Seed, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 7: one that is gone is fine, and one that became another, or another state, is left for the next look."""
    for name in ("gone", "new", "recovered", "stale"):
        seed.put(name)
    seed.api.latency, seed.api.slow_path = 2.0, "/api/v1/namespaces/"
    async with seed.going():
        # The list has been read, the first deletion is under way.
        for name in ("gone", "new"):
            seed.api.remove(PODS, name, "shoot--a--b")
        for name in ("new", "recovered"):
            seed.put(name, {"phase": "Running"})
        await asyncio.sleep(10)
        assert seed.left() == ["new", "recovered"]
        await asyncio.sleep(600)
        assert seed.left() == ["new", "recovered"]
    assert "Reconcile failed" not in "".join(capsys.readouterr())
    said = [json.loads(call.body or b"")["preconditions"] for call in seed.api.requests("DELETE")]
    assert len(said) == 4
    assert all(one["uid"] and one["resourceVersion"] for one in said)


async def test_a_seed_that_answers_no_more(seed: Seed) -> None:
    """Contract core 7: a look ends after five minutes, with ten of a hundred pods deleted at 29 seconds each; the next goes on."""
    for number in range(100):
        seed.put(f"p-{number}")
    seed.api.latency, seed.api.slow_path = 29.0, "/api/v1/namespaces/"
    async with seed.going():
        await asyncio.sleep(302)
        assert len(seed.left()) == 90
        seed.api.latency = 0
        await asyncio.sleep(180)
        assert seed.left() == []
