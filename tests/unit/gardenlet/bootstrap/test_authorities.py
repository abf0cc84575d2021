"""Keeping up with the garden's certificate authorities."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.errors import Unavailable
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import SECRETS
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request
from gardenlet.apis.core_objects import CONFIG_MAPS
from gardenlet.bootstrap.authorities import Parts, new_controller
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.secrets import KubeconfigSecret
from gardenlet.config import SecretReference
from tests.lab import pki
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running

OLD, NEW = (pki.Authority.create(name).certificate_pem for name in ("old", "new"))
RENEW = {"gardener.cloud/operation": "renew"}


class Following:
    """A stored kubeconfig with the old authorities, and a garden."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.garden, self.beats, self.seed = FakeApi(), FakeApi(), FakeApi()
        access = ClusterAccess(server="https://garden", ca_data=OLD, credentials=Credentials(token="t"))
        data = {"kubeconfig": base64.b64encode(kubeconfig.render(access)).decode()}
        metadata = {"name": "kubeconfig", "namespace": "garden", "annotations": RENEW}
        self.seed.put(SECRETS, {"metadata": metadata, "data": data})

    def publish(self, data: dict[str, str]) -> None:
        """Have the garden publish."""
        metadata = {"name": "kube-root-ca.crt", "namespace": "gardener-system-public"}
        self.garden.put(CONFIG_MAPS, {"metadata": metadata, "data": data})

    @asynccontextmanager
    async def going(self, override: str = "") -> AsyncIterator[None]:
        """Run."""
        clients = GardenClients(
            ClusterAccess(server="https://garden"),
            *(Client(transport=api, rng=Random(1)) for api in (self.garden, self.beats)),
        )
        secret = KubeconfigSecret(
            Client(transport=self.seed, rng=Random(2)), SecretReference(name="kubeconfig", namespace="garden")
        )
        controller = new_controller(
            Parts(secret=secret, clients=clients, override=override), Request("garden", "kubeconfig")
        )
        environment = Environment(clock=self.clock, rng=Random(3), metrics=Metrics())
        async with running(lambda: controller.run(environment)):
            await asyncio.sleep(5)
            yield

    def stored(self) -> bytes:
        """Return the stored authorities."""
        secret = self.seed.read(SECRETS, "kubeconfig", "garden")
        assert secret is not None
        assert secret["metadata"]["annotations"] == RENEW  # W13: a request for a new certificate is not lost
        return kubeconfig.parse(base64.b64decode(secret["data"]["kubeconfig"])).ca_data


@pytest.fixture
async def following() -> Following:
    """A seed and its garden."""
    return Following()


async def test_new_authorities_are_stored_and_used(following: Following) -> None:
    """Contract core 3.6, 13 W12, 13 W13: at the start, and every ten minutes; by all clients; the annotation stays."""
    following.publish({"ca.crt": OLD.decode()})
    async with following.going():
        assert following.garden.switches == []
        following.publish({"ca.crt": NEW.decode()})
        await asyncio.sleep(600)
        assert following.stored() == NEW
        assert [access.ca_data for access in (*following.garden.switches, *following.beats.switches)] == [NEW, NEW]


async def test_old_and_new_together_while_the_new_ones_alone_do_not_do(following: Following) -> None:
    """Contract core 3.6: the garden still shows a certificate of the old ones: both are trusted, the old ones go later."""
    following.publish({"ca.crt": NEW.decode()})
    following.garden.fail(Unavailable("not verified"), path="/version", times=1)
    async with following.going():
        assert following.stored() == NEW + OLD
        await asyncio.sleep(600)
        assert following.stored() == NEW


async def test_authorities_that_verify_nothing_are_not_stored(following: Following) -> None:
    """Contract core 3.6: what is published by mistake cuts nobody off."""
    following.publish({"ca.crt": NEW.decode()})
    following.garden.fail(Unavailable("not verified"), path="/version")
    async with following.going():
        await asyncio.sleep(3600)
        assert following.stored() == OLD
        assert following.garden.switches == []


@pytest.mark.parametrize("data", [None, {}, {"ca.crt": ""}])
async def test_an_omission_takes_no_trust_away(following: Following, data: dict[str, str] | None) -> None:
    """Contract core 3.6, W11: no ConfigMap, no key or an empty one: the authorities stay, and are never switched off."""
    if data is not None:
        following.publish(data)
    async with following.going():
        await asyncio.sleep(1300)
        assert following.stored() == OLD
        assert following.garden.switches == []


@pytest.mark.parametrize("text", ["none", "null"])
async def test_none_means_the_systems(following: Following, text: str) -> None:
    """Contract core 3.6: those literals are the system's trust store, and never no verification."""
    following.publish({"ca.crt": text})
    async with following.going():
        assert following.stored() == b""
        (access,) = following.garden.switches
        assert not access.insecure


async def test_the_configuration_wins(following: Following) -> None:
    """Contract core 0, D4: the removed field `gardenClusterCACert` is still honoured."""
    following.publish({"ca.crt": OLD.decode()})
    async with following.going(base64.b64encode(NEW).decode()):
        assert following.stored() == NEW
    async with following.going("no base64!"):
        assert following.stored() == NEW


async def test_a_client_that_is_behind_follows(following: Following) -> None:
    """The heartbeat's connections are switched with the next look, if they could not be at once."""
    following.publish({"ca.crt": NEW.decode()})
    following.beats.fail(Unavailable("away"))
    async with following.going():
        assert following.beats.switches == []
        following.beats.heal()
        await asyncio.sleep(600)
        assert len(following.beats.switches) == 1
