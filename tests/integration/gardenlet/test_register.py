"""Registering a Seed at a real garden, with gardenlet's own permissions."""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from uuid import uuid4

import pytest

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.transport import HttpTransport
from agents.kube.write import Outcome
from gardenlet.bootstrap.register import NamespaceMissing, check_namespace, register
from gardenlet.bootstrap.version_skew import VersionSkew, check_version_skew
from gardenlet.config import SeedTemplate
from tests.lab.garden.garden import Garden

SPEC = {"provider": {"type": "local", "region": "r"}, "networks": {"pods": "10.1.0.0/16", "services": "10.2.0.0/16"}}


@pytest.fixture
def name() -> str:
    """A seed that nobody knows."""
    return f"seed-{uuid4().hex[:8]}"


@pytest.fixture
async def client(garden: Garden, name: str) -> AsyncIterator[Client]:
    """Its gardenlet's client; a request that is refused fails the test."""
    certificate, key = garden.gardenlet_certificate(name)
    credentials = Credentials(client_certificate=certificate, client_key=key)
    access = ClusterAccess(server=garden.plane.server, ca_data=garden.plane.ca_pem, credentials=credentials)
    found = Client(transport=HttpTransport(access, user_agent="test/1", clock=SystemClock()), rng=Random(1))
    denied = len(garden.denials())
    yield found
    await found.close()
    assert [str(request) for request in garden.denials()[denied:]] == []
    garden.api.delete(f"/apis/core.gardener.cloud/v1beta1/seeds/{name}")


async def test_a_seed_is_registered_once(client: Client, name: str) -> None:
    """Contract core 5.2, 14: labels that the garden adds are left alone, and a second start changes nothing."""
    template = SeedTemplate.model_validate({"metadata": {"name": name, "labels": {"a": "b"}}, "spec": SPEC})
    assert await register(client, template) is Outcome.CREATED
    assert await register(client, template) is Outcome.UNCHANGED
    changed = SeedTemplate.model_validate({"metadata": {"name": name}, "spec": {**SPEC, "taints": [{"key": "t"}]}})
    assert await register(client, changed) is Outcome.CHANGED
    async with asyncio.timeout(20):
        await namespace_of(client, name)


async def namespace_of(client: Client, name: str) -> None:
    """Wait for the Seed's namespace."""
    for _ in range(200):
        try:
            await check_namespace(client, name)
        except NamespaceMissing:
            await asyncio.sleep(0.1)
        else:
            return


async def test_the_gardens_version(client: Client, garden: Garden) -> None:
    """Contract core 1.4: what a real garden says is read with the permissions that every gardenlet has."""
    assert await check_version_skew(client, "v1.149.0") == garden.version
    with pytest.raises(VersionSkew):
        await check_version_skew(client, "v1.151.0")
