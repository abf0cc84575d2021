"""Whether the networks that are configured for the Seed are those of the cluster that we run in.

A Seed with wrong networks breaks the network policies of all its shoots, so this comes before anything else. A cluster that Gardener made
says its networks; of another one, addresses of Nodes, Pods and Services are samples. An address of another family than the configured
network says nothing about it.

Source: gardener pkg/gardenlet/bootstrappers/seed_config.go (contract core 5.1).
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from agents.core.errors import FatalError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.models import NODES, PODS
from agents.kube.objects import Document
from agents.kube.resource import whole
from gardenlet.apis.core_objects import CONFIG_MAPS, SERVICES

log = get_logger(__name__)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

SHOOT_INFO = ("kube-system", "shoot-info")
SAMPLE = 100
"""So many objects of each kind are looked at."""
_OWN_POOL = ("cni.projectcalico.org/ipv4pools", "cni.projectcalico.org/ipv6pools")
_SAID = {"podNetwork": "pods", "serviceNetwork": "services", "nodeNetwork": "nodes"}


class WrongNetworks(FatalError):
    """The configuration of the Seed does not describe this cluster."""


async def check_networks(seed: Client, networks: Mapping[str, Any]) -> None:
    """Compare `seedConfig.spec.networks` with the cluster.

    Raises:
        WrongNetworks: they differ (fatal).
        ApiError: the seed does not answer, or refuses.
    """
    try:
        info = await seed.get(CONFIG_MAPS, SHOOT_INFO[1], namespace=SHOOT_INFO[0])
    except NotFound:
        await _sample(seed, networks)
        return
    for key, name in _SAID.items():
        said, configured = info.data.get(key), networks.get(name)
        # The nodes' network is in neither if nobody knows it.
        if (name != "nodes" or (said and configured)) and said != configured:
            raise WrongNetworks(
                "seedConfig does not describe this cluster",
                field=f"seedConfig.spec.networks.{name}",
                configured=configured,
                cluster=said,
            )


async def _sample(seed: Client, networks: Mapping[str, Any]) -> None:
    found: dict[str, Iterable[tuple[str, Address]]] = {
        "nodes": _of_nodes(await _some(seed, NODES)),
        "pods": _of_pods(await _some(seed, PODS)),
        "services": _of_services(await _some(seed, SERVICES)),
    }
    for name, addresses in found.items():
        configured = networks.get(name)
        if not configured:
            continue
        network = ip_network(str(configured), strict=False)
        for owner, address in addresses:
            if address.version == network.version and address not in network:
                raise WrongNetworks(
                    "seedConfig does not describe this cluster",
                    field=f"seedConfig.spec.networks.{name}",
                    configured=str(configured),
                    address=str(address),
                    of=owner,
                )


async def _some(seed: Client, resource: Any) -> list[Document]:
    return list((await seed.list(whole(resource), limit=SAMPLE)).items)


def _of_nodes(items: Iterable[Document]) -> Iterator[tuple[str, Address]]:
    for item in items:
        for entry in (item.content.get("status") or {}).get("addresses") or ():
            if entry.get("type") == "InternalIP" and (address := _parse(entry.get("address"))) is not None:
                yield f"node {item.metadata.name}", address


def _of_pods(items: Iterable[Document]) -> Iterator[tuple[str, Address]]:
    for item in items:
        own_pool = any(key in item.metadata.annotations for key in _OWN_POOL)
        if (item.content.get("spec") or {}).get("hostNetwork") is True or own_pool:
            continue
        if (address := _parse((item.content.get("status") or {}).get("podIP"))) is not None:
            yield f"pod {item.metadata.namespace}/{item.metadata.name}", address


def _of_services(items: Iterable[Document]) -> Iterator[tuple[str, Address]]:
    for item in items:
        spec = item.content.get("spec") or {}
        if spec.get("type", "ClusterIP") == "ClusterIP" and (address := _parse(spec.get("clusterIP"))) is not None:
            yield f"service {item.metadata.namespace}/{item.metadata.name}", address


def _parse(text: object) -> Address | None:
    """Return an address; None for what has none, or `None`."""
    try:
        return ip_address(str(text))
    except ValueError:
        return None
