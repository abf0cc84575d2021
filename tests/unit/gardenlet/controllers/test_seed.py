"""The Seed's status: what is reported, when, and that it claims nothing that is not so."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import Conflict, ServerError
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from gardenlet.apis.core_objects import CONFIG_MAPS, NAMESPACES
from gardenlet.apis.resources import MANAGED_RESOURCES
from gardenlet.apis.seed import SEEDS
from gardenlet.bootstrap.register import register
from gardenlet.config import Resources, SeedTemplate
from gardenlet.config_controllers import ConditionThreshold, SeedCare, SeedController
from gardenlet.controllers.seed import care, main
from gardenlet.identity import container_id
from tests.support.clock import FakeClock
from tests.support.fake_api import Document, FakeApi
from tests.support.tasks import running

WELL = {"ResourcesApplied": "True", "ResourcesHealthy": "True", "ResourcesProgressing": "False"}
TEMPLATE = SeedTemplate.model_validate({"metadata": {"name": "one"}, "spec": {"provider": {"type": "local"}}})


class Serving:
    """A seed and its garden, and the two controllers between them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.garden, self.seed = FakeApi(), FakeApi()
        self.client, self.seed_client = (Client(transport=api, rng=Random(1)) for api in (self.garden, self.seed))
        self.seed.serve("/version", b'{"gitVersion": "v1.34.4"}')
        self.seed.put(NAMESPACES, {"metadata": {"name": "kube-system"}})
        self.garden.put(SEEDS, {"metadata": {"name": "one", "generation": 1}, "spec": {}})
        self.expires: datetime | None = None
        self.resources = Resources()
        self.thresholds: tuple[ConditionThreshold, ...] = ()

    @asynccontextmanager
    async def going(self, seconds: float = 5) -> AsyncIterator[None]:
        """Run both for a while, then the block."""
        garden = Cache(client=self.client, clock=self.clock, rng=Random(2))
        seed = Cache(client=self.seed_client, clock=self.clock, rng=Random(3))
        seeds = garden.informer(SEEDS)
        parts = main.Parts(
            name="one",
            garden=self.client,
            seed=self.seed_client,
            identity=main.Identity("id", "pod", "v1.150.0"),
            resources=self.resources,
            settings=SeedController(),
            register=lambda: register(self.client, TEMPLATE),
            expires=lambda: self.expires,
            clock=self.clock,
        )
        looking = care.Parts(
            name="one",
            garden=self.client,
            seeds=seeds,
            resources=[seed.informer(MANAGED_RESOURCES, namespace=namespace) for namespace in care.NAMESPACES],
            settings=SeedCare(condition_thresholds=self.thresholds),
            clock=self.clock,
        )
        environment = Environment(clock=self.clock, rng=Random(4), metrics=Metrics())
        controllers = (main.new_controller(parts, seeds), care.new_controller(looking))
        bodies = [lambda one=one: one.run(environment) for one in controllers]
        async with running(garden.run, seed.run, *bodies):
            await asyncio.sleep(seconds)
            yield

    def component(
        self, name: str, changes: Mapping[str, str] | None = None, *, namespace: str = "garden", generation: int = 1
    ) -> None:
        """Have a ManagedResource that is well, but for some conditions."""
        listed = [
            {"type": kind, "status": status, "reason": f"{kind}Reason", "message": f"{name} is {status}"}
            for kind, status in {**WELL, **(changes or {})}.items()
            if status
        ]
        metadata = {"name": name, "namespace": namespace, "generation": 1}
        status = {"observedGeneration": generation, "conditions": listed}
        self.seed.put(MANAGED_RESOURCES, {"metadata": metadata, "spec": {"class": "seed"}, "status": status})

    def status(self) -> Document:
        """Return the Seed's status."""
        found = self.garden.read(SEEDS, "one")
        assert found is not None
        return found.get("status") or {}

    def condition(self, kind: str = care.HEALTHY) -> Document | None:
        """Return a condition."""
        return next((one for one in self.status().get("conditions") or [] if one["type"] == kind), None)

    def annotate(self, value: str | None) -> None:
        """Set or take away the emergency stop."""
        seed = self.garden.read(SEEDS, "one")
        assert seed is not None
        annotations = {care.EMERGENCY_ANNOTATION: value} if value else {}
        self.garden.put(SEEDS, {**seed, "metadata": {**seed["metadata"], "annotations": annotations}})

    def writes(self) -> int:
        """Return the number of requests that change the status."""
        return sum(call.method != "GET" and call.path.endswith("/status") for call in self.garden.calls)


@pytest.fixture
async def serving() -> Serving:
    """A new Seed."""
    return Serving()


async def test_what_the_status_says(serving: Serving) -> None:
    """Contract core 5.4: who, for which generation, of which cluster; the operation goes on, and says why."""
    serving.expires = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    async with serving.going():
        status = serving.status()
    uid = serving.seed.read(NAMESPACES, "kube-system")
    assert uid is not None
    assert status["gardener"] == {"id": "id", "name": "pod", "version": "v1.150.0"}
    assert status["observedGeneration"] == 1
    assert status["kubernetesVersion"] == "v1.34.4"
    assert status["clusterIdentity"] == uid["metadata"]["uid"]
    assert status["clientCertificateExpirationTimestamp"] == "2026-02-03T04:05:06Z"
    assert "capacity" not in status
    operation = status["lastOperation"]
    assert (operation["type"], operation["state"], operation["progress"]) == ("Reconcile", "Processing", 0)
    assert operation["description"] == main.NOT_MANAGED
    seed = serving.garden.read(SEEDS, "one")
    assert seed is not None
    assert "finalizers" not in seed["metadata"]


async def test_nothing_is_written_twice(serving: Serving) -> None:
    """Contract core 13, W22: an hour of reconciles without a change writes nothing."""
    async with serving.going():
        writes = serving.writes()
        await asyncio.sleep(3600)
        assert serving.writes() == writes


async def test_the_identity_is_said_once(serving: Serving) -> None:
    """Contract core 5.4: the ConfigMap's name wins; what the Seed says already is never changed."""
    metadata = {"name": "cluster-identity", "namespace": "kube-system"}
    serving.seed.put(CONFIG_MAPS, {"metadata": metadata, "data": {"cluster-identity": "named"}})
    async with serving.going():
        assert serving.status()["clusterIdentity"] == "named"
    serving.seed.put(CONFIG_MAPS, {"metadata": metadata, "data": {"cluster-identity": "other"}})
    async with serving.going():
        assert serving.status()["clusterIdentity"] == "named"


async def test_capacity_comes_and_goes(serving: Serving) -> None:
    """Contract core 5.4, W25: allocatable is capacity without what is reserved; both go when none is configured."""
    serving.resources = Resources(
        capacity={"shoots": 250, "memory": "1Gi", "cpu": "2"}, reserved={"shoots": "3", "cpu": "500m"}
    )
    async with serving.going():
        assert serving.status()["capacity"] == {"shoots": "250", "memory": "1Gi", "cpu": "2"}
        assert serving.status()["allocatable"] == {"shoots": "247", "memory": "1Gi", "cpu": "1500m"}
    serving.resources = Resources()
    async with serving.going():
        assert serving.status().keys().isdisjoint({"capacity", "allocatable"})


async def test_a_write_in_between_loses_nothing(serving: Serving) -> None:
    """Contract core 5.4, W26: the status is patched from a fresh read, and again after a conflict."""
    serving.garden.fail(Conflict("changed", status=409), times=2, method="PATCH")
    async with serving.going():
        assert serving.status()["gardener"]["name"] == "pod"


async def test_drift_of_the_registration(serving: Serving) -> None:
    """Contract core 5.2, W27: asserted again every sync period, not only at the start."""
    async with serving.going():
        seed = serving.garden.read(SEEDS, "one")
        assert seed is not None
        serving.garden.put(SEEDS, {**seed, "spec": {"provider": {"type": "other"}}})
        await asyncio.sleep(70)
        seed = serving.garden.read(SEEDS, "one")
        assert seed is not None
        assert seed["spec"] == {"provider": {"type": "local"}}


async def test_nobody_manages_the_components(serving: Serving) -> None:
    """Contract core 7, issue: no ManagedResource: False, with a reason that says so, and no claim."""
    serving.seed.put(MANAGED_RESOURCES, {"metadata": {"name": "shoot", "namespace": "garden"}, "spec": {}})
    async with serving.going():
        found = serving.condition()
        assert found is not None
        assert (found["status"], found["reason"]) == ("False", "SystemComponentsNotManaged")


async def test_components_that_are_well(serving: Serving) -> None:
    """Contract core 7: True while all are well; one of another namespace does not count."""
    serving.component("a")
    serving.component("b", namespace="istio-system")
    serving.component("c", {"ResourcesHealthy": "False"}, namespace="elsewhere")
    async with serving.going():
        found = serving.condition()
        assert found is not None
        assert (found["status"], found["reason"]) == ("True", "SystemComponentsRunning")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ResourcesApplied": "False"}, "ResourcesAppliedReason"),
        ({"ResourcesHealthy": "Unknown"}, "ResourcesHealthyReason"),
        ({"ResourcesProgressing": "True"}, "ResourcesProgressingReason"),
        ({"ResourcesProgressing": "Unknown"}, "ResourcesProgressingReason"),
        ({"ResourcesHealthy": ""}, "MissingManagedResourceCondition"),
    ],
)
async def test_components_that_are_not_well(serving: Serving, changes: dict[str, str], reason: str) -> None:
    """Contract core 7: each of the three conditions, and one that is missing."""
    serving.component("b", changes)
    serving.component("a")
    async with serving.going():
        found = serving.condition()
        assert found is not None
        assert (found["status"], found["reason"]) == ("False", reason)
        assert found["message"].startswith("garden/b: ")


async def test_an_outdated_status(serving: Serving) -> None:
    """Contract core 7: what was observed is not what is wanted."""
    serving.component("a", generation=0)
    async with serving.going():
        found = serving.condition()
        assert found is not None
        assert found["reason"] == "OutdatedStatus"


async def test_messages_do_not_depend_on_the_order(serving: Serving) -> None:
    """Contract core 7, W24: all failures, sorted; an hour without a change writes nothing."""
    for name in ("c", "a", "b"):
        serving.component(name, {"ResourcesHealthy": "False"})
    async with serving.going():
        found = serving.condition()
        assert found is not None
        assert [part.partition(":")[0] for part in found["message"].split("; ")] == ["garden/a", "garden/b", "garden/c"]
        writes = serving.writes()
        await asyncio.sleep(3600)
        assert serving.writes() == writes


async def test_a_threshold_gives_time(serving: Serving) -> None:
    """Contract core 5.5, 7: Progressing for as long as the threshold says, then False; and at once True again."""
    serving.thresholds = (ConditionThreshold(type=care.HEALTHY, duration="1m"),)  # type: ignore[arg-type]
    serving.component("a")
    async with serving.going():
        serving.component("a", {"ResourcesHealthy": "False"})
        await asyncio.sleep(5)
        found = serving.condition()
        assert found is not None
        assert found["status"] == "Progressing"
        await asyncio.sleep(120)
        found = serving.condition()
        assert found is not None
        assert found["status"] == "False"
        serving.component("a")
        await asyncio.sleep(5)
        found = serving.condition()
        assert found is not None
        assert found["status"] == "True"


async def test_an_emergency_stop(serving: Serving) -> None:
    """Contract core 7: the condition is there as long as the annotation is, and others' conditions stay."""
    other = {"type": "ExtensionsReady", "status": "True", "reason": "r", "message": "m"}
    async with serving.going():
        seed = serving.garden.read(SEEDS, "one")
        assert seed is not None
        listed = [*seed["status"]["conditions"], other]
        serving.garden.put(SEEDS, {**seed, "status": {**seed["status"], "conditions": listed}})
        serving.annotate("true")
        await asyncio.sleep(2)
        found = serving.condition(care.EMERGENCY)
        assert found is not None
        assert (found["status"], found["reason"]) == ("True", care.EMERGENCY)
        serving.annotate(None)
        await asyncio.sleep(2)
        assert serving.condition(care.EMERGENCY) is None
        assert serving.condition("ExtensionsReady") == other


async def test_errors_are_tried_again(serving: Serving) -> None:
    """Contract core 1.2, W1: a seed that does not answer, a garden that does not take the status: later."""
    serving.seed.fail(ServerError("no", status=500), path="/version")
    async with serving.going(30):
        assert "gardener" not in serving.status()
        serving.seed.heal()
        await asyncio.sleep(60)
        assert serving.status()["kubernetesVersion"] == "v1.34.4"


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ("0::/kubepods/besteffort/pod1/" + "a" * 64, "a" * 64),
        ("1:name=systemd:/docker/" + "b" * 64 + "\n0::/", "b" * 64),
        ("0::/" + "a" * 64 + "\n1:name=systemd:/" + "b" * 64, "a" * 64),
        ("0::/user.slice", None),
        (None, None),
    ],
)
def test_id_of_the_container(tmp_path: Path, lines: str | None, known: str | None) -> None:
    """Contract core 5.4: out of the cgroup of v2, else of systemd beside v1, else drawn: always 64 digits."""
    path = tmp_path / "cgroup"
    if lines is not None:
        path.write_text(lines)
    found = container_id(path)
    assert len(found) == 64
    assert known is None or found == known
    assert known is not None or container_id(path) != found
