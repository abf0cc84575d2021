"""Paths of kinds and objects."""

import pytest

from agents.kube.errors import BadRequest
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS, CORE_EVENTS, EVENTS, LEASES, NODES, SECRETS


def test_paths() -> None:
    """Core and group kinds, with and without a namespace, have the paths of the API."""
    assert NODES.collection() == "/api/v1/nodes"
    assert NODES.path("a", subresource="status") == "/api/v1/nodes/a/status"
    assert SECRETS.collection("kube-system") == "/api/v1/namespaces/kube-system/secrets"
    assert SECRETS.collection() == "/api/v1/secrets"
    assert LEASES.path("a", namespace="b") == "/apis/coordination.k8s.io/v1/namespaces/b/leases/a"
    assert EVENTS.collection("default") == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert (EVENTS.api_version, CORE_EVENTS.api_version) == ("events.k8s.io/v1", "v1")


def test_name_of_a_certificate_signing_request() -> None:
    """A name with the characters of base64url stays as it is."""
    assert CERTIFICATE_SIGNING_REQUESTS.path("node-agent-csr-a_B-9").endswith("/node-agent-csr-a_B-9")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb"])
def test_names_that_would_leave_the_path(name: str) -> None:
    """A name that would mean something else than one object is refused before anything is sent; an empty one means all."""
    with pytest.raises(BadRequest):
        NODES.path(name)
    with pytest.raises(BadRequest):
        SECRETS.path("a", namespace=name)


def test_namespace_must_fit_the_kind() -> None:
    """A kind with namespaces needs one for an object, a kind without refuses one."""
    with pytest.raises(BadRequest):
        SECRETS.path("a")
    with pytest.raises(BadRequest):
        NODES.path("a", namespace="b")
