"""The lab's garden on a real API server: what gardenlet will meet there."""

import base64
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from tests.lab import pki
from tests.lab.api import Api, Credentials, wait_for
from tests.lab.errors import ApiError
from tests.lab.garden.crds import CORE, SEEDS
from tests.lab.garden.garden import Garden
from tests.lab.garden.identity import LEASE_NAMESPACE, SEEDS_GROUP, USER_PREFIX, label_of

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
IDENTITY_VERSION = "security.gardener.cloud/v1alpha1"
IDENTITIES = f"/apis/{IDENTITY_VERSION}/namespaces/garden/workloadidentities"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"


def signing_request(seed: str, name: str) -> dict[str, Any]:
    """Return a CSR as gardenlet makes it."""
    key = pki.new_key()
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, SEEDS_GROUP)]
    names.append(x509.NameAttribute(NameOID.COMMON_NAME, USER_PREFIX + seed))
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names)).sign(key, hashes.SHA256())
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["digital signature", "key encipherment", "client auth"],
        },
    }


def gardenlet(garden: Garden, seed: str, folder: Path) -> Api:
    """Return a client with the certificate of a seed's gardenlet."""
    certificate, key = garden.gardenlet_certificate(seed)
    (folder / "client.crt").write_bytes(certificate)
    pki.write_secret(folder / "client.key", key)
    return Api(garden.plane.server, Credentials(garden.plane.ca_path, folder / "client.crt", folder / "client.key"))


@pytest.fixture
def client(garden: Garden, tmp_path: Path) -> Iterator[Api]:
    """The gardenlet of seed `one`, which is registered."""
    found = gardenlet(garden, "one", tmp_path)
    spec = {"provider": {"type": "local", "region": "here"}}
    found.create(
        SEEDS.collection, {"apiVersion": f"{CORE}/v1beta1", "kind": "Seed", "metadata": {"name": "one"}, "spec": spec}
    )
    yield found
    garden.api.delete(f"{SEEDS.collection}/one")
    wait_for(lambda: garden.api.find("/api/v1/namespaces/seed-one") is None, timeout=120, what="namespace to go")


def status_of(call: Any) -> int:
    """Return the status with which a call failed."""
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.status


def test_a_bootstrap_token_gets_a_seed_certificate(garden: Garden) -> None:
    """Counterparts contract 4, 17.4 G1: approved by shape, signed; the token may read its CSR and list none."""
    token = garden.create_bootstrap_token("fresh")
    client = Api(garden.plane.server, Credentials(garden.plane.ca_path, token=token))
    client.create(CSRS, signing_request("fresh", "seed-csr-fresh"))

    def issued() -> str | None:
        status = client.get(f"{CSRS}/seed-csr-fresh").get("status") or {}
        return status.get("certificate")

    certificate = x509.load_pem_x509_certificate(base64.b64decode(wait_for(issued, timeout=15, what="certificate")))
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "gardener.cloud:system:seed:fresh"
    assert status_of(lambda: client.list(CSRS)) == 403


def test_a_seed_gets_labels_and_a_namespace(garden: Garden, client: Api) -> None:
    """Counterparts contract 5.1, 17.2, 17.7 #5: labels at once, then the namespace, owned by the Seed."""
    seed = client.list(SEEDS.collection, labelSelector=f"{label_of('one')}=true")[0]
    assert seed["metadata"]["labels"] == {
        label_of("one"): "true",
        "seed.gardener.cloud/provider": "local",
        "seed.gardener.cloud/region": "here",
    }
    namespace = wait_for(lambda: garden.api.find("/api/v1/namespaces/seed-one"), timeout=10, what="namespace")
    assert namespace["metadata"]["labels"]["gardener.cloud/role"] == "seed"
    assert namespace["metadata"]["ownerReferences"][0]["uid"] == seed["metadata"]["uid"]
    wait_for(lambda: client.list("/api/v1/namespaces/seed-one/secrets") == [] or None, timeout=5, what="its Secrets")


def test_a_gardenlet_gets_no_further_than_its_seed(garden: Garden, client: Api) -> None:
    """Counterparts contract 15.2, 15.4, 17.7 #23: lists need the selector, and nothing of another seed can be made."""
    shoots = f"/apis/{CORE}/v1beta1/shoots"
    assert client.list(shoots, labelSelector=f"{label_of('one')}=true") == []
    assert status_of(lambda: client.list(shoots)) == 403
    assert status_of(lambda: client.list(shoots, fieldSelector="spec.seedName=one")) == 403
    assert status_of(lambda: client.list(shoots, labelSelector=f"{label_of('two')}=true")) == 403
    other = {"apiVersion": f"{CORE}/v1beta1", "kind": "Seed", "metadata": {"name": "two"}, "spec": {}}
    assert status_of(lambda: client.create(SEEDS.collection, other)) == 403
    assert status_of(lambda: client.create(LEASES, {"metadata": {"name": "two"}})) == 403
    assert status_of(lambda: client.get("/api/v1/namespaces/kube-system/secrets/x")) == 403
    assert client.get("/api/v1/namespaces/kube-system/configmaps/cluster-identity")["data"]
    assert client.get("/api/v1/namespaces/gardener-system-public/configmaps/kube-root-ca.crt")["data"]["ca.crt"]
    assert any(denied.resource == "shoots" for denied in garden.denials())


def test_tokens_of_workload_identities(garden: Garden, client: Api) -> None:
    """Counterparts contract 15.2, core 9.2, 12.1: through the aggregation layer, for those that the Seed refers to and no others."""
    for name in ("own", "foreign"):
        spec = {"audiences": ["cloud"], "targetSystem": {"type": "local"}}
        body = {"apiVersion": IDENTITY_VERSION, "kind": "WorkloadIdentity", "metadata": {"name": name}, "spec": spec}
        garden.api.create(IDENTITIES, body)
    reference = {"apiVersion": IDENTITY_VERSION, "kind": "WorkloadIdentity", "namespace": "garden", "name": "own"}
    garden.api.patch(f"{SEEDS.collection}/one", {"spec": {"backup": {"credentialsRef": reference}}})
    uid = client.get(f"{IDENTITIES}/own")["metadata"]["uid"]
    context = {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}

    def ask(name: str, seconds: int = 600) -> dict[str, Any]:
        asked = {"spec": {"expirationSeconds": seconds, "contextObject": context}}
        return client.create(f"{IDENTITIES}/{name}/token", {"apiVersion": IDENTITY_VERSION, **asked})

    status = ask("own")["status"]
    payload = status["token"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["sub"] == f"security.gardener.cloud:workloadidentity:garden:own:{uid}"
    assert (claims["aud"], claims["gardener.cloud"]) == (["cloud"], {"context": context})
    assert dt.datetime.fromisoformat(status["expirationTimestamp"]).timestamp() == claims["exp"] == claims["iat"] + 600
    assert status_of(lambda: ask("own", seconds=599)) == 422
    assert status_of(lambda: ask("foreign")) == 403
    assert status_of(lambda: client.get(f"{IDENTITIES}/foreign")) == 403
    assert status_of(lambda: client.list(IDENTITIES)) == 403
    assert status_of(lambda: client.patch(f"{IDENTITIES}/own", {"spec": {}})) == 403
    assert status_of(lambda: client.create(IDENTITIES, {"metadata": {"name": "new"}})) == 403
    garden.api.delete(f"{IDENTITIES}/own")
    assert status_of(lambda: ask("own")) == 404
    left = {one["metadata"]["name"] for one in garden.api.list(IDENTITIES)}
    assert left & {"own", "foreign"} == {"foreign"}
    garden.api.delete(f"{IDENTITIES}/foreign")


def test_a_silent_gardenlet_is_said_to_be_silent(garden: Garden, client: Api) -> None:
    """Counterparts contract 5.2, 17.7 #7: only a Seed with conditions, and then within one period."""
    now = dt.datetime.now(dt.UTC)
    stale = (now - dt.timedelta(seconds=41)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    client.create(LEASES, {"metadata": {"name": "one"}, "spec": {"holderIdentity": "one", "renewTime": stale}})
    ready = {"type": "GardenletReady", "status": "True", "reason": "GardenletReady"}
    client.patch(f"{SEEDS.collection}/one/status", {"status": {"conditions": [ready]}})

    def unknown() -> bool:
        conditions = client.get(f"{SEEDS.collection}/one")["status"]["conditions"]
        return [(one["type"], one["status"]) for one in conditions] == [("GardenletReady", "Unknown")]

    wait_for(unknown, timeout=15, what="GardenletReady to be Unknown")
    garden.api.delete(f"{LEASES}/one")


def test_the_seed_is_another_api_server(garden: Garden) -> None:
    """The seed has its own kinds, and does not know the garden's."""
    assert garden.seed.admin.list("/apis/resources.gardener.cloud/v1alpha1/managedresources") == []
    assert garden.seed.admin.raw("GET", SEEDS.collection)[0] == 404
    assert json.loads(garden.seed.admin.raw("GET", "/version")[1])["gitVersion"].startswith("v1.")
