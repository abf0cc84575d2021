"""A certificate from a real API server, and a life with it."""

import asyncio
import base64
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from agents.core.clock import SystemClock
from agents.core.generations import Generations
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS, SECRETS
from agents.kube.patch import merge
from agents.kube.transport import Call, HttpTransport
from agents.pki.certificate import parse_leaf, renewal_deadline
from agents.pki.csr import CertificateRequester
from agents.pki.store import FileKubeconfigStore
from tests.integration.agents.conftest import NewClient
from tests.lab.controlplane import ControlPlane

USER = "gardener.cloud:node-agent:machine:machine-1"
GROUP = "gardener.cloud:node-agents"
BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"


REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "test-bootstrap"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}],
}
TOKEN_DATA = {
    "token-id": "abcdef",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "usage-bootstrap-signing": "true",
}


async def post(client: Client, path: str, document: object) -> bytes:
    """Send a document of a kind that the agents do not know."""
    return await client._transport.request(Call("POST", path, body=json.dumps(document).encode()))


async def allow_bootstrap(client: Client) -> None:
    """Make a bootstrap token whose user may request certificates."""
    secret = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"}
    await client.create(SECRETS, {**secret, "stringData": TOKEN_DATA}, namespace="kube-system")
    await post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", BINDING)


def sign(request: bytes, plane: ControlPlane) -> bytes:
    """Sign a request with the cluster's CA, as kube-controller-manager would."""
    parsed = x509.load_pem_x509_csr(request)
    ca = x509.load_pem_x509_certificate((plane.pki_folder / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((plane.pki_folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = SystemClock().now()
    builder = x509.CertificateBuilder(ca.subject, parsed.subject, parsed.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=30))
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        builder.add_extension(usage, critical=False).sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )


async def approve(admin: Client, name: str, request: bytes, plane: ControlPlane) -> None:
    """Approve a request and put the certificate in."""
    condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "test"}
    approved = merge({"status": {"conditions": [condition]}})
    await admin.patch(CERTIFICATE_SIGNING_REQUESTS, name, approved, subresource="approval")
    issued = merge({"status": {"certificate": base64.b64encode(sign(request, plane)).decode()}})
    await admin.patch(CERTIFICATE_SIGNING_REQUESTS, name, issued, subresource="status")


async def test_bootstrap_to_kubeconfig(
    client: Client,
    new_client: NewClient,
    admin_access: ClusterAccess,
    integration_control_plane: ControlPlane,
    tmp_path: Path,
) -> None:
    """Contract 4.2: with the CA file and a bootstrap token a certificate must be requested, stored, and work from then on."""
    await allow_bootstrap(client)
    ca_file = tmp_path / "cluster-ca.crt"
    ca_file.write_bytes(integration_control_plane.ca_pem)
    bootstrap = ClusterAccess(
        server=admin_access.server, ca_file=ca_file, credentials=Credentials(token=BOOTSTRAP_TOKEN)
    )
    transport = HttpTransport(bootstrap, user_agent="test/1", clock=SystemClock())
    requester = CertificateRequester(
        client=Client(transport=transport, rng=Random(1)),
        common_name=USER,
        organizations=[GROUP],
        name_prefix="node-agent-csr-",
        expiration=timedelta(hours=720),
        clock=SystemClock(),
        poll_interval=timedelta(milliseconds=100),
    )
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        issued = group.create_task(requester.request())
        name, requested, user = await find_request(client)
        assert user == "system:bootstrap:abcdef"
        await approve(client, name, requested, integration_control_plane)
    await transport.close()

    store = FileKubeconfigStore(
        tmp_path / "credentials" / "kubeconfig", generations=Generations(tmp_path / "generations")
    )
    credentials = Credentials(client_certificate=issued.result().certificate, client_key=issued.result().key)
    await store.save(replace(bootstrap, credentials=credentials))
    loaded = await store.load()
    assert loaded is not None
    agent = new_client(
        server=loaded.server, ca_file=loaded.ca_file, ca_data=loaded.ca_data, credentials=loaded.credentials
    )
    review = await post(agent, "/apis/authentication.k8s.io/v1/selfsubjectreviews", REVIEW)
    assert USER.encode() in review
    assert GROUP.encode() in review
    leaf = parse_leaf(loaded.credentials.client_certificate)
    assert renewal_deadline(leaf, fraction=0.8, jitter=0.1, rng=Random(1)) > SystemClock().now() + timedelta(days=23)


async def find_request(client: Client) -> tuple[str, bytes, str]:
    """Wait for a request of ours; returns its name, the request, and who made it."""
    while True:
        for item in (await client.list(CERTIFICATE_SIGNING_REQUESTS)).items:
            if item.metadata.name.startswith("node-agent-csr-") and not item.status.conditions:
                return item.metadata.name, await raw_request(client, item.metadata.name), item.spec.username
        await asyncio.sleep(0.05)


async def raw_request(client: Client, name: str) -> bytes:
    """Return the PEM of a request."""
    document = json.loads(await client.get_raw(CERTIFICATE_SIGNING_REQUESTS.path(name)))
    return base64.b64decode(document["spec"]["request"])
