"""kube-scheduler, beside a lab's control plane for as long as a test needs Pods that nobody bound to a Node."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.binaries import find_binaries
from tests.lab.controlplane import ControlPlane
from tests.lab.processes import clean_environment, spawn


@contextmanager
def scheduling(plane: ControlPlane) -> Iterator[None]:
    """Have Pods of a control plane bound to Nodes for the length of a block."""
    kubeconfig = plane.kubeconfig(plane.directory / "scheduler.kubeconfig", server=f"https://127.0.0.1:{plane.port}")
    process = spawn(
        plane.ledger,
        "kube-scheduler",
        [
            str((plane.binaries or find_binaries()).scheduler),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
        ],
        log=plane.log_path("kube-scheduler"),
        netns=plane.placement.netns,
        env=clean_environment(),
    )
    try:
        yield
    finally:
        process.kill()
