"""The chain of authorizers in a real API server: what a node agent may do, what is recorded, what an outage looks like."""

from pathlib import Path

import pytest

from tests.lab.api import Api, Credentials, wait_for
from tests.lab.cluster import Lab
from tests.lab.errors import ApiError

pytestmark = pytest.mark.machine

_SECRETS = "/api/v1/namespaces/kube-system/secrets"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def _agent_api(lab: Lab, machine: str, folder: Path) -> Api:
    pair = lab.control_plane.issue_client_certificate(
        f"gardener.cloud:node-agent:machine:{machine}", ["gardener.cloud:node-agents"]
    )
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return Api(lab.control_plane.server, Credentials(lab.control_plane.ca_path, certificate, key))


def test_node_agent_gets_what_the_table_says_and_denials_are_recorded(lab: Lab, tmp_path: Path) -> None:
    """Contract 4.8, Appendix C (authorizer): before its Node exists an agent may list Nodes and read its pool's Secret; the rest is 403 and in the record."""
    lab.publish_osc_bytes(b"spec: {}\n", pool="table", secret_name="osc-table")
    api = _agent_api(lab, "table", tmp_path)
    assert api.raw("GET", "/version")[0] == 200
    assert api.raw("GET", "/api/v1/nodes")[0] == 200
    assert api.raw("GET", f"{_SECRETS}/osc-table")[0] == 200
    assert api.raw("GET", f"{_SECRETS}?fieldSelector=metadata.name%3Dosc-table")[0] == 200
    assert api.raw("GET", "/api/v1/nodes/table")[0] == 403
    assert api.raw("GET", f"{_CSRS}/missing")[0] == 403
    assert api.raw("GET", _SECRETS)[0] == 403
    denied = [request for request in lab.denials() if request.machine == "table"]
    assert [(r.verb, r.resource, r.name) for r in denied] == [
        ("get", "nodes", "table"),
        ("get", "certificatesigningrequests", "missing"),
        ("list", "secrets", ""),
    ]
    faults = [request.resource for request in lab.unexpected_denials() if request.machine == "table"]
    assert faults == ["certificatesigningrequests", "secrets"]


def test_node_makes_the_difference(lab: Lab, tmp_path: Path) -> None:
    """Contract 4.8, Appendix C (authorizer): with the Node, its Lease and the Secret that its label names can be used; those of others cannot."""
    for name in ("osc-mine", "osc-other"):
        lab.publish_osc_bytes(b"spec: {}\n", pool="p", secret_name=name)
    labels = {"worker.gardener.cloud/gardener-node-agent-secret-name": "osc-mine"}
    lab.api.create("/api/v1/nodes", {"metadata": {"name": "real", "labels": labels}})
    try:
        api = _agent_api(lab, "real", tmp_path)
        assert api.get("/api/v1/nodes/real")["metadata"]["name"] == "real"
        assert api.raw("GET", f"{_SECRETS}/osc-mine")[0] == 200
        assert api.raw("GET", f"{_SECRETS}/osc-other")[0] == 403
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        api.create(leases, {"metadata": {"name": "gardener-node-agent-real"}, "spec": {}})
        assert api.raw("GET", f"{leases}/gardener-node-agent-real")[0] == 200
        with pytest.raises(ApiError, match="403"):
            api.patch(f"{leases}/gardener-node-agent-real", {"spec": {}})
    finally:
        lab.delete_node("real")


def test_webhook_down_refuses_everything_and_is_no_fault(lab: Lab, tmp_path: Path) -> None:
    """While the webhook is down a node agent gets a 500 for what RBAC does not allow; while it denies everything, a 403."""
    api = _agent_api(lab, "outage", tmp_path)
    with lab.counterparts.denying():
        assert api.raw("GET", "/api/v1/nodes")[0] == 403
    with lab.counterparts.down():
        assert api.raw("GET", "/api/v1/nodes")[0] == 500
        assert api.raw("GET", "/version")[0] == 200
    assert api.raw("GET", "/api/v1/nodes")[0] == 200
    assert not [request for request in lab.unexpected_denials() if request.machine == "outage"]


def test_new_node_is_seen_late_if_a_test_wants_it(lab: Lab, tmp_path: Path) -> None:
    """The real authorizer lags behind: a request right after the Node's creation can be refused, and that is no fault."""
    api = _agent_api(lab, "young", tmp_path)
    with lab.counterparts.lagging(0.5):
        lab.api.create("/api/v1/nodes", {"metadata": {"name": "young"}})
        try:
            assert api.raw("GET", "/api/v1/nodes/young")[0] == 403
            wait_for(lambda: api.raw("GET", "/api/v1/nodes/young")[0] == 200, timeout=5, what="the Node to be seen")
        finally:
            lab.delete_node("young")
    assert not [request for request in lab.unexpected_denials() if request.machine == "young"]


def test_apiserver_can_be_frozen_killed_and_started_again(lab: Lab) -> None:
    """Every outage of the API server ends with the same cluster behind the same address."""
    plane = lab.control_plane
    before = lab.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
    plane.freeze_apiserver()
    try:
        with pytest.raises(OSError, match="timed out"):
            Api(plane.server, plane.admin_credentials, timeout=0.5).ready()
    finally:
        plane.thaw_apiserver()
    wait_for(lab.api.ready, timeout=20, what="the API server after a freeze")
    for end in (plane.kill_apiserver, plane.stop_apiserver):
        end()
        with pytest.raises(OSError, match="refused"):
            lab.api.ready()
        plane.start_apiserver()
    assert lab.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"] == before
