"""Whether a Seed's networks are those of its cluster."""

from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.models import NODES, PODS
from gardenlet.apis.core_objects import CONFIG_MAPS, SERVICES
from gardenlet.bootstrap.seed_networks import WrongNetworks, check_networks
from tests.support.fake_api import FakeApi

NETWORKS = {"nodes": "10.0.0.0/16", "pods": "10.1.0.0/16", "services": "10.2.0.0/16"}
SAID = {"nodeNetwork": "10.0.0.0/16", "podNetwork": "10.1.0.0/16", "serviceNetwork": "10.2.0.0/16"}


@pytest.fixture
def api() -> FakeApi:
    """A seed with objects of its networks, and with some that are no samples."""
    found = FakeApi()
    node(found, "10.0.0.1", "fd00::1")
    pod(found, "own", "10.1.0.1")
    pod(found, "host", "192.168.0.1", hostNetwork=True)
    found.put(PODS, {"metadata": {"name": "pending", "namespace": "n"}, "spec": {}})
    service(found, "own", "10.2.0.1")
    service(found, "headless", "None")
    service(found, "external", "", type="ExternalName")
    return found


def node(api: FakeApi, *addresses: str) -> None:
    """Create a Node."""
    entries = [{"type": "InternalIP", "address": address} for address in addresses]
    entries.append({"type": "Hostname", "address": "x"})
    api.put(NODES, {"metadata": {"name": "a"}, "status": {"addresses": entries}})


def pod(api: FakeApi, name: str, address: str, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    """Create a Pod."""
    metadata = {"name": name, "namespace": "n", "annotations": annotations or {}}
    api.put(PODS, {"metadata": metadata, "spec": spec, "status": {"podIP": address}})


def service(api: FakeApi, name: str, address: str, **spec: Any) -> None:
    """Create a Service."""
    api.put(SERVICES, {"metadata": {"name": name, "namespace": "n"}, "spec": {"clusterIP": address, **spec}})


def say(api: FakeApi, data: dict[str, str]) -> None:
    """Have the cluster say its networks."""
    api.put(CONFIG_MAPS, {"metadata": {"name": "shoot-info", "namespace": "kube-system"}, "data": data})


async def check(api: FakeApi, networks: dict[str, Any]) -> None:
    """Compare."""
    await check_networks(Client(transport=api, rng=Random(1)), networks)


async def test_networks_that_are_right(api: FakeApi) -> None:
    """Contract core 5.1: samples of another family, of the host's network and without an address say nothing (W40)."""
    await check(api, NETWORKS)
    await check(api, {"pods": "10.1.0.0/16", "services": "10.2.0.0/16"})
    assert all(dict(call.query).get("limit") == "100" for call in api.calls if call.path.endswith(("pods", "services")))


@pytest.mark.parametrize(("name", "of"), [("nodes", "node a"), ("pods", "pod n/own"), ("services", "service n/own")])
async def test_an_address_elsewhere(api: FakeApi, name: str, of: str) -> None:
    """Contract core 5.1: the error names the field, the address and whose it is."""
    with pytest.raises(WrongNetworks) as caught:
        await check(api, {**NETWORKS, name: "172.16.0.0/16"})
    assert f"seedConfig.spec.networks.{name}" in str(caught.value)
    assert of in str(caught.value)


async def test_pods_of_a_pool_of_their_own(api: FakeApi) -> None:
    """Contract core 5.1: Pods with addresses out of a pool of their own are no samples."""
    pod(api, "pool", "172.31.0.1", {"cni.projectcalico.org/ipv4pools": "[x]"})
    await check(api, NETWORKS)


async def test_dual_stack_seeds(api: FakeApi) -> None:
    """Contract core 5.1, W40: an IPv6 Pod is outside of no IPv4 network."""
    pod(api, "six", "fd00:1::1")
    service(api, "six", "fd00:2::1")
    await check(api, NETWORKS)


async def test_a_cluster_that_says_its_networks(api: FakeApi) -> None:
    """Contract core 5.1: what is said counts, and no sample; the nodes' network only where both know it."""
    say(api, SAID)
    pod(api, "odd", "172.16.0.1")
    await check(api, NETWORKS)
    await check(api, {key: value for key, value in NETWORKS.items() if key != "nodes"})
    say(api, {key: value for key, value in SAID.items() if key != "nodeNetwork"})
    await check(api, NETWORKS)


@pytest.mark.parametrize("key", ["podNetwork", "serviceNetwork", "nodeNetwork"])
async def test_a_cluster_that_says_something_else(api: FakeApi, key: str) -> None:
    """Contract core 5.1: each of the three is compared."""
    say(api, {**SAID, key: "172.16.0.0/16"})
    with pytest.raises(WrongNetworks):
        await check(api, NETWORKS)
