"""Steps of the start that write, against a real garden and with no more than a gardenlet's rights."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.transport import HttpTransport
from agents.kube.write import Outcome
from gardenlet.apis.core_objects import CONFIG_MAPS
from gardenlet.bootstrap import default_domains, self_upgrade
from gardenlet.bootstrap.interrupted_shoots import abort_interrupted
from gardenlet.bootstrap.register import register
from gardenlet.config import SeedTemplate
from gardenlet.controllers.networkpolicy import api_server
from tests.lab.controlplane import ControlPlane
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import SEEDS
from tests.lab.garden.permissions import USER
from tests.support.eventually import eventually

CORE = "/apis/core.gardener.cloud/v1beta1/namespaces"
GARDENLETS = "/apis/seedmanagement.gardener.cloud/v1alpha1/namespaces/garden/gardenlets"


def connect(plane: ControlPlane, certificate: bytes, key: bytes) -> Client:
    """Return a client of an API server."""
    credentials = Credentials(client_certificate=certificate, client_key=key)
    access = ClusterAccess(server=plane.server, ca_data=plane.ca_pem, credentials=credentials)
    return Client(transport=HttpTransport(access, user_agent="test/1", clock=SystemClock()), rng=Random(1))


@pytest.fixture
def name() -> str:
    """A seed that nobody knows."""
    return f"seed-{uuid4().hex[:8]}"


@pytest.fixture
async def client(garden: Garden, name: str) -> AsyncIterator[Client]:
    """Its gardenlet's client of the garden; a request that is refused fails the test."""
    found, denied = connect(garden.plane, *garden.gardenlet_certificate(name)), len(garden.denials())
    yield found
    await found.close()
    assert [str(request) for request in garden.denials()[denied:]] == []
    garden.api.delete(f"{SEEDS}/{name}")


@pytest.fixture
async def seed(garden: Garden) -> AsyncIterator[Client]:
    """A gardenlet's client of the seed."""
    found = connect(garden.seed, *garden.seed_certificate())
    yield found
    await found.close()


def make_shoot(garden: Garden, name: str, spec_seed: str, status_seed: str, state: str) -> str:
    """Create a Shoot with an operation; returns its path."""
    garden.api.ensure("/api/v1/namespaces", {"metadata": {"name": "garden-p"}})
    body = {"metadata": {"name": name}, "spec": {"seedName": spec_seed}}
    garden.api.create(f"{CORE}/garden-p/shoots", {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", **body})
    operation = {"type": "Reconcile", "state": state, "progress": 33, "description": "on its way"}
    status = {"seedName": status_seed, "lastOperation": operation, "technicalID": "shoot--p--x"}
    garden.api.patch(f"{CORE}/garden-p/shoots/{name}/status", {"status": status})
    # The labels follow the status with the next write of the object itself.
    garden.api.patch(f"{CORE}/garden-p/shoots/{name}", {"metadata": {"annotations": {"touched": "true"}}})
    return f"{CORE}/garden-p/shoots/{name}"


async def test_only_interrupted_operations_of_ours_are_aborted(garden: Garden, client: Client, name: str) -> None:
    """Contract core 1.2, 13 W28: Processing becomes Aborted, all else stays; a shoot that comes to us is still another's."""
    ours = make_shoot(garden, f"{name}-a", name, name, "Processing")
    done = make_shoot(garden, f"{name}-b", name, name, "Succeeded")
    coming = make_shoot(garden, f"{name}-c", name, "other", "Processing")
    leaving = make_shoot(garden, f"{name}-d", "other", name, "Processing")
    paths = [ours, done, coming, leaving]
    try:
        assert sorted(await abort_interrupted(client, name)) == [f"garden-p/{name}-a", f"garden-p/{name}-d"]
        found: list[dict[str, Any]] = [garden.api.get(path)["status"] for path in paths]
        assert [status["lastOperation"]["state"] for status in found] == [
            "Aborted",
            "Succeeded",
            "Processing",
            "Aborted",
        ]
        assert found[0]["lastOperation"]["description"] == "on its way"
        assert found[0]["technicalID"] == "shoot--p--x"
        assert await abort_interrupted(client, name) == []
    finally:
        for path in paths:
            garden.api.delete(path)


async def test_default_domains_are_filled_in_once(garden: Garden, client: Client, name: str) -> None:
    """Contract core 5.2: the garden's domains come into a Seed without any; a configured one stays, and so does another start's."""
    spec = {"provider": {"type": "local", "region": "r"}, "dns": {"provider": {"type": "local"}}}
    template = SeedTemplate.model_validate({"metadata": {"name": name}, "spec": spec})
    await register(client, template)
    namespace = f"seed-{name}"
    garden.api.ensure("/api/v1/namespaces", {"metadata": {"name": namespace}})
    assert await default_domains.fill_in(client, template) is Outcome.UNCHANGED
    annotations = {"dns.gardener.cloud/provider": "local", "dns.gardener.cloud/domain": "lab.internal"}
    metadata = {"name": "dd", "labels": {"gardener.cloud/role": "default-domain"}, "annotations": annotations}
    garden.api.ensure(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": metadata})
    assert await default_domains.fill_in(client, template) is Outcome.CHANGED
    assert await default_domains.fill_in(client, template) is Outcome.UNCHANGED
    await register(client, template)
    dns = garden.api.get(f"{SEEDS}/{name}")["spec"]["dns"]
    assert dns["provider"] == {"type": "local"}
    assert [entry["domain"] for entry in dns["defaults"]] == ["lab.internal"]
    configured = template.model_copy(update={"spec": {**spec, "dns": {"defaults": [{"domain": "own.internal"}]}}})
    assert await default_domains.fill_in(client, configured) is Outcome.UNCHANGED


async def test_a_gardenlet_for_upgrades_is_handed_over(garden: Garden, client: Client, seed: Client, name: str) -> None:
    """Contract core 1.2: the object that the ConfigMap holds is created once, and the ConfigMap goes; a wrong one is named and kept."""
    admin, maps = garden.seed.admin, f"/api/v1/namespaces/{name}/configmaps"
    admin.ensure("/api/v1/namespaces", {"metadata": {"name": name}})
    garden.api.ensure("/api/v1/namespaces", {"metadata": {"name": "garden"}})

    def leave(text: str) -> None:
        admin.create(maps, {"metadata": {"name": self_upgrade.NAME}, "data": {self_upgrade.KEY: text}})

    assert await self_upgrade.hand_over(seed, client, name) is False
    document = f"""
apiVersion: seedmanagement.gardener.cloud/v1alpha1
kind: Gardenlet
metadata: {{name: {name}, namespace: garden}}
spec: {{deployment: {{helm: {{ociRepository: {{ref: "x:1"}}}}}}}}
"""
    for text in (document, document.replace("x:1", "x:2")):  # the second finds the first one's
        leave(text)
        assert await self_upgrade.hand_over(seed, client, name) is True
        assert admin.find(f"{maps}/{self_upgrade.NAME}") is None
    assert garden.api.get(f"{GARDENLETS}/{name}")["spec"]["deployment"]["helm"]["ociRepository"]["ref"] == "x:1"
    for wrong in ("{", "[]", "kind: Gardenlet", document.replace("kind: Gardenlet", "kind: Seed")):
        leave(wrong)
        with pytest.raises(self_upgrade.UnreadableGardenlet, match=self_upgrade.NAME):
            await self_upgrade.hand_over(seed, client, name)
        await seed.get(CONFIG_MAPS, self_upgrade.NAME, namespace=name)
        admin.delete(f"{maps}/{self_upgrade.NAME}")
    garden.api.delete(f"{GARDENLETS}/{name}")


async def test_endpoint_slices_are_read_where_that_is_allowed(garden: Garden, seed: Client) -> None:
    """Contract core 0, 12.2: it is asked, not tried; the usual role has Endpoints only, and a richer one brings EndpointSlices."""
    assert await api_server.readable(seed) is api_server.PLAIN
    admin, rbac = garden.seed.admin, "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    reader = {"metadata": {"name": "slices"}}
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    admin.ensure(f"{rbac}/roles", {**reader, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "slices"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
    admin.ensure(f"{rbac}/rolebindings", {**reader, "roleRef": reference, "subjects": [subject]})
    try:

        async def richer() -> bool:
            return await api_server.readable(seed) is api_server.SLICES

        await eventually(richer, what="EndpointSlices to be chosen")
    finally:
        admin.delete(f"{rbac}/rolebindings/slices")
        admin.delete(f"{rbac}/roles/slices")
