"""A gardenlet as a process on this host, against a `Garden`: started, asked, killed and started again."""

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from tests.lab.api import Api, wait_for
from tests.lab.controlplane import free_ports
from tests.lab.credentials import events_of, found_in_all
from tests.lab.errors import LabError
from tests.lab.garden.garden import Garden
from tests.lab.garden.permissions import LEADER_LEASE, USER

ROOT = Path(__file__).resolve().parents[3]
SEED_SECRETS = "/api/v1/namespaces/garden/secrets"
SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces"
_SECRET = {"apiVersion": "v1", "kind": "Secret", "name": "dns", "namespace": "garden"}
_IDENTITY = {**_SECRET, "apiVersion": "security.gardener.cloud/v1alpha1", "kind": "WorkloadIdentity"}


@dataclass
class Gardenlet:
    """A gardenlet of one seed, which can be started again and again.

    Attributes:
        garden: where it belongs.
        folder: for its configuration and its log.
        name: of the seed.
        pod_uid: of the Pod that it runs in; None for one that follows from the name.
        lock: namespace of the Lease by which replicas elect one of them; empty for the seed's name.
        server: URL under which it reaches the garden; empty for the garden's own.
        elect: whether its replicas elect one of them.
        gates: feature gates.
        program: what is started; this source tree unless it is the built one.
        started: when it was started last, on the monotonic clock.
    """

    garden: Garden
    folder: Path
    name: str = field(default_factory=lambda: f"seed-{uuid4().hex[:8]}")
    pod_uid: str | None = None
    lock: str = ""
    server: str = ""
    elect: bool = True
    gates: Mapping[str, bool] = field(default_factory=dict)
    program: Sequence[str] = (sys.executable, "-m", "gardenlet")
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    running: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def hand_token(self) -> None:
        """Put a bootstrap kubeconfig into the seed."""
        kubeconfig = self.garden.bootstrap_kubeconfig(self.name, server=self.server)
        data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
        self.garden.seed.admin.create(SEED_SECRETS, {"metadata": {"name": f"{self.name}-bootstrap"}, "data": data})

    def start(self) -> None:
        """Start it."""
        config = {
            "apiVersion": "gardenlet.config.gardener.cloud/v1alpha1",
            "kind": "GardenletConfiguration",
            "gardenClientConnection": {
                "kubeconfigSecret": {"namespace": "garden", "name": f"{self.name}-kubeconfig"},
                "bootstrapKubeconfig": {"namespace": "garden", "name": f"{self.name}-bootstrap"},
            },
            "server": {"healthProbes": {"port": self.ports[0]}, "metrics": {"port": self.ports[1]}},
            # A namespace of its own, because the name of the Lease is the only one that may be updated.
            "leaderElection": {"leaderElect": self.elect, "resourceNamespace": self._lock},
            "featureGates": dict(self.gates),
            "seedConfig": {
                "metadata": {"name": self.name},
                "spec": {
                    "provider": {"type": "local", "region": "r"},
                    "networks": {"pods": "10.1.0.0/16", "services": "10.0.0.0/24", "nodes": "10.2.0.0/16"},
                    "ingress": {"domain": "ingress.lab.internal", "controller": {"kind": "nginx"}},
                    "dns": {
                        name: {"type": "local", "domain": f"{name}.lab.internal", "credentialsRef": credentials}
                        for name, credentials in (("provider", _SECRET), ("internal", _IDENTITY))
                    },
                },
            },
        }
        path = self.folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.garden.seed.admin.ensure("/api/v1/namespaces", {"metadata": {"name": self._lock}})
        seed = self.garden.seed.kubeconfig(self.folder / "seed.kubeconfig", user=self.garden.seed_certificate())
        pod = self.name if self.pod_uid is None else self.pod_uid
        environment = {**os.environ, "KUBECONFIG": str(seed), "POD_UID": pod, "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.started = time.monotonic()
            self.running = subprocess.Popen(
                [*self.program, "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )

    def replica(self, folder: Path, *, lock: str = "") -> "Gardenlet":
        """Return another gardenlet of the same seed, in another Pod, that is not started; `kill` ends it."""
        folder.mkdir()
        lock = lock or self.lock
        return Gardenlet(self.garden, folder, self.name, pod_uid=folder.name, lock=lock, server=self.server)

    @contextmanager
    def looked_after(self) -> Iterator["Gardenlet"]:
        """Hand it a token; afterwards, end it, and look at what it asked for and printed.

        Raises:
            LabError: a request was refused, or a credential was printed.
        """
        self.hand_token()
        before = len(self.refused())
        try:
            yield self
            printed = self.credentials_printed()
        finally:
            self.close()
        if problems := [*(f"refused: {one}" for one in self.refused()[before:]), *printed]:
            raise LabError("; ".join(problems))

    @property
    def log(self) -> str:
        """What it has printed; nothing if it was never started."""
        path = self.folder / f"{self.name}.log"
        return path.read_text() if path.exists() else ""

    def ask(self, path: str) -> tuple[int, str]:
        """Ask its health server; 0 if nobody listens, or nobody answers within 5 s."""
        return self._ask(self.ports[0], path)

    def status(self) -> tuple[int, dict[str, Any]]:
        """Run its command `status`; returns the exit code and what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "gardenlet", "status", "-o", "json", "--config", f"{self.name}.yaml"],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=self.folder,
            check=False,
            timeout=30,
        )
        return done.returncode, json.loads(done.stdout)

    def metrics(self) -> dict[str, float]:
        """Return what it counts: values by name, with labels as they are printed."""
        status, text = self._ask(self.ports[1], "/metrics")
        if status != 200:
            raise LabError(f"/metrics: {status}")
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def _ask(self, port: int, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def until(self, status: int, path: str = "/healthz", *, timeout: float = 30) -> None:
        """Wait for an answer."""
        try:
            wait_for(lambda: self.ask(path)[0] == status, timeout=timeout, what=f"{path} to be {status}")
        except LabError as error:
            raise LabError(f"{error}\n{self.ask(path + '?verbose')[1]}\n{self.log[-6000:]}") from error

    def renewed(self) -> str | None:
        """Return when the Lease of the Seed was renewed."""
        found = self.garden.api.find(f"{_LEASES}/gardener-system-seed-lease/leases/{self.name}")
        return found["spec"]["renewTime"] if found else None

    def leader(self) -> str:
        """Return who holds the leader's lease; empty for nobody."""
        found = self.garden.seed.admin.find(f"{_LEASES}/{self._lock}/leases/{LEADER_LEASE}")
        return str((found or {}).get("spec", {}).get("holderIdentity") or "")

    def seed(self) -> dict[str, Any] | None:
        """Return the Seed."""
        return self.garden.api.find(f"{SEEDS}/{self.name}")

    def ask_for_certificate(self) -> None:
        """Annotate the Secret with the kubeconfig: renew."""
        self.garden.seed.admin.patch(
            f"{SEED_SECRETS}/{self.name}-kubeconfig",
            {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}},
        )

    def stored(self) -> dict[str, Any] | None:
        """Return the Secret with the kubeconfig."""
        return self.garden.seed.admin.find(f"{SEED_SECRETS}/{self.name}-kubeconfig")

    def refused(self) -> list[str]:
        """Return its requests that the garden or the seed refused; in the seed all gardenlets are one user."""
        return [str(one) for one in self.garden.denials() if self.name in one.user or one.user == USER]

    def credentials_printed(self) -> list[str]:
        """Return which credentials are in its log, its metrics or an event, without repeating them."""
        texts = [(f"log of {self.name}", self.log), *map(events_of, self._clusters())]
        if self.running is not None and self.running.poll() is None:
            texts.append((f"/metrics of {self.name}", self._ask(self.ports[1], "/metrics")[1]))
        return found_in_all(texts)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=20)

    def kill(self) -> None:
        """Kill it if it runs."""
        if self.running is not None and self.running.poll() is None:
            self.running.kill()
            self.running.wait()

    def close(self) -> None:
        """Kill it if it runs, and remove the Seed."""
        self.kill()
        self.garden.api.delete(f"{SEEDS}/{self.name}")

    def _clusters(self) -> set[Api]:
        return {self.garden.api, self.garden.seed.admin}

    @property
    def _lock(self) -> str:
        return self.lock or self.name

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        if self.running is None:
            raise LabError("gardenlet was not started")
        return self.running
