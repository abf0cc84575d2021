"""Blocks of addresses, and what is excepted from them; pure.

Each network is judged by its own family, whatever else the seed has. The order of exceptions is that of the input, so that the same
networks make the same bytes.

Source: gardener pkg/controller/networkpolicy/peers.go (contract core 8; W31, W32).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

Network = IPv4Network | IPv6Network

PRIVATE_V4 = tuple(ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
PRIVATE_V6 = tuple(ip_network(text) for text in ("fe80::/10", "fc00::/7"))
EVERYTHING_V4, EVERYTHING_V6 = ip_network("0.0.0.0/0"), ip_network("::/0")
_DNS_HOST = 10


def parse(texts: Iterable[object]) -> tuple[Network, ...]:
    """Return networks, each once, in the order in which they come; what is none is left out, as nothing can match it."""
    found: dict[Network, None] = {}
    for text in texts:
        try:
            found[ip_network(str(text), strict=False)] = None
        except ValueError:
            continue
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SeedNetworks:
    """Networks of a seed, as they are configured."""

    pods: tuple[Network, ...] = ()
    services: tuple[Network, ...] = ()
    nodes: tuple[Network, ...] = ()
    blocked: tuple[Network, ...] = ()

    @classmethod
    def of(cls, networks: dict[str, Any]) -> "SeedNetworks":
        """Read `seedConfig.spec.networks`; the fields may be texts or lists."""

        def those(key: str) -> tuple[Network, ...]:
            value = networks.get(key) or ()
            return parse([value] if isinstance(value, str) else value)

        return cls(those("pods"), those("services"), those("nodes"), those("blockCIDRs"))

    @property
    def cluster(self) -> tuple[Network, ...]:
        """Networks of the cluster itself."""
        return (*self.pods, *self.services, *self.nodes)

    @property
    def dns(self) -> tuple[str, ...]:
        """Addresses of the cluster's DNS, one in each service network."""
        return tuple(
            f"{network[_DNS_HOST]}/{network.max_prefixlen}"
            for network in self.services
            if network.num_addresses > _DNS_HOST
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A way to an API server: addresses, and ports as (protocol, number)."""

    addresses: tuple[str, ...]
    ports: tuple[tuple[str, int], ...] = field(default=(("TCP", 443),))

    def rule(self) -> dict[str, Any]:
        """Return the egress rule that allows it."""
        blocks = [
            {"ipBlock": {"cidr": f"{address}/{ip_address(address).max_prefixlen}"}}
            for address in sorted(self.addresses)
        ]
        return {"to": blocks, "ports": [{"protocol": protocol, "port": port} for protocol, port in self.ports]}


def peers(blocks: Sequence[Network], exceptions: Iterable[Network]) -> list[dict[str, Any]]:
    """Return a peer for each block, without what is excepted in it.

    A block that lies in an exception, or equals one, is no peer at all: excepting all of it is not allowed, and leaving the exception
    out would open what was to be closed.
    """
    excepted = tuple(dict.fromkeys(exceptions))
    found = []
    for block in blocks:
        same_family = [one for one in excepted if one.version == block.version]
        if any(_contains(one, block) for one in same_family):
            continue
        inside = [str(one) for one in same_family if _contains(block, one)]
        found.append({"ipBlock": {"cidr": str(block), **({"except": inside} if inside else {})}})
    return found


def _contains(outer: Network, inner: Network) -> bool:
    return outer.version == inner.version and outer.prefixlen <= inner.prefixlen and inner.network_address in outer
