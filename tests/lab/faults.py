"""Network faults of one machine, made with nftables in its own network namespace."""

import subprocess
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.network import in_netns

_ESTABLISHED = "01"  # as /proc/net/tcp prints the state
_TABLE = "gardener_lab"


class NetworkFaults:
    """Faults for a machine; needs its `netns` and `pid1`."""

    @property
    def netns(self) -> str:
        """Name of the network namespace."""
        raise NotImplementedError

    @property
    def pid1(self) -> int:
        """Process id of the machine's systemd."""
        raise NotImplementedError

    def drop_established(self, port: int) -> int:
        """Drop all packets of the TCP connections to a port that exist now; new connections work.

        Both ends keep believing that the connection is open: a half-open connection.

        Returns:
            How many connections that are.
        """
        table = Path(f"/proc/{self.pid1}/net/tcp").read_text() + Path(f"/proc/{self.pid1}/net/tcp6").read_text()
        local = established_ports(table, port)
        if local:
            ports = ", ".join(map(str, local))
            self._filter(
                f"chain out {{ type filter hook output priority 0; tcp dport {port} tcp sport {{ {ports} }} drop; }}",
                f"chain in {{ type filter hook input priority 0; tcp sport {port} tcp dport {{ {ports} }} drop; }}",
            )
        return len(local)

    def cut_network(self) -> None:
        """Drop every packet that enters or leaves the machine; its interface stays up."""
        self._filter(
            'chain out { type filter hook output priority 0; oifname "eth0" drop; }',
            'chain in { type filter hook input priority 0; iifname "eth0" drop; }',
        )

    def drop_address(self, address: str) -> None:
        """Drop every packet to and from an address; all others work."""
        self._filter(
            f"chain out {{ type filter hook output priority 0; ip daddr {address} drop; }}",
            f"chain in {{ type filter hook input priority 0; ip saddr {address} drop; }}",
        )

    def restore_network(self) -> None:
        """End all faults."""
        self._nft(f"table inet {_TABLE}\ndelete table inet {_TABLE}\n")

    def _filter(self, *chains: str) -> None:
        lines = [f"table inet {_TABLE}", f"delete table inet {_TABLE}", f"table inet {_TABLE} {{", *chains, "}", ""]
        self._nft("\n".join(lines))

    def _nft(self, rules: str) -> None:
        command = [*in_netns(self.netns), "nft", "-f", "-"]
        done = subprocess.run(command, input=rules, check=False, capture_output=True, text=True, timeout=30)
        if done.returncode != 0:
            raise LabError(f"nft: {done.stderr.strip()[:500]}")


def established_ports(table: str, port: int) -> list[int]:
    """Return the local ports of established connections to a remote port, from the text of /proc/net/tcp."""
    found = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port:
            found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)
