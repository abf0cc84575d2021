"""Rules of gardener-controller-manager's csr-autoapprove for seed clients: counterparts contract, 4, hardened."""

import base64
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.lab.garden.identity import SEEDS_GROUP, USER_PREFIX

_SIGNER = "kubernetes.io/kube-apiserver-client"
_USAGES = {"client auth", "digital signature", "key encipherment"}
APPROVED = {
    "type": "Approved",
    "status": "True",
    "reason": "AutoApproved",
    "message": "Auto approving gardenlet client certificate after SubjectAccessReview.",
}


def requested_seed(request: Mapping[str, Any]) -> str | None:
    """Return the seed whose client certificate a CertificateSigningRequest asks for; None if it is none of those.

    Raises:
        ValueError: the request cannot be decoded.
    """
    spec = request["spec"]
    decoded = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
    names = [str(one.value) for one in decoded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(one.value) for one in decoded.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    bare = not any(isinstance(extension.value, x509.SubjectAlternativeName) for extension in decoded.extensions)
    ours = len(names) == 1 and names[0].startswith(USER_PREFIX) and groups == [SEEDS_GROUP]
    if not ours or not bare or set(spec.get("usages") or ()) != _USAGES or spec["signerName"] != _SIGNER:
        return None
    return names[0].removeprefix(USER_PREFIX) or None


def is_decided(request: Mapping[str, Any]) -> bool:
    """Tell whether somebody decided already."""
    status = request.get("status") or {}
    decided = any(one["type"] in {"Approved", "Denied"} for one in status.get("conditions") or [])
    return decided or bool(status.get("certificate"))


def access_review(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SubjectAccessReview that asks whether whoever made a request may be a seed's client."""
    spec = request["spec"]
    attributes = {
        "group": "certificates.k8s.io",
        "resource": "certificatesigningrequests",
        "subresource": "seedclient",
        "verb": "create",
    }
    asked = {"user": spec["username"], "uid": spec.get("uid", ""), "groups": spec.get("groups") or []}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**asked, "extra": spec.get("extra") or {}, "resourceAttributes": attributes},
    }
