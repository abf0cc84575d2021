"""gardenlet as an operator installs it: the chart's Deployment with the built image, in a lab that has a garden beside it."""

import datetime as dt
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from image.build import OUTPUT, ROOT, tag_of
from onefile.programs import PROGRAMS
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.controlplane import Placement
from tests.lab.garden.garden import Garden
from tests.lab.machine import Machine
from tests.lab.network import SERVER_ADDRESS
from tests.lab.oci import Image
from tests.lab.progress import to_stderr
from tests.lab.scheduler import scheduling
from tests.support.chart import CHART, helm, values_of

SEED = "pods"
NAMESPACE = "garden"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gardenlet"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces"
_PROBES = Path(__file__).with_name("quick_probes.py")
_GARDEN_PORT, _GARDEN_ETCD_PORT = 6444, 2479


@contextmanager
def garden_beside(lab: Lab) -> Iterator[Garden]:
    """Have a garden in a lab's network for the length of a block; the lab is its seed, and schedules Pods."""
    placement = Placement(
        address=lab.network.host_side_address,
        inside=SERVER_ADDRESS,
        port=_GARDEN_PORT,
        etcd_port=_GARDEN_ETCD_PORT,
        netns=lab.network.netns,
    )
    garden = Garden(lab.ledger, say=to_stderr, placement=placement, given_seed=lab.control_plane)
    lab.api.ensure("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    garden.up()
    try:
        with scheduling(lab.control_plane):
            yield garden
    finally:
        garden.stop()


@dataclass(slots=True)
class GardenletPods:
    """A release of the chart.

    Attributes:
        lab: the seed.
        node: where the Pods run.
        garden: where the seed belongs.
        folder: for values.
        image: reference of gardenlet's image, with its digest.
    """

    lab: Lab
    node: Machine
    garden: Garden
    folder: Path
    image: str = field(init=False)

    def __post_init__(self) -> None:
        subprocess.run(["make", "image"], check=True, cwd=ROOT, capture_output=True, timeout=900)
        program = PROGRAMS["gardenlet"]
        image = Image.read_layout(OUTPUT / program.name)
        self.image = self.lab.registry().push(image, "gardener/gardenlet", tag_of(program))

    def install(self, **values: object) -> None:
        """Install the chart, or upgrade to other values; does not wait for Pods."""
        kubeconfig = self.lab.control_plane.kubeconfig(self.folder / "seed.kubeconfig")
        path = self.folder / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        given = (*values_of("minimal"), self._own_values(), path)
        files: list[str] = [option for one in given for option in ("--values", str(one))]
        rendered = ("--post-renderer", sys.executable, "--post-renderer-args", str(_PROBES))
        done = helm(
            *("upgrade", "--install", "gardenlet", CHART, "--namespace", NAMESPACE, "--kubeconfig", kubeconfig),
            *files,
            *rendered,
        )
        assert done.returncode == 0, done.stderr

    def uninstall(self) -> None:
        """Remove the release, and wait until its Pods are gone."""
        kubeconfig = self.lab.control_plane.kubeconfig(self.folder / "seed.kubeconfig")
        helm("uninstall", "gardenlet", "--ignore-not-found", "--namespace", NAMESPACE, "--kubeconfig", kubeconfig)
        wait_for(lambda: not self.pods(), timeout=60, what="gardenlet's Pods to be gone")

    def _own_values(self) -> Path:
        path = self.folder / "own.yaml"
        if not path.exists():
            kubeconfig = self.garden.bootstrap_kubeconfig(SEED, server=self.garden.plane.server_inside)
            networks = {"pods": "10.201.0.0/16", "services": "10.0.0.0/24", "nodes": "10.200.0.0/24"}
            config = {
                "gardenClientConnection": {"bootstrapKubeconfig": {"kubeconfig": kubeconfig}},
                "seedConfig": {"metadata": {"name": SEED}, "spec": {"networks": networks}},
            }
            path.write_text(yaml.safe_dump({"image": {"ref": self.image}, "config": config}))
        return path

    def pods(self) -> list[dict[str, Any]]:
        """Return its Pods."""
        found: list[dict[str, Any]] = self.lab.api.get(f"{_PODS}?labelSelector=app%3Dgardener,role%3Dgardenlet")[
            "items"
        ]
        return found

    def names(self) -> set[str]:
        """Return the names of its Pods."""
        return {str(pod["metadata"]["name"]) for pod in self.pods()}

    def leader(self) -> str:
        """Return the name of the Pod that leads; empty for none."""
        found = self.lab.api.find(f"{_LEASES}/{NAMESPACE}/leases/gardenlet-leader-election") or {}
        return str(found.get("spec", {}).get("holderIdentity") or "").partition("_")[0]

    def restarts(self, pod: str) -> int:
        """Return how often the kubelet has started a Pod's container again."""
        statuses = self.lab.api.get(f"{_PODS}/{pod}")["status"].get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0))

    def renewed(self) -> dt.datetime | None:
        """Return when the Seed's Lease was renewed last."""
        found = self.garden.api.find(f"{_LEASES}/gardener-system-seed-lease/leases/{SEED}")
        return dt.datetime.fromisoformat(found["spec"]["renewTime"]) if found else None

    def wait_beating(self, *, timeout: float = 60) -> None:
        """Wait for a beat that comes after now."""
        before = self.renewed()
        self._wait(lambda: self.renewed() not in (None, before), timeout, "a heartbeat of gardenlet")

    def rolled_out(self) -> bool:
        """Whether all Pods are of the newest kind, and ready."""
        one = self.lab.api.get(_DEPLOYMENT)
        status, wanted = one["status"], one["spec"]["replicas"]
        counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")]
        return status.get("observedGeneration") == one["metadata"]["generation"] and counts == [wanted] * len(counts)

    def wait_rolled_out(self, *, timeout: float = 90) -> None:
        """Wait until all Pods are of the newest kind, and ready."""
        self._wait(self.rolled_out, timeout, "the Deployment to be rolled out")

    def beats_until(self, condition: Callable[[], bool], *, timeout: float = 90) -> list[dt.datetime]:
        """Return the times of all renewals from now until a condition holds, and of one after that."""
        found: list[dt.datetime] = []
        deadline, after = time.monotonic() + timeout, None

        def look() -> bool:
            nonlocal after
            moment = self.renewed()
            if moment is not None and moment not in found:
                found.append(moment)
            if after is None and condition():
                after = len(found)
            return after is not None and len(found) > after

        self._wait(look, deadline - time.monotonic(), "the last renewal that counts")
        return found

    def events(self, reason: str, pod: str) -> list[str]:
        """Return the messages of a Pod's events."""
        events: list[Mapping[str, Any]] = self.lab.api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        return [one["message"] for one in events if (one["reason"], one["involvedObject"]["name"]) == (reason, pod)]

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        try:
            wait_for(condition, timeout=timeout, what=what)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.told()}") from error

    @contextmanager
    def keeping_logs(self) -> Iterator[Callable[[], str]]:
        """Keep, for a block, what the Pods of now log, as the kubelet removes that with them; yields a reader."""
        kept, follower = "/root/kept-logs", "kept-logs.service"
        follow = f"exec tail -n 15 -F /var/log/pods/{NAMESPACE}_gardenlet-*/gardenlet/*.log >{kept} 2>&1"
        self.node.run(["systemd-run", "--collect", f"--unit={follower}", "sh", "-c", follow])
        try:
            yield lambda: f"{self.told()}\n{self.node.run(['cat', kept]).stdout}"
        finally:
            self.node.systemctl("stop", follower)
            self.node.run(["rm", kept])

    def told(self) -> str:
        """Return what there is to know about the Pods: states, events and the ends of their logs."""
        lines = [f"{pod['metadata']['name']}: {pod['status'].get('containerStatuses')}" for pod in self.pods()]
        events = self.lab.api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        lines += [f"{one['reason']} {one['involvedObject']['name']}: {one['message']}" for one in events]
        logs = f"tail -n 15 /var/log/pods/{NAMESPACE}_gardenlet-*/gardenlet/*.log"
        return "\n".join([*lines, self.node.run(["sh", "-c", logs], check=False).stdout])
