"""Operations that are asked for by an annotation on the Seed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import ServerError
from agents.kube.models import SECRETS
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from gardenlet.apis.seed import SEEDS
from gardenlet.config import SecretReference
from gardenlet.controllers.seed import operations
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running

REFERENCE = SecretReference(name="kubeconfig", namespace="garden")
GARDEN = {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "garden"}
GARDEN_TIME = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"
IDENTITY = {"security.gardener.cloud/purpose": "workload-identity-token-requestor"}
IDENTITY_TIME = "workloadidentity.security.gardener.cloud/token-renew-timestamp"


class Asking:
    """A Seed, and Secrets with tokens."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.garden, self.seed = FakeApi(), FakeApi()
        self.reference: SecretReference | None = REFERENCE
        self.put_secret("kubeconfig", {}, {})
        self.put_secret("access", GARDEN, {GARDEN_TIME: "t", "kept": "1"})
        self.put_secret("identity", IDENTITY, {IDENTITY_TIME: "t"})
        self.put_secret("shoot", {**GARDEN, "resources.gardener.cloud/class": "shoot"}, {GARDEN_TIME: "t"})
        self.garden.put(SEEDS, {"metadata": {"name": "one"}, "spec": {}})

    def put_secret(self, name: str, labels: dict[str, str], annotations: dict[str, str]) -> None:
        """Create a Secret."""
        metadata = {"name": name, "namespace": "garden", "labels": labels, "annotations": annotations}
        self.seed.put(SECRETS, {"metadata": metadata, "data": {}})

    def ask(self, operation: str) -> None:
        """Annotate the Seed."""
        annotations = {"gardener.cloud/operation": operation, "other": "1"}
        self.garden.put(SEEDS, {"metadata": {"name": "one", "annotations": annotations}, "spec": {}})

    def annotations(self, name: str) -> dict[str, str]:
        """Return the annotations of a Secret."""
        found = self.seed.read(SECRETS, name, "garden")
        assert found is not None
        return dict(found["metadata"].get("annotations") or {})

    def asked(self) -> dict[str, str]:
        """Return the annotations of the Seed."""
        found = self.garden.read(SEEDS, "one")
        assert found is not None
        return dict(found["metadata"].get("annotations") or {})

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Run the controller."""
        client, seed = (Client(transport=api, rng=Random(1)) for api in (self.garden, self.seed))
        cache = Cache(client=client, clock=self.clock, rng=Random(2))
        seeds = cache.informer(SEEDS)
        parts = operations.Parts(name="one", garden=client, seed=seed, kubeconfig=self.reference)
        controller = operations.new_controller(parts, seeds)
        environment = Environment(clock=self.clock, rng=Random(3), metrics=Metrics())
        async with running(cache.run, lambda: controller.run(environment)):
            await asyncio.sleep(2)
            yield


@pytest.fixture
async def asking() -> Asking:
    """A Seed of which nothing is asked."""
    return Asking()


async def test_our_own_certificate(asking: Asking) -> None:
    """Contract core 4.3, W15: the Secret is annotated, and the Seed's annotation goes; others stay."""
    async with asking.going():
        asking.ask("renew-kubeconfig")
        await asyncio.sleep(2)
        assert asking.annotations("kubeconfig") == {"gardener.cloud/operation": "renew"}
        assert asking.asked() == {"other": "1"}


async def test_without_a_secret_it_is_an_error(asking: Asking) -> None:
    """Contract core 4.3: without `kubeconfigSecret` nothing can be renewed, and the annotation stays."""
    asking.reference = None
    async with asking.going():
        asking.ask("renew-kubeconfig")
        await asyncio.sleep(60)
        assert asking.asked()["gardener.cloud/operation"] == "renew-kubeconfig"


async def test_tokens_of_others(asking: Asking) -> None:
    """Contract core 4.3: the time of renewal goes, of the class garden alone; and of workload identities."""
    async with asking.going():
        asking.ask("renew-garden-access-secrets")
        await asyncio.sleep(2)
        assert asking.annotations("access") == {"kept": "1"}
        assert asking.annotations("shoot") == {GARDEN_TIME: "t"}
        assert asking.annotations("identity") == {IDENTITY_TIME: "t"}
        asking.ask("renew-workload-identity-tokens")
        await asyncio.sleep(2)
        assert asking.annotations("identity") == {}
        assert asking.asked() == {"other": "1"}


async def test_an_annotation_that_was_there_at_the_start(asking: Asking) -> None:
    """Contract core 4.3: asked while we were away."""
    asking.ask("renew-kubeconfig")
    async with asking.going():
        assert asking.asked() == {"other": "1"}


async def test_failures_are_tried_again(asking: Asking) -> None:
    """Contract core 1.2, W1: the annotation goes only when everything is done."""
    asking.seed.fail(ServerError("no", status=500), method="PATCH", times=2)
    async with asking.going():
        asking.ask("renew-garden-access-secrets")
        await asyncio.sleep(30)
        assert asking.annotations("access") == {"kept": "1"}
        assert asking.asked() == {"other": "1"}


@pytest.mark.parametrize("operation", ["reconcile", "something"])
async def test_what_is_not_ours_is_left(asking: Asking, operation: str) -> None:
    """Contract core 4.3: `reconcile` is the garden's."""
    async with asking.going():
        asking.ask(operation)
        await asyncio.sleep(30)
        assert asking.asked()["gardener.cloud/operation"] == operation
