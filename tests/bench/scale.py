"""`python -m tests.bench.scale`: what a fleet of our agents costs an API server, measured with real agent code.

Many agents, some in each process, each with an API client, a disk and a systemd of its own, against a real kube-apiserver
and etcd on the loopback. In the middle a new OSC arrives, which every node may apply after its share of the delay window, as
gardener-resource-manager spreads them. The API server sees an administrator: what the authorizer webhook costs is not in it.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure, render, save
from tests.lab.api import wait_for
from tests.lab.binaries import find_binaries
from tests.lab.controlplane import ControlPlane, plain_control_plane
from tests.lab.errors import LabError
from tests.lab.progress import to_stderr

SECRET_NAME = "gardener-node-agent-bench"
OUTPUT = Path(__file__).resolve().parents[2] / "build/bench-scale.json"
PER_PROCESS = 20
WINDOW_SECONDS = 60
_APPLIED = "checksum/cloud-config-data"
_DELAY = "node-agent.gardener.cloud/reconciliation-delay"
_TICKS = os.sysconf("SC_CLK_TCK")


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"bench-{number:04}"


@dataclass(slots=True)
class Observation:
    """What was seen of the fleet.

    Attributes:
        gaps: longest time between two renewals of a Lease that was seen, by its name.
        applied: when a node was first seen with the new OSC, in seconds since it was published.
    """

    gaps: dict[str, float] = field(default_factory=dict)
    applied: dict[str, float] = field(default_factory=dict)
    _renewed: dict[str, datetime] = field(default_factory=dict)

    def look_at_leases(self, leases: Sequence[dict[str, Any]]) -> None:
        """Note the renewals."""
        for lease in leases:
            name, renewed = lease["metadata"]["name"], datetime.fromisoformat(lease["spec"]["renewTime"])
            if (before := self._renewed.get(name)) is not None and renewed != before:
                self.gaps[name] = max(self.gaps.get(name, 0.0), (renewed - before).total_seconds())
            self._renewed[name] = renewed

    def look_at_nodes(self, nodes: Sequence[dict[str, Any]], checksum: str, seconds: float) -> None:
        """Note who has the new OSC."""
        for node in nodes:
            if node["metadata"].get("annotations", {}).get(_APPLIED) == checksum:
                self.applied.setdefault(node["metadata"]["name"], seconds)


def publish(plane: ControlPlane, version: int) -> str:
    """Publish an OSC with 20 files and 5 units; returns its checksum."""
    files = [
        {"path": f"/etc/bench/{number}", "content": {"inline": {"encoding": "", "data": f"{version}\n" * 50}}}
        for number in range(20)
    ]
    unit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    units = [{"name": f"bench-{number}.service", "content": f"# {version}\n{unit}"} for number in range(5)]
    data = json.dumps({"spec": {"files": files, "units": units}}).encode()
    checksum = hashlib.sha256(data).hexdigest()
    metadata = {"name": SECRET_NAME, "annotations": {"checksum/data-script": checksum}}
    body = {"metadata": metadata, "data": {"osc.yaml": base64.b64encode(data).decode()}}
    path = "/api/v1/namespaces/kube-system/secrets"
    if version == 1:
        plane.admin.create(path, body)
    else:
        plane.admin.patch(f"{path}/{SECRET_NAME}", body)
    return checksum


def register(plane: ControlPlane, agents: int) -> None:
    """Create the Nodes, each with its share of the delay window."""
    for number in range(agents):
        delay = WINDOW_SECONDS * number / max(1, agents - 1)
        metadata = {
            "name": node_name(number),
            "labels": {"kubernetes.io/hostname": node_name(number)},
            "annotations": {_DELAY: f"{delay:.3f}s"},
        }
        plane.admin.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})


@contextlib.contextmanager
def fleet(plane: ControlPlane, agents: int, folder: Path) -> Iterator[None]:
    """Run the agents' processes for the length of a block."""
    kubeconfig = plane.kubeconfig(folder / "kubeconfig")
    processes = []
    try:
        for first in range(0, agents, PER_PROCESS):
            command = [sys.executable, "-m", "tests.bench.scale_agents", f"--first={first}"]
            command += [f"--count={min(PER_PROCESS, agents - first)}", f"--kubeconfig={kubeconfig}"]
            command += [f"--folder={folder / 'nodes'}"]
            log = (folder / f"agents-{first}.log").open("wb")
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        yield
        if ended := [process.args for process in processes if process.poll() is not None]:
            raise LabError(f"agents ended: {ended}; {(folder / 'agents-0.log').read_text()[-2000:]}")
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def requests(plane: ControlPlane) -> tuple[float, float]:
    """Return all requests that the API server has answered, and the watches that are open."""
    total, watches = 0.0, 0.0
    for line in plane.admin.raw("GET", "/metrics")[1].decode().splitlines():
        if line.startswith("apiserver_request_total{") and 'resource="' in line:
            total += float(line.rpartition(" ")[2])
        elif line.startswith("apiserver_longrunning_requests{") and 'verb="WATCH"' in line:
            watches += float(line.rpartition(" ")[2])
    return total, watches


def cpu_seconds(plane: ControlPlane) -> float:
    """Return the CPU time of kube-apiserver."""
    fields = Path(f"/proc/{plane.process('kube-apiserver').pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(plane: ControlPlane, agents: int, seconds: float, folder: Path) -> list[Figure]:
    """Run the fleet and return the figures."""
    register(plane, agents)
    first = publish(plane, 1)
    idle_watches = requests(plane)[1]
    with fleet(plane, agents, folder):
        started = Observation()

        def all_applied() -> bool:
            started.look_at_nodes(plane.admin.list("/api/v1/nodes"), first, 0)
            return len(started.applied) == agents

        wait_for(all_applied, timeout=300, what="all agents to have applied the first OSC", interval=2)
        to_stderr(f"{agents} agents run; measuring for {seconds:g} s ...")
        return _figures(plane, agents, seconds, idle_watches)


def _figures(plane: ControlPlane, agents: int, seconds: float, idle_watches: float) -> list[Figure]:
    seen, own = Observation(), 0
    begun, (before, _), cpu = time.monotonic(), requests(plane), cpu_seconds(plane)
    published, checksum = 0.0, ""

    def look() -> bool:
        nonlocal own, published, checksum
        now = time.monotonic() - begun
        if not checksum and now > seconds / 5:
            checksum, published, own = publish(plane, 2), now, own + 1
        seen.look_at_leases(plane.admin.list("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"))
        own += 1
        if checksum and len(seen.applied) < agents:
            seen.look_at_nodes(plane.admin.list("/api/v1/nodes"), checksum, time.monotonic() - begun - published)
            own += 1
        return now >= seconds

    wait_for(look, timeout=seconds + 60, what="the end of the measurement", interval=2)
    took = time.monotonic() - begun
    (after, watches), used = requests(plane), cpu_seconds(plane) - cpu
    spread = sorted(seen.applied.values())
    missing = agents - len(spread)
    rate = (after - before - own) / took
    return [
        Figure("agents", agents, "", "", None, f"for {took:.0f} s"),
        Figure("requests per second, all agents", rate, "1/s", "", None),
        Figure("requests per minute and agent, with one OSC change", rate * 60 / agents, "", "", None),
        Figure("watches per agent", (watches - idle_watches) / agents, "", "", 3),
        Figure("CPU of kube-apiserver", 100 * used / took, "%", "", None, "of one core"),
        Figure("first node with the new OSC", spread[0] if spread else -1, "s", "", None),
        Figure(
            "last node with the new OSC",
            spread[-1] if spread else -1,
            "s",
            "",
            WINDOW_SECONDS + 10,
            f"window {WINDOW_SECONDS} s",
        ),
        Figure("nodes without it", missing, "", "", 0),
        Figure("longest gap between heartbeats", max(seen.gaps.values(), default=-1), "s", "", 25),
    ]


def main() -> int:
    """Measure; a missed target is no failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    plane = plain_control_plane(f"scale-{os.getpid()}")
    plane.binaries = find_binaries(say=to_stderr)
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        try:
            plane.start()
            figures = measure(plane, options.agents, options.seconds, Path(folder))
        except LabError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            plane.stop()
            plane.ledger.remove()
    print(render(figures))
    save(figures, OUTPUT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
