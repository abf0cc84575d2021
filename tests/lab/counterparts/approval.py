"""Rules of the csr-approver for client certificates of node agents: counterparts contract, section 10.2, hardened.

Hardened means: what a node agent sends is exactly known, so anything else under its name is denied.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.lab.counterparts.authorization import GROUP, USER_PREFIX

SIGNER = "kubernetes.io/kube-apiserver-client"
_USAGES = ["client auth", "digital signature", "key encipherment"]
_BOOTSTRAP_USER_PREFIX = "system:bootstrap:"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Approve or deny, and why."""

    approve: bool
    message: str

    @property
    def condition(self) -> dict[str, str]:
        """The condition that goes into the request's status."""
        kind, reason = ("Approved", "RequestApproved") if self.approve else ("Denied", "RequestDenied")
        return {"type": kind, "status": "True", "reason": reason, "message": self.message}


def machine_of(request: Mapping[str, Any]) -> str | None:
    """Return the machine whose certificate is asked for; None if the request is not one that is decided here.

    Raises:
        ValueError: the request cannot be decoded.
    """
    spec, status = request["spec"], request.get("status") or {}
    decided = any(c["type"] in {"Approved", "Denied"} for c in status.get("conditions") or [])
    if spec["signerName"] != SIGNER or decided or status.get("certificate"):
        return None
    common_name = _common_name(_decode(request))
    return common_name.removeprefix(USER_PREFIX) if common_name.startswith(USER_PREFIX) else None


def judge(request: Mapping[str, Any], *, node_exists: bool) -> Verdict:
    """Decide about a request for which `machine_of` returned a machine.

    Args:
        request: the CertificateSigningRequest.
        node_exists: whether there is a Node of the machine's name.
    """
    decoded, user = _decode(request), request["spec"]["username"]
    problem = _deviation(decoded, request["spec"].get("usages") or [])
    if problem:
        return Verdict(approve=False, message=problem)
    if user.startswith(_BOOTSTRAP_USER_PREFIX):
        if node_exists:
            return Verdict(approve=False, message="the machine has a Node already")
        return Verdict(approve=True, message="bootstrapping machine without a Node")
    if user.startswith(USER_PREFIX):
        same = user == _common_name(decoded)
        return Verdict(
            approve=same, message="renewal by the node agent itself" if same else "another node agent's name"
        )
    return Verdict(approve=False, message=f"user {user} may not ask for node agents' certificates")


def _decode(request: Mapping[str, Any]) -> x509.CertificateSigningRequest:
    return x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))


def _common_name(decoded: x509.CertificateSigningRequest) -> str:
    names = decoded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _deviation(decoded: x509.CertificateSigningRequest, usages: list[str]) -> str:
    organisations = [str(a.value) for a in decoded.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if organisations != [GROUP]:
        return f"organisations must be exactly {GROUP}"
    if any(isinstance(extension.value, x509.SubjectAlternativeName) for extension in decoded.extensions):
        return "subject alternative names are not allowed"
    if sorted(usages) != _USAGES:
        return f"usages must be {', '.join(_USAGES)}"
    return ""
