"""Rules of the CSR approver: counterparts contract 10.2, hardened."""

import base64
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from tests.lab.counterparts.approval import judge, machine_of
from tests.lab.pki import new_key

_CN = "gardener.cloud:node-agent:machine:m1"
_GROUP = "gardener.cloud:node-agents"
_USAGES = ["digital signature", "key encipherment", "client auth"]


def _request(cn: str = _CN, organisations: tuple[str, ...] = (_GROUP,), san: str = "", **spec: Any) -> dict[str, Any]:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organisations]
    builder = x509.CertificateSigningRequestBuilder(x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, cn)]))
    if san:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(san)]), critical=False)
    pem = builder.sign(new_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    wanted = {
        "signerName": "kubernetes.io/kube-apiserver-client",
        "request": base64.b64encode(pem).decode(),
        "usages": _USAGES,
        "username": "system:bootstrap:abcdef",
        **spec,
    }
    return {"metadata": {"name": "x"}, "spec": wanted, "status": {}}


@pytest.mark.parametrize(
    ("username", "node_exists", "approved"),
    [
        ("system:bootstrap:abcdef", False, True),
        ("system:bootstrap:abcdef", True, False),
        (_CN, True, True),
        (_CN, False, True),
        ("gardener.cloud:node-agent:machine:m2", True, False),
        ("system:serviceaccount:kube-system:gardener-node-agent", False, False),
        ("admin", False, False),
    ],
)
def test_who_may_ask(username: str, node_exists: bool, approved: bool) -> None:
    """A bootstrapping machine without a Node, or the node agent itself for its own name; nobody else."""
    assert judge(_request(username=username), node_exists=node_exists).approve is approved


@pytest.mark.parametrize(
    "request_",
    [
        _request(organisations=()),
        _request(organisations=(_GROUP, "system:masters")),
        _request(organisations=("system:masters",)),
        _request(san="example.com"),
        _request(usages=["client auth"]),
        _request(usages=[*_USAGES, "server auth"]),
    ],
    ids=["no group", "one group more", "another group", "alternative name", "usage missing", "usage more"],
)
def test_what_deviates_is_denied(request_: dict[str, Any]) -> None:
    """What a node agent sends is exactly known, so anything else under its name is denied."""
    verdict = judge(request_, node_exists=False)
    assert not verdict.approve
    assert verdict.condition["type"] == "Denied"
    assert verdict.condition["reason"] == "RequestDenied"


def test_order_of_usages_does_not_matter() -> None:
    """Usages are a set."""
    verdict = judge(_request(usages=list(reversed(_USAGES))), node_exists=False)
    assert verdict.condition["type"] == "Approved"
    assert verdict.condition["reason"] == "RequestApproved"


def test_other_requests_are_left_alone() -> None:
    """Another signer, another common name, a decided request: not ours."""
    assert machine_of(_request()) == "m1"
    assert machine_of(_request(cn="system:node:m1")) is None
    assert machine_of(_request(signerName="kubernetes.io/kubelet-serving")) is None
    decided = _request()
    decided["status"] = {"conditions": [{"type": "Denied", "status": "True"}]}
    assert machine_of(decided) is None
    issued = _request()
    issued["status"] = {"certificate": "xyz"}
    assert machine_of(issued) is None


def test_request_that_cannot_be_decoded_is_an_error() -> None:
    """Undecodable means error, not denial."""
    broken = _request()
    broken["spec"]["request"] = base64.b64encode(b"nonsense").decode()
    with pytest.raises(ValueError, match="PEM"):
        machine_of(broken)
