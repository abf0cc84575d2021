"""pytest fixtures that stand on the lab; nothing else in the tests starts control planes or machines.

A lab of a test run is named after this process, so that several runs on one host do not meet. What a killed run left is
removed by the next one, because its ledger names an owner that is gone.
"""

import os
from collections.abc import Iterator

import pytest

from tests.lab import state
from tests.lab.binaries import find_binaries
from tests.lab.controlplane import ControlPlane, plain_control_plane
from tests.lab.progress import to_stderr


@pytest.fixture(scope="session")
def integration_control_plane() -> Iterator[ControlPlane]:
    """Etcd and kube-apiserver on the host's loopback: authorization Node and RBAC, bootstrap tokens, no machines."""
    state.remove_abandoned()
    plane = plain_control_plane(f"plain-{os.getpid()}")
    state.claim(plane.ledger)
    plane.binaries = find_binaries(say=to_stderr)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        plane.ledger.remove()
