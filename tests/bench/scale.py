"""`python -m tests.bench.scale`: what a fleet of our agents costs an API server, measured with real agent code.

Many agents, some in each process, each with an API client, a disk and a systemd of its own, against a real kube-apiserver
and etcd on the loopback. In the middle a new OSC arrives, which every node may apply after its share of the delay window, as
gardener-resource-manager spreads them. The API server sees an administrator: what the authorizer webhook costs is not in it.
"""

import argparse
import base64
import contextlib
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure, render, save
from tests.bench.measure import let_pass
from tests.lab.api import wait_for
from tests.lab.binaries import find_binaries
from tests.lab.controlplane import ControlPlane, plain_control_plane
from tests.lab.errors import LabError
from tests.lab.progress import to_stderr

SECRET_NAME = "gardener-node-agent-bench"
OUTPUT = Path(__file__).resolve().parents[2] / "build/bench-scale.json"
PER_PROCESS = 20
GARDENER_WINDOW_SECONDS = 300
"""gardener-resource-manager's default; a measurement of five minutes has room for a shorter one."""
_APPLIED = "checksum/cloud-config-data"
_DELAY = "node-agent.gardener.cloud/reconciliation-delay"
_TICKS = os.sysconf("SC_CLK_TCK")


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"bench-{number:04}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything.

    Attributes:
        agents: how many.
        seconds: of the measurement, with the change in its middle.
        window: seconds over which the agents' shares of the delay are spread.
        settle: seconds in which the API server is looked at alone, and in which the agents' starts are let pass.
    """

    agents: int = 200
    seconds: float = 300.0
    window: float = 60.0
    settle: float = 30.0

    @property
    def change(self) -> float:
        """Seconds from the new OSC until it must be everywhere, and a little more."""
        return self.window + 15.0

    @property
    def quiet(self) -> float:
        """Seconds before the change, and again after it."""
        return max(10.0, (self.seconds - self.change) / 2)


@dataclass(frozen=True, slots=True)
class Used:
    """What the API server has done until a moment.

    Attributes:
        at: monotonic.
        requests: answered.
        watches: open.
        cpu: seconds.
        resident: memory in MB.
    """

    at: float
    requests: float
    watches: float
    cpu: float
    resident: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests, and seconds of CPU: in a second, or for something."""

    requests: float
    cpu: float


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
            name = lease["metadata"]["name"]
            if not name.startswith("gardener-node-agent-"):
                continue
            renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
            if (before := self._renewed.get(name)) is not None and renewed != before:
                self.gaps[name] = max(self.gaps.get(name, 0.0), (renewed - before).total_seconds())
            self._renewed[name] = renewed

    def look_at_the_end(self, now: datetime) -> None:
        """Count the time since the last renewal too: an agent that has gone silent is no agent without gaps."""
        for name, renewed in self._renewed.items():
            self.gaps[name] = max(self.gaps.get(name, 0.0), (now - renewed).total_seconds())

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


def register(plane: ControlPlane, sizes: Sizes) -> None:
    """Create the Nodes, each with its share of the delay window."""
    for number in range(sizes.agents):
        delay = sizes.window * number / max(1, sizes.agents - 1)
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


def used(plane: ControlPlane) -> "Used":
    """Return what the API server has done so far."""
    process = Path(f"/proc/{plane.process('kube-apiserver').pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    resident = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:"))
    answered, watches = requests(plane)
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    return Used(time.monotonic(), answered, watches, cpu, int(resident.split()[1]) * 1024 / 1e6)


def measure(plane: ControlPlane, sizes: Sizes, folder: Path) -> list[Figure]:
    """Run the fleet and return the figures."""
    register(plane, sizes)
    first = publish(plane, 1)
    begun = used(plane)
    let_pass(sizes.settle)
    alone = used(plane)
    itself = Rate(
        (alone.requests - begun.requests) / (alone.at - begun.at), (alone.cpu - begun.cpu) / (alone.at - begun.at)
    )
    with fleet(plane, sizes.agents, folder):
        started = Observation()

        def all_applied() -> bool:
            started.look_at_nodes(plane.admin.list("/api/v1/nodes"), first, 0)
            return len(started.applied) == sizes.agents

        wait_for(all_applied, timeout=300, what="all agents to have applied the first OSC", interval=2)
        # Events of so many starts at the same time are not part of a quiet time.
        let_pass(sizes.settle)
        to_stderr(f"{sizes.agents} agents run; measuring for {2 * sizes.quiet + sizes.change:g} s ...")
        return _Measurement(plane, sizes, alone, itself).figures()


class _Measurement:
    """A quiet time, a new OSC that spreads over its window, and a quiet time again."""

    def __init__(self, plane: ControlPlane, sizes: Sizes, alone: Used, itself: "Rate") -> None:
        self._plane = plane
        self._itself = itself
        self._agents = sizes.agents
        self._sizes = sizes
        self._alone = alone
        self._seen = Observation()
        self._own = 0

    def figures(self) -> list[Figure]:
        """Watch the fleet, and return what was seen."""
        marks = [used(self._plane)]
        self._watch(self._sizes.quiet)
        marks.append(self._mark())
        checksum, published = publish(self._plane, 2), time.monotonic()
        self._watch(self._sizes.change, checksum, published)
        marks.append(self._mark())
        self._watch(self._sizes.quiet, checksum, published)
        marks.append(self._mark())
        self._seen.look_at_the_end(datetime.now(UTC))
        return self._measured(marks) + derived(self._agents, *self._rates(marks))

    def _watch(self, seconds: float, checksum: str = "", published: float = 0.0) -> None:
        ends, rounds = time.monotonic() + seconds, itertools.count()

        def look() -> bool:
            # Each list costs the API server something: not more than renewals every 10 s, and a spread over 60 s, need.
            if next(rounds) % 2 == 0:
                self._seen.look_at_leases(self._list("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"))
            if checksum and len(self._seen.applied) < self._agents:
                self._seen.look_at_nodes(self._list("/api/v1/nodes"), checksum, time.monotonic() - published)
            return time.monotonic() >= ends

        wait_for(look, timeout=seconds + 60, what="the end of the measurement", interval=2)

    def _list(self, path: str) -> list[dict[str, Any]]:
        self._own += 1
        return self._plane.admin.list(path)

    def _mark(self) -> Used:
        mark = used(self._plane)
        return replace(mark, requests=mark.requests - self._own)

    def _measured(self, marks: Sequence[Used]) -> list[Figure]:
        begun, end = marks[0], marks[-1]
        took, agents = end.at - begun.at, self._agents
        rate, cpu = (end.requests - begun.requests) / took, (end.cpu - begun.cpu) / took
        spread = sorted(self._seen.applied.values())
        window = f"window {self._sizes.window:g} s"
        return [
            Figure("agents", agents, "", "", None, f"for {took:.0f} s, {PER_PROCESS} in a process"),
            Figure("requests per second, all agents", rate, "1/s", "", None, "one OSC change included"),
            Figure("watches", end.watches - self._alone.watches, "", "", None, "all agents"),
            Figure("watches per agent", (end.watches - self._alone.watches) / agents, "", "", 3),
            Figure(
                "CPU of kube-apiserver", 100 * cpu, "%", "", None, f"of one core; {100 * self._itself.cpu:.2g} alone"
            ),
            Figure("memory of kube-apiserver", end.resident - self._alone.resident, "MB", "", None, "more than before"),
            Figure("first node with the new OSC", spread[0] if spread else -1, "s", "", None, window),
            Figure(
                "last node with the new OSC", spread[-1] if spread else -1, "s", "", self._sizes.window + 10, window
            ),
            Figure("nodes without it", agents - len(spread), "", "", 0),
            Figure("agents without a heartbeat", agents - len(self._seen.gaps), "", "", 0),
            Figure("longest gap between heartbeats", max(self._seen.gaps.values(), default=-1), "s", "", 25),
        ]

    def _rates(self, marks: Sequence[Used]) -> tuple["Rate", "Rate"]:
        """Return what a quiet second of all agents costs, and what the change did beyond that."""
        begun, published, spread, end = marks
        quiet_seconds = (published.at - begun.at) + (end.at - spread.at)
        asked = (published.requests - begun.requests + end.requests - spread.requests) / quiet_seconds
        cpu = (published.cpu - begun.cpu + end.cpu - spread.cpu) / quiet_seconds
        took = spread.at - published.at
        more = spread.requests - published.requests - asked * took, spread.cpu - published.cpu - cpu * took
        # What the API server does without any agent does not grow with their number.
        quiet = asked - self._itself.requests, cpu - self._itself.cpu
        return Rate(max(0.0, quiet[0]), max(0.0, quiet[1])), Rate(max(0.0, more[0]), max(0.0, more[1]))


def derived(agents: int, quiet: "Rate", change: "Rate", nodes: int = 5000) -> list[Figure]:
    """Return what many nodes would cost, in proportion to what was measured.

    Args:
        agents: how many were measured.
        quiet: of all of them, in a second without a change.
        change: of all of them, for one OSC change, beyond that.
        nodes: how many there would be.
    """
    times = nodes / agents
    changing = quiet.requests * times + change.requests * times / GARDENER_WINDOW_SECONDS
    cores = quiet.cpu * times
    peak = cores + change.cpu * times / GARDENER_WINDOW_SECONDS
    window = f"an OSC change spread over {GARDENER_WINDOW_SECONDS} s"
    return [
        Figure(
            "requests per minute and agent, quiet", quiet.requests * 60 / agents, "", "", 7.5, "unit check included"
        ),
        Figure("requests per agent for an OSC change", change.requests / agents, "", "", None, "5 units, 20 files"),
        Figure(f"{nodes} nodes: watches", 2 * nodes, "", "", None, "Secret and Node"),
        Figure(f"{nodes} nodes: requests per second, quiet", quiet.requests * times, "1/s", "", None, "in proportion"),
        Figure(f"{nodes} nodes: requests per second, changing", changing, "1/s", "", None, window),
        Figure(f"{nodes} nodes: cores of kube-apiserver, quiet", cores, "", "", None, "without the authorizer webhook"),
        Figure(f"{nodes} nodes: cores of kube-apiserver, changing", peak, "", "", None, window),
    ]


def main() -> int:
    """Measure; a missed target is no failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    sizes = Sizes()
    parser.add_argument("--agents", type=int, default=sizes.agents, help="(default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=sizes.seconds, help="of the measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--window", type=float, default=sizes.window, help="seconds in which a new OSC spreads (default: %(default)s)"
    )
    parser.add_argument(
        "--settle", type=float, default=sizes.settle, help="seconds before the measurement (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the rows are written (default: %(default)s)")
    options = parser.parse_args()
    sizes = Sizes(options.agents, options.seconds, options.window, options.settle)
    plane = plain_control_plane(f"scale-{os.getpid()}")
    plane.binaries = find_binaries(say=to_stderr)
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        try:
            plane.start()
            figures = measure(plane, sizes, Path(folder))
        except LabError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            plane.stop()
            plane.ledger.remove()
    print(render(figures))
    save(figures, options.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
