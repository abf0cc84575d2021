"""A machine of the lab that joined as a worker, and what a test wants to know of it."""

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.machine import Machine
from tests.lab.registry import published_digest
from tests.lab.userdata import hand_program, run_bootstrap
from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT, WorkerOsc

APPLIED = "checksum/cloud-config-data"
STATUS_FILE = "/run/gardener-node-agent/status.json"
UNITS = "/etc/systemd/system"


@dataclass(frozen=True)
class Worker:
    """One worker node.

    Attributes:
        lab: its lab.
        machine: its machine.
        base: the OSC with which it joined.
    """

    lab: Lab
    machine: Machine
    base: WorkerOsc

    @classmethod
    def prepare(
        cls, lab: Lab, machine: Machine, agent: AgentSource, *, server: str = "", **controllers: Mapping[str, Any]
    ) -> "Worker":
        """Hand user data to a machine; another URL of the API server and more of the configuration can be given."""
        pool = replace(lab.pool(agent), name=f"pool-{machine.name}")
        if server:
            pool = replace(pool, server=server)
        hand_program(machine, lab, agent=agent, pool=pool)
        base = WorkerOsc.for_pool(pool)
        if controllers:
            config = pool.agent_config(**controllers)
            machine.write(pool.agent_config_path, config.encode(), 0o600)
            base = base.with_file(pool.agent_config_path, config, mode=0o600)
        return cls(lab, machine, base)

    @classmethod
    def join(
        cls, lab: Lab, machine: Machine, agent: AgentSource, *, server: str = "", **controllers: Mapping[str, Any]
    ) -> "Worker":
        """Let a fresh machine join, until its Node says that the OSC was applied."""
        worker = cls.prepare(lab, machine, agent, server=server, **controllers)
        checksum = worker.publish(worker.base)
        run_bootstrap(machine)
        worker.wait_applied(checksum, timeout=90)
        return worker

    def start_agent(self) -> None:
        """Start the agent, however often that was done just before: systemd counts starts, and refuses many."""
        self.machine.systemctl("reset-failed", AGENT_UNIT, check=False)
        self.machine.systemctl("start", AGENT_UNIT)

    def publish(self, osc: WorkerOsc) -> str:
        """Publish an OSC; returns its checksum."""
        return self.lab.publish_osc(osc)

    def publish_bytes(self, data: bytes) -> str:
        """Publish arbitrary bytes as the OSC; returns their checksum."""
        return self.lab.publish_osc_bytes(data, pool=self.base.pool.name, secret_name=self.base.pool.secret_name)

    def apply(self, osc: WorkerOsc, *, timeout: float = 30) -> float:
        """Publish an OSC and wait until it is applied; returns the seconds that took."""
        started = time.monotonic()
        self.wait_applied(self.publish(osc), timeout=timeout)
        return time.monotonic() - started

    def wait_applied(self, checksum: str, *, timeout: float = 30) -> None:
        """Wait until the Node carries the checksum."""
        try:
            wait_for(
                lambda: self.applied() == checksum or None,
                timeout=timeout,
                what=f"checksum {checksum[:12]} on the Node",
                interval=0.02,
            )
        except Exception as error:
            raise AssertionError(f"{error}\n{self.machine.journal(AGENT_UNIT, lines=40)}") from error

    def applied(self) -> str | None:
        """Return the checksum that the Node carries."""
        node = self.lab.api.find(f"/api/v1/nodes/{self.machine.name}")
        return None if node is None else node["metadata"].get("annotations", {}).get(APPLIED)

    def node(self) -> dict[str, Any]:
        """Return the Node."""
        return self.lab.api.get(f"/api/v1/nodes/{self.machine.name}")

    def lease(self) -> dict[str, Any] | None:
        """Return the heartbeat Lease."""
        name = f"gardener-node-agent-{self.machine.name}"
        return self.lab.api.find(f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}")

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Return the events about our Node with a reason, oldest first."""
        found = self.lab.api.list(
            "/api/v1/namespaces/default/events",
            fieldSelector=f"involvedObject.name={self.machine.name},reason={reason}",
        )
        return sorted(found, key=lambda event: event["metadata"]["creationTimestamp"])

    def wait_event(self, reason: str, *, containing: str = "", timeout: float = 15) -> dict[str, Any]:
        """Wait for an event with a text in it, and return it."""

        def look() -> dict[str, Any] | None:
            return next((event for event in self.events(reason) if containing in event.get("message", "")), None)

        return wait_for(look, timeout=timeout, what=f"event {reason} with {containing!r}")

    def refused(self) -> list[str]:
        """Return the requests of our agent that were refused and must not have been sent."""
        return [str(request) for request in self.lab.unexpected_denials() if request.machine == self.machine.name]

    def status(self) -> dict[str, Any]:
        """Return the agent's status file."""
        document: dict[str, Any] = json.loads(self.machine.read(STATUS_FILE))
        return document

    def last_applied(self) -> dict[str, Any]:
        """Return the last applied OSC."""
        document: dict[str, Any] = json.loads(self.machine.read(f"{AGENT_FOLDER}/last-applied-osc.yaml"))
        return document

    def as_applied(self, osc: WorkerOsc) -> dict[str, Any]:
        """Return an OSC's document with the drop-in that the agent adds for containerd: contract 6.14, Appendix D."""
        document = osc.document()
        if osc.cri:
            environment = Path(f"/proc/{self.machine.main_pid(AGENT_UNIT)}/environ").read_text().split("\0")
            path = next(line for line in environment if line.startswith("PATH="))
            text = f'[Service]\nEnvironment="{path.replace("=", "=/var/bin/containerruntimes:", 1)}"\n'
            unit = {"name": "containerd.service", "dropIns": [{"name": "30-env_config.conf", "content": text}]}
            document["spec"]["units"].append(unit)
        return document

    def pending(self) -> dict[str, Any]:
        """Return the journal."""
        document: dict[str, Any] = json.loads(self.machine.read(f"{AGENT_FOLDER}/last-computed-osc-changes.yaml"))
        return document

    def temporary_files(self) -> list[str]:
        """Return temporary files of ours, anywhere that the agent writes."""
        found = self.machine.run(
            ["find", "/etc", "/var/lib/gardener-node-agent", "/var/lib/kubelet/config", "/opt/test", "-name", ".*.tmp"],
            check=False,
        )
        return found.stdout.split()

    def restore(self, units: list[str]) -> None:
        """Apply the base OSC again and wait until the machine matches it, with nothing else in the unit directory.

        The checksum on the Node is no sign of that: after an OSC that could not be applied it still is the base's.
        """
        self.apply(self.base, timeout=60)

        def left() -> list[str]:
            found = self.differences(self.base)
            return found + sorted(set(self.unit_directory()) ^ set(units))

        try:
            wait_for(lambda: not left(), timeout=20, what="the base OSC on the machine", interval=0.2)
        except Exception as error:
            raise AssertionError(f"{error}\n{left()}\n{self.machine.journal(AGENT_UNIT, lines=40)}") from error

    def unit_directory(self) -> list[str]:
        """Return every path below the unit directory."""
        return sorted(self.machine.run(["find", UNITS]).stdout.split())

    def differences(self, osc: WorkerOsc) -> list[str]:
        """Return how the machine differs from an OSC: files with modes, unit files, drop-ins, enablement, leftovers."""
        document = osc.document()["spec"]
        found = [problem for file in document["files"] for problem in self._file(file)]
        for unit in document["units"]:
            found += self._unit(unit)
        found += [f"temporary file {path}" for path in self.temporary_files()]
        return found

    def absent(self, before: WorkerOsc, after: WorkerOsc) -> list[str]:
        """Return what the second OSC no longer has and is still there."""
        old, new = before.document()["spec"], after.document()["spec"]
        kept = {file["path"] for file in new["files"]} | {path for unit in new["units"] for path in _unit_paths(unit)}
        gone = {file["path"] for file in old["files"]} | {path for unit in old["units"] for path in _unit_paths(unit)}
        return sorted(f"still there: {path}" for path in gone - kept if self.machine.exists(path))

    def _file(self, file: Mapping[str, Any]) -> list[str]:
        path, mode = file["path"], file.get("permissions", 0o600)
        if (reference := file["content"].get("imageRef")) is not None:
            if not self.machine.exists(path):
                return [f"missing: {path}"]
            digest = published_digest(self.machine.ledger, reference["image"], reference["filePathInImage"])
            same = hashlib.sha256(self.machine.read(path)).hexdigest() == digest
            return self._mode(path, mode) if same else [f"content differs: {path}"]
        inline = file["content"]["inline"]
        wanted = base64.b64decode(inline["data"]) if inline["encoding"] == "b64" else inline["data"].encode()
        return self._compare(path, wanted, mode)

    def _unit(self, unit: Mapping[str, Any]) -> list[str]:
        found = []
        if "content" in unit:
            found += self._compare(f"{UNITS}/{unit['name']}", unit["content"].encode(), 0o600)
        for drop_in in unit.get("dropIns", []):
            found += self._compare(f"{UNITS}/{unit['name']}.d/{drop_in['name']}", drop_in["content"].encode(), 0o600)
        properties = self.machine.unit(unit["name"])
        if (
            unit.get("command") != "stop"
            and unit.get("enable") is not False
            and properties.get("Type") != "oneshot"
            and properties["ActiveState"] != "active"
        ):
            found.append(f"unit {unit['name']} is {properties['ActiveState']}")
        if (unit.get("enable") is False or unit.get("command") == "stop") and properties["ActiveState"] == "active":
            found.append(f"unit {unit['name']} is active")
        if properties.get("NeedDaemonReload") == "yes":
            found.append(f"unit {unit['name']} needs a daemon-reload")
        return found

    def _compare(self, path: str, wanted: bytes, mode: int) -> list[str]:
        if not self.machine.exists(path):
            return [f"missing: {path}"]
        if self.machine.read(path) != wanted:
            return [f"content differs: {path}"]
        return self._mode(path, mode)

    def _mode(self, path: str, mode: int) -> list[str]:
        found = self.machine.mode(path)
        return [] if found == mode else [f"mode {found:04o}, not {mode:04o}: {path}"]


def _unit_paths(unit: Mapping[str, Any]) -> list[str]:
    own = [f"{UNITS}/{unit['name']}"] if "content" in unit else []
    return own + [f"{UNITS}/{unit['name']}.d/{drop_in['name']}" for drop_in in unit.get("dropIns", [])]


def service(
    description: str = "test", *, command: str = "/usr/bin/sleep infinity", kind: str = "simple", extra: str = ""
) -> str:
    """Return the text of a service unit."""
    return f"[Unit]\nDescription={description}\n\n[Service]\nType={kind}\nExecStart={command}\n{extra}\n[Install]\nWantedBy=multi-user.target\n"
