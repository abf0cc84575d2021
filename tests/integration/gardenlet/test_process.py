"""The whole process against a real garden and a real seed: from a bootstrap token to heartbeats, and back."""

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from agents.kube import kubeconfig
from agents.kube.kubeconfig import ClusterAccess, Credentials
from tests.lab.api import wait_for
from tests.lab.controlplane import free_ports
from tests.lab.garden.garden import Garden

ROOT = Path(__file__).resolve().parents[3]
SEED_SECRETS = "/api/v1/namespaces/garden/secrets"
CREDENTIALS = {"apiVersion": "v1", "kind": "Secret", "name": "dns", "namespace": "garden"}
LEADER = "/apis/coordination.k8s.io/v1/namespaces/garden/leases"


@dataclass
class Process:
    """A gardenlet of one seed, which can be started again and again."""

    garden: Garden
    folder: Path
    name: str = field(default_factory=lambda: f"seed-{uuid4().hex[:8]}")
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    running: subprocess.Popen[bytes] | None = None

    def hand_token(self) -> None:
        """Put a bootstrap kubeconfig into the seed."""
        token, plane = self.garden.create_bootstrap_token(self.name), self.garden.plane
        access = ClusterAccess(server=plane.server, ca_data=plane.ca_pem, credentials=Credentials(token=token))
        data = {"kubeconfig": base64.b64encode(kubeconfig.render(access)).decode()}
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
            "leaderElection": {"resourceName": f"leader-{self.name}"},
            "seedConfig": {
                "metadata": {"name": self.name},
                "spec": {
                    "provider": {"type": "local", "region": "r"},
                    "networks": {"pods": "10.1.0.0/16", "services": "10.0.0.0/24", "nodes": "10.2.0.0/16"},
                    "ingress": {"domain": "ingress.lab.internal", "controller": {"kind": "nginx"}},
                    "dns": {
                        name: {"type": "local", "domain": f"{name}.lab.internal", "credentialsRef": CREDENTIALS}
                        for name in ("provider", "internal")
                    },
                },
            },
        }
        path = self.folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(config))
        seed = self.garden.seed.kubeconfig(self.folder / "seed.kubeconfig")
        environment = {**os.environ, "KUBECONFIG": str(seed), "POD_UID": self.name, "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "gardenlet", "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.folder / f"{self.name}.log").read_text()

    def ask(self, path: str) -> tuple[int, str]:
        """Ask its health server; 0 if nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=5)
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
        except Exception as error:
            raise AssertionError(f"{error}\n{self.ask(path + '?verbose')[1]}\n{self.log[-6000:]}") from error

    def renewed(self) -> str | None:
        """Return when the Lease of the Seed was renewed."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/gardener-system-seed-lease/leases/{self.name}"
        found = self.garden.api.find(path)
        return found["spec"]["renewTime"] if found else None

    def stored(self) -> dict[str, Any] | None:
        """Return the Secret with the kubeconfig."""
        return self.garden.seed.admin.find(f"{SEED_SECRETS}/{self.name}-kubeconfig")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; returns the exit code."""
        assert self.running is not None
        self.running.send_signal(number)
        return self.running.wait(timeout=20)


@pytest.fixture
def process(garden: Garden, tmp_path: Path) -> Iterator[Process]:
    """A gardenlet with a bootstrap token, not started; refused requests fail the test."""
    found = Process(garden, tmp_path)
    found.hand_token()
    denied = len(garden.denials())
    yield found
    if found.running is not None and found.running.poll() is None:
        found.running.kill()
        found.running.wait()
    garden.api.delete(f"/apis/core.gardener.cloud/v1beta1/seeds/{found.name}")
    assert [str(one) for one in garden.denials()[denied:] if found.name in one.user] == []


def test_from_a_token_to_heartbeats(process: Process) -> None:
    """Contract core 13.1.1, 13.1.3: CSR, kubeconfig, Seed, namespace, Lease; nothing of the bootstrap left; renewed on request."""
    process.start()
    process.until(200, timeout=15)
    process.until(200, "/readyz")
    wait_for(process.renewed, timeout=20, what="a heartbeat")
    seed = process.garden.api.get(f"/apis/core.gardener.cloud/v1beta1/seeds/{process.name}")
    assert seed["metadata"]["labels"]["gardener.cloud/role"] == "seed"
    assert process.garden.api.find(f"/api/v1/namespaces/seed-{process.name}") is not None
    wait_for(
        lambda: process.garden.seed.admin.find(f"{SEED_SECRETS}/{process.name}-bootstrap") is None,
        timeout=20,
        what="the bootstrap Secret to go",
    )
    first = process.stored()
    assert first is not None
    process.garden.seed.admin.patch(
        f"{SEED_SECRETS}/{process.name}-kubeconfig",
        {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}},
    )
    assert process.running is not None
    assert process.running.wait(timeout=20) == 0
    second = process.stored()
    assert second is not None
    assert second["data"] != first["data"]
    before = process.renewed()
    process.start()
    wait_for(lambda: process.renewed() != before, timeout=20, what="a heartbeat with the new certificate")
    assert process.end() == 0
    assert "PRIVATE KEY" not in process.log


def test_killed_and_stopped(process: Process) -> None:
    """Contract core 1.3, 1.7: SIGTERM gives the lease back; after SIGKILL the same Pod leads again at once."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    before, started = process.renewed(), time.monotonic()
    process.start()
    wait_for(lambda: process.renewed() != before, timeout=30, what="a heartbeat after the kill")
    assert time.monotonic() - started < 12
    assert process.end() == 0
    lease = process.garden.seed.admin.get(f"{LEADER}/leader-{process.name}")
    assert not lease["spec"].get("holderIdentity")


def test_health_says_which_side_fails(process: Process) -> None:
    """Contract core 1.5, 13.1.4: a seed or garden that is killed: 500 with the side; 200 again after it is back."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    for side, plane in (("garden", process.garden.plane), ("seed", process.garden.seed)):
        plane.kill_apiserver()
        try:
            process.until(500, timeout=10)
            assert f"{side}: " in process.ask("/healthz?verbose")[1]
            assert process.ask("/healthz/ping")[0] == 200
        finally:
            plane.start_apiserver()
        if side == "garden":
            process.until(200, timeout=15)
    # The leader's lease could not be renewed meanwhile, or could: it ends with an error, or goes on.
    assert process.running is not None
    assert process.running.poll() in (None, 1)


def test_a_wrong_configuration_is_one_line_for_each_problem(process: Process) -> None:
    """Contract core 1.7, 2: exit code 2, each problem with its path, no traceback."""
    path = process.folder / "wrong.yaml"
    path.write_text(
        json.dumps({"apiVersion": "gardenlet.config.gardener.cloud/v1alpha1", "kind": "GardenletConfiguration"})
    )
    done = subprocess.run(
        [sys.executable, "-m", "gardenlet", "--config", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "seedConfig" in done.stderr
    assert "Traceback" not in done.stderr
