"""The client certificate expires while the API server is away: the agent waits for a bootstrap token, and goes on by itself."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.userdata import TOKEN_FILE
from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT, KUBELET_UNIT
from tests.support.short_certificate import expiry, give_certificate
from tests.support.worker import Worker

pytestmark = pytest.mark.machine

VALID = timedelta(seconds=25)
LOST = "Client certificate has expired or is refused, and there is no other one yet; trying again"
SIGNED_SECONDS = 150
"""kube-controller-manager, which signs, has to find the API server again first."""
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_numbers = count(1)


@pytest.fixture
def worker(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A worker of the test's own, which loses its Node."""
    with lab.removed_after(lab.add_machine(f"expired-{next(_numbers)}")) as machine:
        yield Worker.join(lab, machine, agent)


@contextmanager
def api_server_away(lab: Lab) -> Iterator[None]:
    """Have no API server for the length of a block."""
    lab.control_plane.kill_apiserver()
    try:
        yield
    finally:
        lab.control_plane.start_apiserver()


def wait_expired(worker: Worker) -> None:
    """Wait for the end of the agent's certificate."""
    wait_for(
        lambda: datetime.now(UTC) > expiry(worker), timeout=VALID.total_seconds() + 5, what="the certificate's end"
    )


def said(worker: Worker) -> list[str]:
    """Return the log entries with which the agent said that it is cut off."""
    lines = [line for line in worker.machine.journal(AGENT_UNIT).splitlines() if line.startswith("{")]
    return [json.dumps(entry) for entry in map(json.loads, lines) if entry.get("msg") == LOST]


def asked_with_token(worker: Worker) -> list[dict[str, Any]]:
    """Return the requests for certificates that were made with the second bootstrap token or a later one, oldest first."""
    found = [
        item
        for item in worker.lab.api.list(_CSRS)
        if item["metadata"]["name"].startswith("node-agent-csr-")
        and item["spec"]["username"].startswith("system:bootstrap:")
    ]
    return sorted(found, key=lambda item: str(item["metadata"]["creationTimestamp"]))


def hand_token(worker: Worker) -> None:
    """Bring a bootstrap token, as user data does."""
    worker.machine.write(TOKEN_FILE, worker.lab.create_bootstrap_token().encode(), 0o640)


def register_again(worker: Worker) -> None:
    """Let the kubelet register its Node, which somebody has deleted, and the agent apply to it what there is."""
    renewed = worker.lease()
    worker.machine.systemctl("restart", KUBELET_UNIT)
    worker.apply(worker.base.with_file("/opt/test/after", "1"), timeout=90)
    wait_for(lambda: worker.lease() not in (None, renewed), timeout=30, what="a heartbeat")


def test_a_running_agent_goes_on_with_a_token_that_is_brought_later(worker: Worker) -> None:
    """Contract 4.2, 4.5, 4.6: expired in an outage: said once per cause, as soon as the server refuses it; a token is denied while there is a Node, another one gets a certificate."""
    machine = worker.machine
    give_certificate(worker, left=VALID, lifetime=VALID)
    wait_for(lambda: worker.status()["phase"] == "applied", timeout=20, what="the agent to be ready")
    pid, kubelet = machine.main_pid(AGENT_UNIT), machine.unit(KUBELET_UNIT)["InvocationID"]
    expired, before = expiry(worker), len(asked_with_token(worker))
    with api_server_away(worker.lab):
        wait_expired(worker)
    [entry] = wait_for(lambda: said(worker), timeout=90, what="the agent to say that it is cut off")
    assert "bootstrap-token" in entry
    refused = 'rest_client_requests_total{code="401"'
    asked = ["curl", "-s", "http://127.0.0.1:2752/metrics"]
    wait_for(lambda: refused in machine.run(asked).stdout, timeout=60, what="the agent to be refused")
    hand_token(worker)
    denied = wait_for(lambda: said(worker)[1:], timeout=60, what="the denial")
    assert "the machine has a Node already" in denied[0]
    assert expiry(worker) == expired
    assert machine.unit(KUBELET_UNIT)["InvocationID"] == kubelet
    worker.lab.delete_node(machine.name)
    hand_token(worker)
    wait_for(lambda: expiry(worker) > expired, timeout=SIGNED_SECONDS, what="another certificate")
    register_again(worker)
    assert machine.main_pid(AGENT_UNIT) == pid
    assert len(said(worker)) == 2
    requests = asked_with_token(worker)[before:]
    assert len({item["spec"]["request"] for item in requests}) == len(requests)
    assert all(item["status"]["conditions"] for item in requests)
    assert not machine.exists(f"{AGENT_FOLDER}/credentials/pending-request.json")


def test_an_agent_that_starts_in_an_outage_outlives_its_certificate(worker: Worker) -> None:
    """Contract 1.4, 4.2: it starts with a valid certificate, which expires before anybody answers; the token that is there gets another one."""
    machine = worker.machine
    worker.lab.delete_node(machine.name)
    hand_token(worker)
    with api_server_away(worker.lab):
        give_certificate(worker, left=VALID, lifetime=VALID)
        pid, expired = machine.main_pid(AGENT_UNIT), expiry(worker)
        wait_expired(worker)
    wait_for(lambda: expiry(worker) > expired, timeout=SIGNED_SECONDS, what="another certificate")
    register_again(worker)
    assert machine.main_pid(AGENT_UNIT) == pid
