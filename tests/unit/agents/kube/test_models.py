"""Projections read what they need, forgive what they do not know, and cannot be changed."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from agents.kube.models import (
    CertificateSigningRequest,
    Lease,
    Node,
    Secret,
    find_condition,
    format_micro_time,
)


def test_node() -> None:
    """Name, labels, annotations, conditions and addresses of a Node are read; the rest is ignored."""
    node = Node.model_validate_json(
        b'{"kind":"Node","metadata":{"name":"a","uid":"u","resourceVersion":"7","labels":{"l":"1"},"annotations":{"n":"2"},'
        b'"managedFields":[{"x":1}]},"spec":{"podCIDR":"x"},"status":{"conditions":[{"type":"Ready","status":"True",'
        b'"reason":"KubeletReady","lastHeartbeatTime":"2026-01-01T00:00:00Z"}],"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}'
    )
    assert (node.metadata.name, node.metadata.uid, node.metadata.resource_version) == ("a", "u", "7")
    assert (node.metadata.labels["l"], node.metadata.annotations["n"]) == ("1", "2")
    ready = find_condition(node.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "KubeletReady")
    assert find_condition(node.status.conditions, "Other") is None
    assert node.status.addresses[0].address == "10.0.0.1"


@pytest.mark.parametrize(
    "text",
    ["{}", '{"metadata":{"name":null,"labels":null,"annotations":null},"status":{"conditions":null,"addresses":null}}'],
)
def test_missing_and_null_are_empty(text: str) -> None:
    """What is missing or null counts as empty, as in Go."""
    node = Node.model_validate_json(text)
    assert node == Node()
    assert (dict(node.metadata.labels), node.status.conditions) == ({}, ())


def test_objects_cannot_be_changed() -> None:
    """Neither a field nor a mapping inside an object can be changed, so a cache can hand it out."""
    secret = Secret.model_validate_json(b'{"metadata":{"labels":{"a":"b"}},"data":{"k":"aGk="}}')
    with pytest.raises(ValidationError):
        secret.metadata.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        secret.metadata.labels["a"] = "c"  # type: ignore[index]
    with pytest.raises(TypeError):
        secret.data["k"] = b""  # type: ignore[index]


def test_secret_does_not_show() -> None:
    """Neither the text of a Secret nor an error about it shows its data."""
    secret = Secret.model_validate_json(b'{"data":{"k":"aGFsbG8="}}')
    assert secret.data == {"k": b"hallo"}
    assert "hallo" not in repr(secret)
    with pytest.raises(ValidationError) as caught:
        Secret.model_validate_json(b'{"data":{"k":"not-base64!"}}')
    assert "not-base64" not in str(caught.value)


def test_lease_times() -> None:
    """Times are read with microseconds and written with exactly six digits, in UTC."""
    lease = Lease.model_validate_json(b'{"spec":{"renewTime":"2026-01-02T03:04:05.678901Z","leaseDurationSeconds":40}}')
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert (lease.spec.renew_time, lease.spec.lease_duration_seconds, lease.spec.holder_identity) == (moment, 40, None)
    assert format_micro_time(moment) == "2026-01-02T03:04:05.678901Z"
    local = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert format_micro_time(local) == "2026-01-02T01:04:05.000000Z"


def test_certificate_signing_request() -> None:
    """Requester, conditions and the certificate's bytes are read."""
    request = CertificateSigningRequest.model_validate_json(
        b'{"spec":{"username":"u"},"status":{"certificate":"UEVN","conditions":[{"type":"Approved","status":"True"}]}}'
    )
    assert (request.spec.username, request.status.certificate) == ("u", b"PEM")
    assert find_condition(request.status.conditions, "Approved") is not None
