"""A real kube-apiserver's warnings reach the log."""

from random import Random

from structlog.testing import capture_logs

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.transport import HttpTransport
from agents.kube.warnings import Warnings
from gardenlet.apis.networking import ENDPOINTS


async def test_a_deprecated_kind_is_said_once(admin_access: ClusterAccess) -> None:
    """Contract core 1.1: two reads of a kind that is deprecated make one line, which names the cluster."""
    warnings = Warnings(cluster="seed")
    transport = HttpTransport(admin_access, user_agent="test/1", clock=SystemClock(), warn=warnings.note)
    client = Client(transport=transport, rng=Random(1))
    with capture_logs() as lines:
        for _ in range(2):
            await client.list(ENDPOINTS)
    await client.close()
    assert [line["cluster"] for line in lines] == ["seed"]
    assert "v1 Endpoints is deprecated" in lines[0]["warning"]
