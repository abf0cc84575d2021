"""Clients of a real API server."""

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agents.core.clock import SystemClock
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.transport import HttpTransport
from tests.lab.controlplane import ControlPlane

NewClient = Callable[..., Client]


@pytest.fixture(scope="session")
def admin_access(integration_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ClusterAccess:
    """The administrator's access to the control plane."""
    path = integration_control_plane.kubeconfig(tmp_path_factory.mktemp("kubeconfig") / "admin")
    return kubeconfig.parse(Path(path).read_bytes())


@pytest.fixture
async def new_client(admin_access: ClusterAccess) -> AsyncIterator[NewClient]:
    """Makes clients, the administrator's unless fields of the access are given, and closes them."""
    clients: list[Client] = []

    def make(*, rng: Random | None = None, **fields: object) -> Client:
        access = replace(admin_access, **fields)  # type: ignore[arg-type]
        transport = HttpTransport(access, user_agent="test/1", clock=SystemClock())
        clients.append(Client(transport=transport, rng=rng or Random(1)))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def client(new_client: NewClient) -> Client:
    """The administrator's client."""
    return new_client()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
