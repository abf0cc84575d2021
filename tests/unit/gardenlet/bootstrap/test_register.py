"""Registering a Seed: what is ours, what is the garden's, and what is nobody's business."""

from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.errors import Forbidden
from agents.kube.write import Outcome
from gardenlet.apis.core_objects import NAMESPACES
from gardenlet.apis.seed import SEEDS
from gardenlet.bootstrap.register import CONFIGURED, NamespaceMissing, SeedRefused, check_namespace, register
from gardenlet.config import SeedTemplate
from tests.support.fake_api import Document, FakeApi

SPEC = {"provider": {"type": "local", "region": "r"}, "networks": {"pods": "10.1.0.0/16"}}


class Registering:
    """A garden in memory, and a template."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.client = Client(transport=self.api, rng=Random(1))

    async def register(
        self, spec: dict[str, Any] | None = None, labels: dict[str, str] | None = None, **annotations: str
    ) -> Outcome:
        """Register seed one."""
        template = {
            "metadata": {"name": "one", "labels": labels or {}, "annotations": annotations},
            "spec": spec or SPEC,
        }
        return await register(self.client, SeedTemplate.model_validate(template))

    @property
    def seed(self) -> Document:
        """The Seed."""
        found = self.api.read(SEEDS, "one")
        assert found is not None
        return found

    def change(self, **fields: Any) -> None:
        """Have somebody else change fields of the Seed, or the garden fill something in."""
        self.api.put(SEEDS, {**self.seed, **fields})

    def writes(self) -> int:
        """Return the number of requests that change something."""
        return sum(call.method != "GET" for call in self.api.calls)


@pytest.fixture
def garden() -> Registering:
    """An empty garden."""
    return Registering()


async def test_a_new_seed(garden: Registering) -> None:
    """Contract core 5.2: created with the role label, the configured metadata and the spec as it stands."""
    assert await garden.register(labels={"a": "b"}, note="x") is Outcome.CREATED
    assert garden.seed["spec"] == SPEC
    assert garden.seed["metadata"]["labels"] == {"a": "b", "gardener.cloud/role": "seed"}
    assert garden.seed["metadata"]["annotations"]["note"] == "x"


async def test_nothing_is_sent_where_nothing_differs(garden: Registering) -> None:
    """Contract core 14: what the garden filled in is not taken away with each start."""
    await garden.register()
    labels = {
        **garden.seed["metadata"]["labels"],
        "name.seed.gardener.cloud/one": "true",
        "seed.gardener.cloud/provider": "local",
    }
    filled = {
        **SPEC,
        "settings": {"verticalPodAutoscaler": {"enabled": True}},
        "networks": {**SPEC["networks"], "ipFamilies": ["IPv4"]},
    }
    garden.change(metadata={**garden.seed["metadata"], "labels": labels}, spec=filled)
    writes = garden.writes()
    for _ in range(3):
        assert await garden.register() is Outcome.UNCHANGED
    assert garden.writes() == writes
    assert garden.seed["spec"] == filled


async def test_drift_is_corrected(garden: Registering) -> None:
    """Contract core 5.2, W27: what somebody changed of what is configured is put right; the role cannot be configured away."""
    await garden.register()
    garden.change(spec={**SPEC, "networks": {"pods": "1.2.3.0/24"}})
    assert await garden.register(labels={"gardener.cloud/role": "other"}) is Outcome.CHANGED
    assert garden.seed["spec"] == SPEC
    assert garden.seed["metadata"]["labels"]["gardener.cloud/role"] == "seed"


async def test_labels_are_ours_and_annotations_everybodys(garden: Registering) -> None:
    """Contract core 5.2: labels that are not configured go, those of the garden and all annotations stay."""
    await garden.register(labels={"old": "1"}, kept="1")
    metadata = garden.seed["metadata"]
    labels = {**metadata["labels"], "foreign": "1", "name.seed.gardener.cloud/parent": "true"}
    garden.change(metadata={**metadata, "labels": labels, "annotations": {**metadata["annotations"], "theirs": "1"}})
    await garden.register(labels={"new": "1", "name.seed.gardener.cloud/evil": "true"})
    assert garden.seed["metadata"]["labels"] == {
        "new": "1",
        "gardener.cloud/role": "seed",
        "name.seed.gardener.cloud/parent": "true",
    }
    assert set(garden.seed["metadata"]["annotations"]) == {"kept", "theirs", CONFIGURED}


async def test_what_is_not_configured_any_more_goes(garden: Registering) -> None:
    """Contract core 5.2: the spec is the configured one: a field that was configured before is removed."""
    await garden.register(
        {**SPEC, "taints": [{"key": "t"}], "dns": {"provider": {"type": "x"}, "internal": {"domain": "d"}}}
    )
    garden.change(spec={**garden.seed["spec"], "settings": {"filled": True}})
    await garden.register({**SPEC, "dns": {"provider": {"type": "x"}}})
    assert garden.seed["spec"] == {**SPEC, "dns": {"provider": {"type": "x"}}, "settings": {"filled": True}}


async def test_default_domains_are_kept(garden: Registering) -> None:
    """Contract core 5.2: without `dns.defaults` in the configuration, those that the Seed has stay."""
    defaults = [{"domain": "d"}]
    await garden.register({**SPEC, "dns": {"defaults": defaults}})
    await garden.register()
    assert garden.seed["spec"]["dns"] == {"defaults": defaults}
    other = [{"domain": "e"}]
    await garden.register({**SPEC, "dns": {"defaults": other}})
    assert garden.seed["spec"]["dns"] == {"defaults": other}


async def test_a_journal_that_is_damaged_counts_as_none(garden: Registering) -> None:
    """Whatever somebody writes into our annotation, nothing of the spec is lost for it."""
    await garden.register({**SPEC, "taints": [{"key": "t"}]})
    for text in ("{", "[]"):
        metadata = garden.seed["metadata"]
        garden.change(metadata={**metadata, "annotations": {CONFIGURED: text}})
        await garden.register()
    assert garden.seed["spec"]["taints"] == [{"key": "t"}]


async def test_the_namespace_may_take_its_time(garden: Registering) -> None:
    """Contract core 5.2, W16: missing and forbidden mean not yet."""
    with pytest.raises(NamespaceMissing):
        await check_namespace(garden.client, "one")
    garden.api.fail(Forbidden("no", status=403), times=1)
    with pytest.raises(NamespaceMissing):
        await check_namespace(garden.client, "one")
    garden.api.put(NAMESPACES, {"metadata": {"name": "seed-one"}})
    await check_namespace(garden.client, "one")


async def test_a_garden_without_the_extensions(garden: Registering) -> None:
    """Contract core 14: what the Seed needs there is named with the garden's reason; when it has come, the Seed is created."""
    reason = 'seeds "one" is forbidden: given Seed uses non-registered extension type: spec.provider.type ("local")'
    garden.api.fail(Forbidden(reason, status=403), method="POST", times=1)
    spec = {**SPEC, "dns": {"provider": {"type": "aws-route53"}}, "backup": {"provider": "gcp"}}
    with pytest.raises(SeedRefused) as raised:
        await garden.register(spec)
    assert raised.value.fields["types"] == "ControlPlane/local, BackupBucket/gcp, DNSRecord/aws-route53"
    assert "non-registered extension type" in str(raised.value)
    assert await garden.register(spec) is Outcome.CREATED
