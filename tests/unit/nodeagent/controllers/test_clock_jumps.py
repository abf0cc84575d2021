"""The wall clock of the machine jumps by an hour, in both directions: nothing is early, late or done twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import LEASES, SECRETS
from agents.kube.server_clock import ServerClock
from agents.runtime.controller import Controller
from agents.runtime.source import ChannelSource
from nodeagent.certificate_in_use import CertificateInUse
from nodeagent.config import TokenController, TokenSync
from nodeagent.controllers import certificate, lease, token
from nodeagent.controllers.operatingsystemconfig.serial import SerialLock
from nodeagent.credentials import CredentialsManager
from nodeagent.host.clock_report import ClockReport
from tests.support.clock import EPOCH, FakeClock
from tests.support.osc_agent import b64
from tests.support.own_node import NAME, OwnNode

LEASE = f"gardener-node-agent-{NAME}"
HOUR = 3600.0


class Jumping:
    """A node whose API server has a clock of its own, with the controllers that look at times."""

    def __init__(self, node: OwnNode) -> None:
        self.node, self.server = node, FakeClock()
        self.node.register()
        self.clock = ServerClock(clock=self.node.clock, name="shoot")
        self.node.api.tell_time(self.clock.note, self.server)
        self.report = ClockReport(clock=self.clock, events=self.node.speaker("lease"))
        self.beats: list[float] = []
        self.wrong: list[float] = []

    async def renewed(self) -> None:
        """Note when the Lease was renewed, and how far what it says is from the server's time."""
        self.beats.append(asyncio.get_running_loop().time())
        stored = self.node.api.read(LEASES, LEASE, "kube-system")
        assert stored is not None
        said = datetime.fromisoformat(stored["spec"]["renewTime"])
        self.wrong.append(abs((said - self.server.now()).total_seconds()))
        self.report.tell()

    def heartbeat(self) -> Controller:
        """Return the lease controller."""
        return lease.new_controller(
            client=self.node.client,
            nodes=self.node.nodes,
            identity=self.node.identity,
            clock=self.clock,
            renewed=self.renewed,
        )

    @asynccontextmanager
    async def running(self, *more: Controller) -> AsyncIterator[None]:
        """Run the heartbeat, and more."""
        async with self.node.running(self.heartbeat(), *more):
            yield


@pytest.fixture
def jumping(machine: OwnNode) -> Jumping:
    """A registered node."""
    return Jumping(machine)


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_heartbeats_follow_the_servers_time(jumping: Jumping, jump: float) -> None:
    """Contract 7.1: not one renewal is early or late, and each says the server's time; told once in log and event, and once when it is over."""
    with capture_logs() as lines:
        async with jumping.running():
            await asyncio.sleep(60)
            jumping.node.clock.jump(jump)
            await asyncio.sleep(600)
            jumping.node.clock.jump(-jump)
            await asyncio.sleep(60)
    gaps = [later - earlier for earlier, later in zip(jumping.beats, jumping.beats[1:], strict=False)]
    assert set(map(round, gaps)) == {10}
    assert max(jumping.wrong) <= 1.0
    side = "ahead of" if jump > 0 else "behind"
    [event] = jumping.node.notes("ClockDiffers")
    assert event.startswith(f"Warning: The machine's clock is 3600 s {side} the API server's")
    assert len(jumping.node.notes("ClockAgrees")) == 1
    assert len([line for line in lines if line["event"].startswith("Clock ")]) == 2


async def test_a_small_difference_changes_nothing(jumping: Jumping) -> None:
    """Contract 7.1: 4 s are left alone: the Lease says what the machine's clock says, and nobody is told."""
    jumping.node.clock.jump(4)
    async with jumping.running():
        await asyncio.sleep(120)
    assert all(3.9 < wrong < 4.1 for wrong in jumping.wrong)
    assert jumping.node.notes("ClockDiffers") == []


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_tokens_are_read_when_they_are_due(jumping: Jumping, tmp_path: Path, jump: float) -> None:
    """Contract 7.3: the period of a token is not shortened, and not lengthened."""
    api = jumping.node.api
    api.put(SECRETS, {"metadata": {"name": "source", "namespace": "kube-system"}, "data": {"token": b64("t")}})
    syncs = (TokenSync(secret_name="source", path=str(tmp_path / "token")),)
    config = TokenController(sync_configs=syncs, sync_period=timedelta(minutes=10))
    controller = token.new_controller(client=jumping.node.client, config=config, resync=ChannelSource())
    async with jumping.running(controller):
        for _ in range(4):
            await asyncio.sleep(300)
            jumping.node.clock.jump(jump)
    assert len([call for call in api.requests("GET") if call.path.endswith("/secrets/source")]) == 3


def self_signed(not_after: datetime) -> bytes:
    """Return a certificate that is valid from the beginning of time on."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "agent")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), EPOCH, not_after)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Renewals:
    """Stands in for the credentials: a certificate, and how often a new one was asked for."""

    def __init__(self, not_after: datetime) -> None:
        self._credentials = Credentials(client_certificate=self_signed(not_after), client_key=b"unused")
        self.at: list[float] = []
        self.in_use = CertificateInUse(clock=FakeClock())

    async def stored(self) -> ClusterAccess:
        """Return the access with the certificate."""
        return ClusterAccess(server="https://unused", credentials=self._credentials)

    def take_news(self) -> list[str]:
        """Have none."""
        return []

    async def take_up(self, _access: ClusterAccess, _client: object) -> None:
        """Take it that it is in use."""

    async def confirm_again(self) -> None:
        """Take it that the certificate works."""

    async def renew(self, _client: object) -> None:
        """Count it, and have one for longer."""
        self.at.append(asyncio.get_running_loop().time() - 1000)
        certificate = self_signed(EPOCH + timedelta(days=30))
        self._credentials = Credentials(client_certificate=certificate, client_key=b"unused")


async def nothing(_moment: datetime) -> None:
    """Take the expiry."""


def new_certificate_controller(jumping: Jumping, renewals: Renewals) -> Controller:
    """Return the controller that renews."""
    return certificate.new_controller(
        credentials=cast("CredentialsManager", renewals),
        client=jumping.node.client,
        clock=jumping.clock,
        rng=Random(1),
        events=jumping.node.speaker("certificate"),
        expires=nothing,
    )


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_a_certificate_is_renewed_when_the_server_says_so(jumping: Jumping, jump: float) -> None:
    """Contract 4.6, 7.4: with the clock an hour off in either direction there is one renewal, at 80 to 88 percent of the server's time."""
    renewals = Renewals(EPOCH + timedelta(hours=2))
    async with jumping.running(new_certificate_controller(jumping, renewals)):
        await asyncio.sleep(1800)
        jumping.node.clock.jump(jump)
        await asyncio.sleep(2400)
        assert renewals.at == []
        await asyncio.sleep(2400)
    [at] = renewals.at
    assert 0.8 * 7200 <= at <= 0.88 * 7200 + 1


async def test_a_clock_ahead_at_the_start_renews_nothing(jumping: Jumping) -> None:
    """Contract 4.6: each start of a process whose clock is ahead would ask for a certificate: no storm, none at all."""
    jumping.node.clock.jump(24 * HOUR)
    renewals = Renewals(EPOCH + timedelta(hours=2))
    async with jumping.running(new_certificate_controller(jumping, renewals)):
        await asyncio.sleep(3000)
    assert renewals.at == []


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_a_lock_is_judged_by_the_servers_time(jumping: Jumping, jump: float) -> None:
    """Contract 6.11: a node whose clock is ahead takes no lock from its holder, one whose clock is behind does not wait for an hour."""
    node, name = jumping.node, "osc"
    meta = {"name": name, "namespace": "kube-system"}
    node.api.put(SECRETS, {"metadata": meta, "data": {}})
    lock = SerialLock(client=node.client, holder=NAME, clock=jumping.clock)
    async with jumping.running():
        secret = await node.client.get(SECRETS, name, namespace="kube-system")
        renewed = jumping.server.now()
        spec = {"holderIdentity": "worker-2", "leaseDurationSeconds": 600, "renewTime": renewed.isoformat()}
        node.api.put(LEASES, {"metadata": meta, "spec": spec})
        node.clock.jump(jump)
        assert await lock.acquire(secret) is not None
        await asyncio.sleep(610)
        assert await lock.acquire(secret) is None
        stored = node.api.read(LEASES, name, "kube-system")
        assert stored is not None
        said = datetime.fromisoformat(stored["spec"]["renewTime"])
        assert abs((said - jumping.server.now()).total_seconds()) <= 1
