"""The lab's own network: one namespace with a bridge, in which the control plane lives and to which machines connect.

Everything is inside network namespaces, so every lab can use the same addresses. Only one thing is on the host: a veth
pair with a /30 of its own, through which tests and people reach the API server. A relay process would have left the host
untouched altogether, but it would have stood between a test and the connection faults it wants to see.
"""

import hashlib
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from tests.lab.commands import run, run_all
from tests.lab.errors import LabError
from tests.lab.state import Ledger, locked

SERVER_ADDRESS = "10.200.0.1"
SERVER_PORT = 6443
SERVER_NAME = "api.lab.internal"
CLUSTER_ADDRESS = "10.0.0.1"
"""Of the Service `kubernetes`: the first of the API server's range of addresses for Services."""
REGISTRY_NAME = "registry.lab.internal"
_HOST_NETWORKS = ipaddress.ip_network("10.250.0.0/16")
_FIRST_MACHINE = 11
# All that a cluster without kube-proxy needs, so that Pods, and programs of the machine, find their API server.
_SERVICES = f"""\
table ip services {{
  chain pods {{
    type nat hook prerouting priority -100
    ip daddr {CLUSTER_ADDRESS} tcp dport 443 dnat to {SERVER_ADDRESS}:{SERVER_PORT}
  }}
  chain machine {{
    type nat hook output priority -100
    ip daddr {CLUSTER_ADDRESS} tcp dport 443 dnat to {SERVER_ADDRESS}:{SERVER_PORT}
  }}
}}
"""
_PREFIX_LENGTH = 24
_BRIDGE_MAC = "02:00:0a:c8:00:01"
"""Without one of its own a bridge takes the lowest of its ports', so that it changed when a machine came or went: all others lost the
API server then until their neighbour tables were tried again, most of a minute later."""


@dataclass(frozen=True, slots=True)
class MachineAddress:
    """What a machine has on the lab's bridge.

    Attributes:
        index: number of the machine in its lab, from 0.
    """

    index: int

    @property
    def address(self) -> str:
        """IP address of the machine."""
        return f"10.200.0.{_FIRST_MACHINE + self.index}"

    @property
    def pod_network(self) -> str:
        """Addresses of the Pods on it."""
        return f"10.201.{self.index}.0/24"


def short_name(*parts: str) -> str:
    """Return a name for a network interface: at most 15 characters, the same for the same parts."""
    return "gl" + hashlib.sha256("/".join(parts).encode()).hexdigest()[:11]


def free_host_network(addresses: list[str]) -> ipaddress.IPv4Network:
    """Return the first /30 of the lab's range that holds none of the host's addresses.

    Raises:
        LabError: all are in use.
    """
    used = [ipaddress.ip_interface(address).network for address in addresses]
    for candidate in _HOST_NETWORKS.subnets(new_prefix=30):
        if not any(candidate.overlaps(network) for network in used if network.version == 4):
            return ipaddress.IPv4Network(candidate)
    raise LabError(f"all of {_HOST_NETWORKS} is in use on this host")


class LabNetwork:
    """Namespace, bridge and the way in from the host."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.netns = f"gardener-lab-{ledger.name}"
        self._host_interface = short_name(ledger.name)

    @property
    def host_side_address(self) -> str:
        """Address of the lab as the host reaches it."""
        return self._address_path.read_text(encoding="utf-8").strip()

    @property
    def _address_path(self) -> Path:
        return self._ledger.directory / "address"

    def create(self) -> None:
        """Make it all; recorded first."""
        self._ledger.record("netns", name=self.netns)
        self._ledger.record("veth", name=self._host_interface)
        inside = ["ip", "-n", self.netns]
        run_all(
            [
                ["ip", "netns", "add", self.netns],
                [*inside, "link", "set", "lo", "up"],
                [*inside, "link", "add", "br0", "address", _BRIDGE_MAC, "type", "bridge"],
                [*inside, "address", "add", f"{SERVER_ADDRESS}/{_PREFIX_LENGTH}", "dev", "br0"],
                [*inside, "link", "set", "br0", "up"],
                [*in_netns(self.netns), "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"],
            ]
        )
        with locked("network", timeout=30):
            listed = json.loads(run("ip", "-json", "-4", "address"))
            addresses = [f"{a['local']}/{a['prefixlen']}" for link in listed for a in link.get("addr_info", [])]
            network = free_host_network(addresses)
            host, lab = (f"{address}/{network.prefixlen}" for address in network.hosts())
            run_all(
                [
                    [
                        "ip",
                        "link",
                        "add",
                        self._host_interface,
                        "type",
                        "veth",
                        "peer",
                        "name",
                        "host0",
                        "netns",
                        self.netns,
                    ],
                    ["ip", "address", "add", host, "dev", self._host_interface],
                    ["ip", "link", "set", self._host_interface, "up"],
                    [*inside, "address", "add", lab, "dev", "host0"],
                    [*inside, "link", "set", "host0", "up"],
                ]
            )
        self._address_path.write_text(lab.split("/")[0], encoding="utf-8")

    def plug_in(self, machine: str, where: MachineAddress) -> str:
        """Make a fresh network namespace for a machine, connected and configured; returns its name.

        The address of the Service `kubernetes` is translated to the API server's in it. Fresh for every boot: parameters below `net.` and packet filters belong to the running kernel, not to the disk.
        """
        netns = f"{self.netns}-{machine}"
        port = short_name(self._ledger.name, machine)
        self._ledger.record("veth", name=port, netns=self.netns, owner=machine)
        self._ledger.record("netns", name=netns, owner=machine)
        lab, inside = ["ip", "-n", self.netns], ["ip", "-n", netns]
        # It would go with its namespace, but a namespace lives on, address and all, while a connection in it is being closed.
        if port in run(*lab, "-brief", "link", "show", "type", "veth"):
            run(*lab, "link", "delete", port)
        if Path("/run/netns", netns).exists():
            run("ip", "netns", "delete", netns)
        run_all(
            [
                ["ip", "netns", "add", netns],
                [*lab, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", netns],
                [*lab, "link", "set", port, "master", "br0", "up"],
                [*lab, "route", "replace", where.pod_network, "via", where.address],
                [*inside, "link", "set", "lo", "up"],
                [*inside, "address", "add", f"{where.address}/{_PREFIX_LENGTH}", "dev", "eth0"],
                [*inside, "link", "set", "eth0", "up"],
                [*inside, "route", "add", "default", "via", SERVER_ADDRESS],
                [*in_netns(netns), "nft", _SERVICES],
            ]
        )
        return netns


def in_netns(netns: str) -> list[str]:
    """Return the beginning of a command that is to run in a network namespace."""
    return ["nsenter", f"--net=/run/netns/{netns}"]
