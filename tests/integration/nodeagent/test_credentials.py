"""First certificate, restart, loss and renewal, against a real API server with a signer played by the test."""

import asyncio
import base64
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from agents.core.clock import SystemClock
from agents.core.generations import Generations
from agents.core.yamlio import load_yaml
from agents.kube.client import Client
from agents.kube.errors import Forbidden, Unauthorized
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import Credentials
from agents.kube.models import LEASES
from agents.kube.server_clock import ServerClock
from agents.pki.certificate import parse_leaf
from agents.pki.store import FileKubeconfigStore
from agents.runtime.reconcile import Request
from agents.runtime.workqueue import WorkQueue
from nodeagent.certificate_in_use import CERTIFICATE, Standing
from nodeagent.config import ApiServer, Controllers, NodeAgentConfiguration
from nodeagent.controllers.certificate import CertificateReconciler
from nodeagent.credentials import ClientFactory, CredentialsManager
from nodeagent.host.node_events import NodeEvents
from nodeagent.paths import Paths
from tests.integration.nodeagent.conftest import eventually
from tests.lab.api import Api
from tests.lab.controlplane import ControlPlane
from tests.lab.pki import Authority
from tests.support.fake_api import FakeApi

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


@dataclass
class Machine:
    """A machine with user data, and the cluster's administrator."""

    paths: Paths
    name: str
    plane: ControlPlane
    api: Api

    def manager(self, *, ahead: timedelta = timedelta(0)) -> CredentialsManager:
        """Return what a new process would have, on a machine whose clock may be wrong."""
        clock = ServerClock(clock=WrongClock(ahead), name="test")
        config = NodeAgentConfiguration(
            api_version="nodeagent.config.gardener.cloud/v1alpha1",
            kind="NodeAgentConfiguration",
            api_server=ApiServer(server=self.plane.server, ca_file=str(self.paths.cluster_ca)),
            controllers=Controllers(),
        )
        clients = ClientFactory(clock=clock, rng=Random(1), observe=lambda _method, _code, _seconds: None)
        return CredentialsManager(config=config, paths=self.paths, machine_name=self.name, clients=clients, clock=clock)

    def requests(self) -> list[dict[str, Any]]:
        """Return this machine's requests."""
        subject = f"gardener.cloud:node-agent:machine:{self.name}"
        return [item for item in self.api.list(CSRS) if _common_name(item) == subject]

    def approve(self, *, lifetime: timedelta = timedelta(hours=720)) -> None:
        """Approve and sign what is open."""
        for item in self.requests():
            if not item.get("status"):
                name = item["metadata"]["name"]
                approved = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
                item["status"] = {"conditions": [approved]}
                item = self.api.replace(f"{CSRS}/{name}/approval", item)
                item["status"]["certificate"] = base64.b64encode(self.sign(item, lifetime)).decode()
                self.api.replace(f"{CSRS}/{name}/status", item)

    def sign(self, item: dict[str, Any], lifetime: timedelta) -> bytes:
        """Sign a request with the cluster's CA."""
        request = x509.load_pem_x509_csr(base64.b64decode(item["spec"]["request"]))
        ca = x509.load_pem_x509_certificate(self.plane.ca_pem)
        key = serialization.load_pem_private_key((self.plane.pki_folder / "ca.key").read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey | RSAPrivateKey)
        start = datetime.now(UTC) - timedelta(minutes=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(ca.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + lifetime)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        )
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class WrongClock(SystemClock):
    """A wall clock that is ahead, or behind."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def now(self) -> datetime:
        """Return the wrong time."""
        return super().now() + self._ahead


def _common_name(item: dict[str, Any]) -> str:
    request = x509.load_pem_x509_csr(base64.b64decode(item["spec"]["request"]))
    names = request.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


@pytest.fixture
def machine(integration_control_plane: ControlPlane, tmp_path: Path) -> Machine:
    """User data on a machine below a temporary directory."""
    plane = integration_control_plane
    paths = Paths(root=tmp_path)
    paths.credentials.mkdir(parents=True)
    paths.cluster_ca.write_bytes(plane.ca_pem)
    token_id, secret = uuid4().hex[:6], uuid4().hex[:16]
    data = {
        "token-id": token_id,
        "token-secret": secret,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{token_id}"},
        "stringData": data,
    }
    plane.admin.create("/api/v1/namespaces/kube-system/secrets", body)
    paths.bootstrap_token.write_text(f"{token_id}.{secret}\n")
    return Machine(paths=paths, name=f"machine-{uuid4().hex[:8]}", plane=plane, api=plane.admin)


async def obtain(machine: Machine, manager: CredentialsManager, decide: Callable[[], None]) -> bytes:
    """Obtain credentials while an approver decides; returns the certificate."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(manager.obtain())
        await eventually(machine.requests, what="CSR")
        await asyncio.to_thread(decide)
        access = await task
    await manager.close()
    return access.credentials.client_certificate


async def test_first_certificate_is_requested_and_stored(machine: Machine) -> None:
    """Contract 4.2, 4.3, 4.4: the CSR has exactly our subject, name and wishes; the kubeconfig is 0600 with a CA file."""
    certificate = await obtain(machine, machine.manager(), machine.approve)
    (request,) = machine.requests()
    spec = request["spec"]
    assert isinstance(spec, dict)
    assert spec["signerName"] == "kubernetes.io/kube-apiserver-client"
    assert spec["usages"] == ["digital signature", "key encipherment", "client auth"]
    assert spec["expirationSeconds"] == 2592000
    assert spec["username"].startswith("system:bootstrap:")
    assert request["metadata"]["name"].startswith("node-agent-csr-")
    assert parse_leaf(certificate).organizations == ("gardener.cloud:node-agents",)
    assert stat.S_IMODE(machine.paths.kubeconfig.stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.paths.credentials.stat().st_mode) == 0o700
    document = load_yaml(machine.paths.kubeconfig.read_bytes())
    assert isinstance(document, dict)
    assert document["current-context"] == "node-agent"
    assert document["clusters"][0]["cluster"] == {
        "server": machine.plane.server,
        "certificate-authority": str(machine.paths.cluster_ca),
    }


async def test_a_stored_kubeconfig_is_used_without_a_request(machine: Machine) -> None:
    """Contract 4.2: what is stored is used; the bootstrap token is not touched."""
    first = await obtain(machine, machine.manager(), machine.approve)
    manager = machine.manager()
    assert (await manager.obtain()).credentials.client_certificate == first
    assert len(machine.requests()) == 1


async def test_w28_a_killed_bootstrap_goes_on_with_its_request(machine: Machine) -> None:
    """Contract 4.3, 9 W28: one request in spite of a kill during the wait; its key is gone once the kubeconfig is there."""
    killed = machine.manager()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(killed.obtain())
        await eventually(machine.requests, what="CSR")
        task.cancel()
    await killed.close()
    kept = machine.paths.pending_request.read_bytes()
    assert stat.S_IMODE(machine.paths.pending_request.stat().st_mode) == 0o600
    manager = machine.manager()
    await obtain(machine, manager, machine.approve)
    assert len(machine.requests()) == 1
    assert not machine.paths.pending_request.exists()
    # Killed between the two writes: the key is still there, though it is in use.
    machine.paths.pending_request.write_bytes(kept)
    await manager.confirm()
    assert not machine.paths.pending_request.exists()


@pytest.mark.parametrize("content", ["", "apiVersion: v1\nclusters: [", "{}"])
async def test_an_empty_or_torn_kubeconfig_heals_with_the_token(machine: Machine, content: str) -> None:
    """Contract 4.2, 9 W2: an empty or torn kubeconfig leads to a new certificate while the token works, not to a crash loop."""
    machine.paths.kubeconfig.write_text(content)
    await obtain(machine, machine.manager(), machine.approve)
    assert (await machine.manager().obtain()).credentials.client_certificate


async def test_a_clock_that_is_ahead_does_not_make_a_certificate_expire(machine: Machine) -> None:
    """Contract 4.2: near its end the API server's time decides: a machine two hours ahead goes on with what is stored."""
    first = await obtain(machine, machine.manager(), lambda: machine.approve(lifetime=timedelta(hours=1)))
    machine.paths.bootstrap_token.unlink()
    manager = machine.manager(ahead=timedelta(hours=2))
    assert (await manager.obtain()).credentials.client_certificate == first
    assert len(machine.requests()) == 1


async def test_a_clock_that_is_behind_does_not_hide_that_a_certificate_has_expired(machine: Machine) -> None:
    """Contract 4.2: what has expired by the API server's time is replaced with the token, whatever our clock says."""
    first = await obtain(machine, machine.manager(), lambda: machine.approve(lifetime=timedelta(seconds=59)))
    manager = machine.manager(ahead=timedelta(hours=-2))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(manager.obtain())
        await eventually(lambda: len(machine.requests()) == 2, what="second CSR")
        await asyncio.to_thread(machine.approve)
        access = await task
    await manager.close()
    assert access.credentials.client_certificate != first


async def test_an_api_server_that_is_away_leaves_it_to_our_clock(machine: Machine) -> None:
    """Contract 4.2: nobody to ask for the time: our own clock decides, and the process goes on."""
    first = await obtain(machine, machine.manager(), lambda: machine.approve(lifetime=timedelta(hours=1)))
    content = machine.paths.kubeconfig.read_bytes().replace(machine.plane.server.encode(), b"https://127.0.0.1:1")
    machine.paths.kubeconfig.write_bytes(content)
    assert (await machine.manager().obtain()).credentials.client_certificate == first


async def test_the_backup_serves_when_the_kubeconfig_is_torn(machine: Machine) -> None:
    """Contract 4.4: until a new kubeconfig was used, a torn one falls back to the one before."""
    first = await obtain(machine, machine.manager(), machine.approve)
    machine.paths.kubeconfig.rename(machine.paths.kubeconfig.with_name("kubeconfig.bak"))
    machine.paths.kubeconfig.write_text("torn")
    assert (await machine.manager().obtain()).credentials.client_certificate == first
    assert len(machine.requests()) == 1


async def test_nothing_but_waiting_without_kubeconfig_and_token(machine: Machine) -> None:
    """Contract 4.5: kubeconfig lost after the Node registered: stay up and wait, no request, no exit."""
    machine.paths.bootstrap_token.unlink()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await machine.manager().obtain()
    assert machine.requests() == []


class Keys(WorkQueue[Request]):
    """Remembers what was queued."""

    def __init__(self) -> None:
        super().__init__(rng=Random(1))
        self.keys: list[Request] = []

    def add(self, item: Request) -> None:
        """Remember it."""
        self.keys.append(item)


def silent() -> NodeEvents:
    """Return events that nobody gets, as the Node is unknown."""
    recorder = EventRecorder(client=Client(transport=FakeApi(), rng=Random(1)), instance="test", clock=SystemClock())
    return NodeEvents(recorder=recorder, node=lambda: None, controller="certificate")


async def test_w31_renewal_stores_a_new_certificate_and_uses_it(machine: Machine) -> None:
    """Contract 4.6, 4.7, 1.8, 9 W31: past the deadline a new certificate is requested with the old one, stored, and used by the same client."""
    first = await obtain(machine, machine.manager(), lambda: machine.approve(lifetime=timedelta(minutes=1, seconds=30)))
    # As written before v1.147: the CA inline. The renewal moves it to the configured file.
    before = await machine.manager().stored()
    assert before is not None
    await FileKubeconfigStore(machine.paths.kubeconfig, generations=Generations(machine.paths.generations)).save(
        replace(before, ca_file=None, ca_data=machine.plane.ca_pem)
    )
    manager = machine.manager()
    clients = ClientFactory(
        clock=ServerClock(clock=SystemClock(), name="test"),
        rng=Random(1),
        observe=lambda _method, _code, _seconds: None,
    )
    admin = machine.plane.issue_client_certificate("admin", ["system:masters"])
    stored = await manager.stored()
    assert stored is not None
    client = clients.client(
        replace(stored, credentials=Credentials(client_certificate=admin[0], client_key=admin[1])), trust=manager.trust
    )
    moments: list[datetime] = []

    async def expires(moment: datetime) -> None:
        moments.append(moment)

    class Later(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(minutes=1)

    reconciler = CertificateReconciler(
        credentials=manager, client=client, clock=Later(), rng=Random(1), events=silent(), expires=expires
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reconciler.reconcile(Request("", "x")))
        await eventually(lambda: len(machine.requests()) == 2, what="second CSR")
        await asyncio.to_thread(machine.approve)
        await task
    renewed = await manager.stored()
    assert renewed is not None
    with pytest.raises(Forbidden, match=f"gardener.cloud:node-agent:machine:{machine.name}"):
        await client.list(LEASES)
    await client.close()
    assert machine.paths.trusted_authorities.read_bytes() == machine.plane.ca_pem
    assert renewed.credentials.client_certificate != first
    assert (renewed.ca_file, renewed.ca_data) == (machine.paths.cluster_ca, b"")
    assert moments[0] == parse_leaf(first).not_after
    assert moments[1:] == [parse_leaf(renewed.credentials.client_certificate).not_after]


async def test_a_certificate_that_is_refused_is_replaced_in_use(machine: Machine) -> None:
    """Contract 4.2, 4.6: a 401 is noticed whatever was asked, asked about once, and the same client goes on with what the token gets."""
    await obtain(machine, machine.manager(), machine.approve)
    manager, queue = machine.manager(), Keys()
    manager.in_use.looks.start(queue)
    stored = await manager.stored()
    assert stored is not None
    certificate, key = Authority.create("another").issue_client("somebody", [])
    codes: list[str] = []
    clients = ClientFactory(
        clock=ServerClock(clock=SystemClock(), name="test"),
        rng=Random(1),
        observe=lambda _method, code, _seconds: codes.append(code),
    )
    client = clients.client(
        replace(stored, credentials=Credentials(client_certificate=certificate, client_key=key)),
        trust=manager.trust,
        answered=manager.in_use.answered,
    )
    assert await manager.in_use.standing(client) is Standing.ACCEPTED
    with pytest.raises(Unauthorized):
        await client.list(LEASES)
    assert [await manager.in_use.standing(client) for _ in range(3)] == [Standing.REFUSED] * 3
    assert codes == ["401", "401"]
    assert queue.keys == [CERTIFICATE]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(manager.start_over(client))
        await eventually(lambda: len(machine.requests()) == 2, what="second CSR")
        await asyncio.to_thread(machine.approve)
        await task
    assert await manager.in_use.standing(client) is Standing.ACCEPTED
    with pytest.raises(Forbidden, match=f"gardener.cloud:node-agent:machine:{machine.name}"):
        await client.list(LEASES)
    await client.close()
    assert await manager.stored() != stored
    assert not machine.paths.pending_request.exists()


async def test_before_the_deadline_nothing_happens(machine: Machine) -> None:
    """Contract 4.6: before the deadline the reconcile only comes back, and no request is made."""
    await obtain(machine, machine.manager(), machine.approve)
    manager = machine.manager()

    async def expires(_moment: datetime) -> None:
        pass

    clients = ClientFactory(
        clock=ServerClock(clock=SystemClock(), name="test"),
        rng=Random(1),
        observe=lambda _method, _code, _seconds: None,
    )
    stored = await manager.stored()
    assert stored is not None
    client = clients.client(stored)
    reconciler = CertificateReconciler(
        credentials=manager, client=client, clock=SystemClock(), rng=Random(1), events=silent(), expires=expires
    )
    result = await reconciler.reconcile(Request("", "x"))
    await client.close()
    assert result.requeue_after == timedelta(hours=1)
    assert len(machine.requests()) == 1


async def test_w45_two_renewals_at_once_leave_a_whole_kubeconfig(machine: Machine) -> None:
    """Contract 7.9, 9 W45: two reasons to renew at the same moment go one after the other; the kubeconfig stays usable."""
    await obtain(machine, machine.manager(), machine.approve)
    manager = machine.manager()
    # The second one is made with what the first one got, whom nothing but RBAC knows here.
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "User", "name": f"gardener.cloud:node-agent:machine:{machine.name}", "apiGroup": rbac}
    role = {"kind": "ClusterRole", "name": "system:node-bootstrapper", "apiGroup": rbac}
    binding = {"metadata": {"name": machine.name}, "subjects": [subject], "roleRef": role}
    machine.api.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
    clients = ClientFactory(
        clock=ServerClock(clock=SystemClock(), name="test"),
        rng=Random(1),
        observe=lambda _method, _code, _seconds: None,
    )
    certificate, key = machine.plane.issue_client_certificate("admin", ["system:masters"])
    stored = await manager.stored()
    assert stored is not None
    client = clients.client(replace(stored, credentials=Credentials(client_certificate=certificate, client_key=key)))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(manager.renew(client)) for _ in range(2)]
        await eventually(lambda: len(machine.requests()) == 2, what="CSR of the first")
        await asyncio.to_thread(machine.approve)
        await eventually(lambda: len(machine.requests()) == 3, what="CSR of the second, only now")
        await asyncio.to_thread(machine.approve)
        for task in tasks:
            await task
    await client.close()
    renewed = await machine.manager().stored()
    assert renewed is not None
    assert renewed.credentials.client_certificate != stored.credentials.client_certificate
