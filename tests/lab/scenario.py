"""The story that `make demo` tells: a machine joins, its OSC changes, the agent is killed in the middle, all is well.

A library, because a test tells the same story. It knows the agent only by its contract: it looks at objects of the API
server, at files and at units of the machine, never at log lines.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.machine import Machine, Storage
from tests.lab.progress import Say
from tests.lab.registry import published_digest
from tests.lab.requests import Request
from tests.lab.userdata import hand_user_data, start_init_unit, wait_init_unit
from tests.lab.verify import differences, image_leftovers, init_leftovers, temporary_files
from tests.lab.worker_osc import (
    AGENT_BINARY,
    AGENT_FOLDER,
    AGENT_UNIT,
    INIT_UNIT,
    KUBELET_BINARY,
    KUBELET_UNIT,
    WorkerOsc,
    WorkerPool,
)

CHECKSUM_ON_NODE = "checksum/cloud-config-data"
_JOIN_DEADLINE_SECONDS = 180.0
_CHANGE_DEADLINE_SECONDS = 90.0
_MANY = 300
MANY_FILES = "/etc/demo/many"
"""Folder of the files that the last change brings."""
_POLL_SECONDS = 0.1

_DEMO_UNIT = "[Unit]\nDescription=A unit of the demo\n\n[Service]\nExecStart=/bin/sleep infinity\n\n[Install]\nWantedBy=multi-user.target\n"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the closing table."""

    what: str
    expected: str
    seen: str

    @property
    def holds(self) -> bool:
        """Whether what was seen is what was expected."""
        return self.seen == self.expected


@dataclass(slots=True)
class Scenario:
    """One machine's story; call the chapters in order.

    Attributes:
        lab: a running lab.
        agent: the node agent under test.
        say: gets every line of the story.
        rows: the closing table, as far as the story has come.
    """

    lab: Lab
    agent: AgentSource
    say: Say
    machine_name: str = "worker-1"
    pool_name: str = "worker"
    storage: Storage = "tmpfs"
    rows: list[Row] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)

    def run(self) -> Machine:
        """Tell the whole story; returns the machine."""
        osc, machine = self.join()
        osc = self.change(machine, osc)
        self.kill(machine, osc)
        self.conclude(machine)
        return machine

    def join(self) -> tuple[WorkerOsc, Machine]:
        """Boot a machine, hand it user data and let its unit run; ends when the Node is annotated and Ready."""
        pool = self.lab.pool(self.agent, self.pool_name)
        image = pool.images.node_agent if pool.images is not None else ""
        osc = WorkerOsc.for_pool(pool).with_file("/etc/demo/removed-later", "here at first\n")
        checksum = self.lab.publish_osc(osc)
        machine = self.lab.add_machine(self.machine_name, storage=self.storage)
        self._tell(f"machine {machine.name} booted: systemd and containerd, no kubelet, nothing of Gardener")
        hand_user_data(machine, self.lab, agent=self.agent, pool=pool)
        self._tell(
            "user data handed over: init unit and script, config file, machine name, bootstrap token, cluster CA"
        )
        started = time.monotonic()
        start_init_unit(machine)
        self._tell(f"{INIT_UNIT} started: it gets the agent out of image {image}")
        self._watch(self._join_milestones(machine, osc, checksum), _JOIN_DEADLINE_SECONDS)
        self._tell(f"joined {time.monotonic() - started:.1f} s after {INIT_UNIT} started")
        unit = wait_init_unit(machine)
        self._row(f"end of {INIT_UNIT}", "success", unit["Result"])
        self._row("agent is the one of its image", "yes", _yes(self._other_agent(machine, image)))
        self._row("left mounted by the init script", "none", ", ".join(init_leftovers(machine)) or "none")
        self._row("Node annotated with the OSC's checksum", checksum[:12], (self.checksum() or "")[:12])
        self._row("Node is Ready", "True", self._condition("Ready"))
        self._row("Node knows its pool", pool.name, self._labels().get("worker.gardener.cloud/pool", ""))
        self._row("machine is as the OSC says", "yes", _yes(differences(machine, osc.document())))
        left = image_leftovers(machine, besides=image)
        self._row("left in containerd besides the init script's image", "none", ", ".join(left) or "none")
        self._row(
            "bootstrap token on the machine", "gone", _gone(machine, f"{AGENT_FOLDER}/credentials/bootstrap-token")
        )
        return osc, machine

    def change(self, machine: Machine, osc: WorkerOsc) -> WorkerOsc:
        """Change the OSC in four ways and see all of them on the machine."""
        sysctl = "/etc/sysctl.d/98-demo.conf"
        changed = (
            osc.with_file(sysctl, "net.ipv4.tcp_keepalive_time = 1234\n", mode=0o644)
            .with_unit("systemd-sysctl.service", command="restart", enable=True, filePaths=[sysctl])
            .with_unit("demo.service", content=_DEMO_UNIT, command="start", enable=True)
            .with_kubelet(maxPods=42)
            .without_file("/etc/demo/removed-later")
        )
        before = self._parameter(machine), self._pods()
        self._tell("OSC changed: a net.* parameter, a new unit, kubelet's maxPods, one file less")
        seconds = self.apply(changed)
        self._tell(f"Node annotated with the new checksum after {seconds:.2f} s")
        wait_for(lambda: self._pods() == "42", timeout=_CHANGE_DEADLINE_SECONDS, what="the Node to show 42 Pods")
        self._tell(f"  net.ipv4.tcp_keepalive_time: {before[0]} -> {self._parameter(machine)}")
        self._tell(f"  demo.service: {machine.unit('demo.service')['ActiveState']}")
        self._tell(f"  Pods that the Node takes: {before[1]} -> {self._pods()}")
        self._tell(f"  /etc/demo/removed-later: {_gone(machine, '/etc/demo/removed-later')}")
        self._row("net.ipv4.tcp_keepalive_time", "1234", self._parameter(machine))
        self._row("new unit", "active", machine.unit("demo.service")["ActiveState"])
        self._row("Pods that the Node takes", "42", self._pods())
        self._row("file that left the OSC", "gone", _gone(machine, "/etc/demo/removed-later"))
        self._row("machine is as the changed OSC says", "yes", _yes(differences(machine, changed.document())))
        return changed

    def kill(self, machine: Machine, osc: WorkerOsc) -> None:
        """Kill the agent in the middle of a large change; systemd starts it again, and the machine converges."""
        changed = osc.with_unit(
            "demo.service", content=_DEMO_UNIT.replace("infinity", "1d"), command="start", enable=True
        )
        for number in range(_MANY):
            changed = changed.with_file(f"{MANY_FILES}/{number:03}", f"{number:03} " * 300, mode=0o640)
        victim, renewed = machine.main_pid(AGENT_UNIT), self.renewed()
        checksum = self.lab.publish_osc(changed)
        written = self._wait_half_done(machine)
        machine.kill(victim)
        done = self.checksum() == checksum
        started = time.monotonic()
        self._tell(f"another change: {_MANY} files and a unit; agent killed with SIGKILL after {written} files")
        self._row("killed before the change was complete", "yes", "no" if done else "yes")
        wait_for(lambda: self.checksum() == checksum, timeout=_CHANGE_DEADLINE_SECONDS, what="the machine to converge")
        self._tell(
            f"converged {time.monotonic() - started:.1f} s after the kill (systemd waits 5 s before it starts the agent)"
        )
        self._row("started again by systemd", "yes", "yes" if machine.main_pid(AGENT_UNIT) != victim else "no")
        self._row("machine is as the last OSC says", "yes", _yes(differences(machine, changed.document())))
        self._row("temporary files left", "none", ", ".join(temporary_files(machine)) or "none")
        wait_for(lambda: self.renewed() != renewed, timeout=45, what="the lease to be renewed again")
        self._row("lease goes on being renewed", "yes", "yes")

    def conclude(self, machine: Machine) -> None:
        """Check what must hold over the whole story."""
        faults = [fault for fault in self.lab.unexpected_denials() if fault.machine in {machine.name, None}]
        self._row("requests that the agent may not send", "none", "; ".join(map(str, faults)) or "none")
        printed = self.lab.credentials_printed(machine)
        self._row("credentials in journal and events", "none", ", ".join(printed) or "none")
        self._row("Node is Ready at the end", "True", self._condition("Ready"))

    def checksum(self) -> str | None:
        """Return the checksum with which the Node is annotated."""
        node = self._node()
        annotations: dict[str, str] = (node or {}).get("metadata", {}).get("annotations") or {}
        return annotations.get(CHECKSUM_ON_NODE)

    def renewed(self) -> str | None:
        """Return when the agent's lease was renewed last, None if there is none."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gardener-node-agent-{self.machine_name}"
        lease = self.lab.api.find(path)
        return None if lease is None else str(lease["spec"].get("renewTime"))

    def _join_milestones(
        self, machine: Machine, osc: WorkerOsc, checksum: str
    ) -> list[tuple[str, Callable[[], bool | str]]]:
        """Return what happens while a machine joins, in the order of cause and effect."""
        document, pool = osc.document(), osc.pool
        files, units = len(document["spec"]["files"]), sum("content" in unit for unit in document["spec"]["units"])
        first_pid: list[str] = []

        def restarted() -> bool | str:
            pid = machine.unit(AGENT_UNIT).get("MainPID", "0")
            if pid != "0" and not first_pid:
                first_pid.append(pid)
            if first_pid and pid not in {"0", first_pid[0]}:
                return "own restart: unit or config file had changed"
            return "no own restart was needed" if kubelet_runs() else False

        def kubelet_runs() -> bool:
            return machine.unit(KUBELET_UNIT).get("ActiveState") == "active"

        return [
            ("agent copied out of its image", lambda: machine.exists(AGENT_BINARY)),
            ("bootstrap started the agent's unit", lambda: machine.unit(AGENT_UNIT).get("ActiveState") == "active"),
            ("CSR created", lambda: self._signing_request(machine) is not None),
            ("CSR approved", lambda: self._approved(machine)),
            ("certificate stored", lambda: machine.exists(f"{AGENT_FOLDER}/credentials/kubeconfig")),
            ("OSC read", lambda: self._osc_read(machine, pool)),
            ("kubelet's binary copied out of its image", lambda: machine.exists(KUBELET_BINARY)),
            (f"{files} files and {units} units written", lambda: _written(machine, document)),
            ("", restarted),
            ("kubelet started", kubelet_runs),
            ("Node registered", lambda: self._node() is not None),
            ("lease renewed", lambda: self.renewed() is not None),
            (f"Node annotated with the checksum {checksum[:12]}", lambda: self.checksum() == checksum),
            ("Node is Ready", lambda: self._condition("Ready") == "True"),
        ]

    def _watch(self, milestones: list[tuple[str, Callable[[], bool | str]]], timeout: float) -> None:
        """Say each milestone when it is reached.

        Raises:
            LabError: not all are reached in time; names the first that is missing.
        """
        deadline = time.monotonic() + timeout
        pending = list(milestones)
        while pending:
            reached = next((m for m in pending if m[1]()), None)
            if reached is None and time.monotonic() > deadline:
                raise LabError(f"not within {timeout:g} s: {pending[0][0] or 'kubelet started'}")
            if reached is None:
                time.sleep(_POLL_SECONDS)
                continue
            # While it was being looked at, what must come before it may have happened, too: that is said first.
            for milestone in pending[: pending.index(reached) + 1]:
                if milestone is reached or milestone[1]():
                    self._tell(milestone[0] or str(milestone[1]()))
                    pending.remove(milestone)

    def apply(self, osc: WorkerOsc) -> float:
        """Publish an OSC and wait until the Node has its checksum; returns the seconds that took."""
        started = time.monotonic()
        checksum = self.lab.publish_osc(osc)
        wait_for(
            lambda: self.checksum() == checksum,
            timeout=_CHANGE_DEADLINE_SECONDS,
            what="the new checksum",
            interval=0.01,
        )
        return time.monotonic() - started

    def _wait_half_done(self, machine: Machine) -> int:
        """Return, as soon as there is one, how many of the many files are written; polled without a pause."""
        folder = machine.path("/etc/demo/many")
        deadline = time.monotonic() + _CHANGE_DEADLINE_SECONDS
        while time.monotonic() < deadline:
            written = sum(1 for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else 0
            if written:
                return written
        raise LabError("the agent wrote none of the files of the new OSC")

    def _node(self) -> dict[str, Any] | None:
        return self.lab.api.find(f"/api/v1/nodes/{self.machine_name}")

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = (self._node() or {}).get("metadata", {}).get("labels") or {}
        return labels

    def _condition(self, kind: str) -> str:
        conditions = (self._node() or {}).get("status", {}).get("conditions") or []
        return next((str(c["status"]) for c in conditions if c["type"] == kind), "")

    def _pods(self) -> str:
        return str((self._node() or {}).get("status", {}).get("capacity", {}).get("pods", ""))

    def _parameter(self, machine: Machine) -> str:
        return machine.run(["sysctl", "-n", "net.ipv4.tcp_keepalive_time"]).stdout.strip()

    def _signing_request(self, machine: Machine) -> dict[str, Any] | None:
        asked = [r.name for r in self._requests(machine, "create", "certificatesigningrequests") if r.name]
        for name in asked:
            found = self.lab.api.find(f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}")
            if found is not None and name.startswith("node-agent-csr-"):
                return found
        return None

    def _approved(self, machine: Machine) -> bool:
        request = self._signing_request(machine) or {}
        return any(c["type"] == "Approved" for c in request.get("status", {}).get("conditions") or [])

    def _osc_read(self, machine: Machine, pool: WorkerPool) -> bool:
        read = [
            r for r in self.lab.requests() if r.machine == machine.name and r.resource == "secrets" and r.code == 200
        ]
        return any(request.name == pool.secret_name for request in read)

    def _other_agent(self, machine: Machine, image: str) -> list[str]:
        found = hashlib.sha256(machine.read(AGENT_BINARY)).hexdigest()
        wanted = published_digest(self.lab.ledger, image, "/gardener-node-agent")
        return [] if found == wanted else [f"{AGENT_BINARY} has digest {found}, the image's is {wanted}"]

    def _requests(self, machine: Machine, verb: str, resource: str) -> list[Request]:
        return [
            r
            for r in self.lab.requests()
            if r.verb == verb and r.resource == resource and r.machine in {None, machine.name}
        ]

    def _tell(self, line: str) -> None:
        self.say(f"{time.monotonic() - self._started:7.1f} s  {line}")

    def _row(self, what: str, expected: str, seen: str) -> None:
        self.rows.append(Row(what, expected, seen))


def table(rows: list[Row]) -> str:
    """Return the closing table as text."""
    head = Row("what", "expected", "seen")
    first, second = (
        max(len(text) for text in column) for column in zip(*((r.what, r.expected) for r in (head, *rows)), strict=True)
    )
    lines = [f"{head.what:<{first}}  {head.expected:<{second}}  {head.seen}"]
    lines += [f"{r.what:<{first}}  {r.expected:<{second}}  {r.seen}{'' if r.holds else '   <-- no'}" for r in rows]
    return "\n".join(lines)


def _written(machine: Machine, document: dict[str, Any]) -> bool:
    paths = [file["path"] for file in document["spec"]["files"]]
    paths += [f"/etc/systemd/system/{unit['name']}" for unit in document["spec"]["units"] if "content" in unit]
    return all(machine.exists(path) for path in paths)


def _gone(machine: Machine, path: str) -> str:
    return "there" if machine.exists(path) else "gone"


def _yes(problems: list[str]) -> str:
    return "; ".join(problems) or "yes"
