"""The client certificate is renewed under a running agent."""

import asyncio
import base64
from collections.abc import MutableMapping
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from agents.core.clock import Clock
from agents.core.generations import Generations
from agents.kube.errors import Unauthorized
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS
from agents.kube.server_clock import ServerClock
from agents.pki.certificate import parse_leaf
from agents.pki.store import FileKubeconfigStore
from agents.runtime.controller import Controller
from nodeagent.config import ApiServer, Controllers, NodeAgentConfiguration
from nodeagent.controllers import certificate
from nodeagent.credentials import ClientFactory, CredentialsManager
from tests.lab.pki import Authority
from tests.support.clock import EPOCH
from tests.support.fake_systemd import FakeSystemd
from tests.support.own_node import OwnNode
from tests.support.tasks import running
from tests.unit.agents.pki.conftest import Approver

LIFETIME = timedelta(hours=3)


class Machine(OwnNode):
    """A machine with a certificate, and a cluster that signs."""

    def __init__(self, root: Path, host: FakeSystemd) -> None:
        super().__init__(root, host)
        self.approver = Approver(self.api)
        self.expiries: list[datetime] = []
        self.paths.credentials.mkdir(parents=True)
        self.store = FileKubeconfigStore(self.paths.kubeconfig, generations=Generations(self.paths.generations))

    async def join(self) -> None:
        """Store a certificate that was issued at the epoch."""
        issued, key = Authority.create("ca").issue_client("me", [], validity=LIFETIME)
        await self.store.save(
            ClusterAccess(
                server="https://api",
                ca_data=Authority.create("ca").certificate_pem,
                credentials=Credentials(client_certificate=issued, client_key=key),
            )
        )
        # The fake clock is behind the one that signed; from here on both stand for the same moment.
        leaf = parse_leaf(issued)
        self.clock.advance((leaf.not_before - EPOCH).total_seconds())

    def controller(self) -> Controller:
        """Return the controller of a new process."""
        config = NodeAgentConfiguration(
            api_version="nodeagent.config.gardener.cloud/v1alpha1",
            kind="NodeAgentConfiguration",
            api_server=ApiServer(server="https://api", ca_file=str(self.paths.cluster_ca)),
            controllers=Controllers(),
        )
        clock: Clock = self.clock
        clients = ClientFactory(
            clock=ServerClock(clock=clock, name="shoot"), rng=Random(1), observe=lambda _method, _code, _seconds: None
        )
        credentials = CredentialsManager(
            config=config, paths=self.paths, machine_name="m", clients=clients, clock=clock
        )

        async def expires(moment: datetime) -> None:
            self.expiries.append(moment)

        return certificate.new_controller(
            credentials=credentials,
            client=self.client,
            clock=clock,
            rng=Random(1),
            events=self.speaker("certificate"),
            expires=expires,
        )

    @property
    def open_requests(self) -> int:
        """Return how many requests nobody has decided on."""
        return sum(not request.get("status") for request in self.api.stored(CERTIFICATE_SIGNING_REQUESTS))

    async def requested(self, *, within: timedelta = LIFETIME) -> None:
        """Wait until a request is open."""
        async with asyncio.timeout(within.total_seconds()):
            while not self.open_requests:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(20)

    def issue(self) -> None:
        """Sign what is open, valid from now on."""
        request = self.approver.requests[-1]
        signed = self.approver.sign(
            base64.b64decode(request["spec"]["request"]), start=self.clock.now(), lifetime=LIFETIME
        )
        self.approver.decide("Approved", certificate=signed)


@pytest.fixture
async def machine(tmp_path: Path, host: FakeSystemd) -> Machine:
    """A machine that has joined."""
    found = Machine(tmp_path, host)
    await found.join()
    found.register()
    return found


async def test_renewal_swaps_the_connection_and_interrupts_nothing(machine: Machine) -> None:
    """Contract 4.6: the new certificate is proven, stored and used; watches are opened anew, the process goes on."""
    first = machine.paths.kubeconfig.read_bytes()
    async with machine.running(machine.controller()):
        await machine.requested()
        streams = list(machine.api.streams)
        machine.issue()
        await asyncio.sleep(3)
        [used] = machine.api.switches
        stored = await machine.store.load()
        assert stored is not None
        assert stored.credentials == used.credentials
        assert machine.paths.kubeconfig.read_bytes() != first
        assert not machine.paths.kubeconfig.with_name("kubeconfig.bak").exists()
        assert streams
        assert not set(map(id, streams)) & set(map(id, machine.api.streams))
        assert machine.shutdown.requested is None
        await asyncio.sleep(LIFETIME.total_seconds() * 0.7)
        assert len(machine.approver.requests) == 1
        await machine.requested(within=LIFETIME * 0.19)
    assert len(machine.expiries) == 2


async def test_a_new_certificate_that_is_not_accepted_is_tried_again(machine: Machine) -> None:
    """The old one stays in use and on the disk; it is said once, in log and event, and no other one is requested for an hour."""
    first = machine.paths.kubeconfig.read_bytes()
    machine.api.fail(Unauthorized("not accepted"), path="/version")
    async with machine.running(machine.controller()):
        await machine.requested()
        machine.issue()
        with structlog.testing.capture_logs() as lines:
            await asyncio.sleep(1800)
        assert [line["event"] for line in lines if line["log_level"] == "error"] == [
            "New client certificate not accepted, trying again"
        ]
        assert len(machine.notes("CertificateNotAccepted")) == 1
        assert machine.paths.kubeconfig.read_bytes() == first
        assert not machine.api.switches
        assert len(machine.approver.requests) == 1
        machine.api.heal()
        await asyncio.sleep(61)
        assert len(machine.api.switches) == 1
        assert len(machine.approver.requests) == 1
    assert machine.paths.kubeconfig.read_bytes() != first


async def test_a_damaged_kubeconfig_is_made_good_and_said_once(machine: Machine) -> None:
    """While the agent runs and long after its certificate was confirmed: one event, the same identity, nothing requested."""
    good = machine.paths.kubeconfig.read_bytes()
    async with machine.running(machine.controller()):
        await asyncio.sleep(1)
        machine.paths.kubeconfig.write_bytes(b"torn")
        await asyncio.sleep(timedelta(hours=1).total_seconds())
        assert machine.paths.kubeconfig.read_bytes() == good
        assert len(machine.notes("StateDamaged")) == 1
        assert not machine.approver.requests


async def test_a_denied_renewal_is_said_once(machine: Machine) -> None:
    """Contract 4.5, 4.6: denied for ten minutes: one line and one event with the approver's words; another text is said again."""
    words = "requester is not the machine"

    async def deny() -> None:
        while True:
            if machine.open_requests:
                name = machine.approver.requests[-1]["metadata"]["name"]
                machine.approver.decide("Denied", message=f"{name}: {words}")
            await asyncio.sleep(1)

    def said(lines: list[MutableMapping[str, Any]]) -> list[str]:
        return [str(line["error"]) for line in lines if line["log_level"] != "debug" and "error" in line]

    async with machine.running(machine.controller()):
        await machine.requested()
        async with running(deny):
            with structlog.testing.capture_logs() as lines:
                await asyncio.sleep(600)
            [line] = said(lines)
            assert "explanation=this request: requester is not the machine" in line
            [note] = machine.notes("CertificateRefused")
            assert note == f"Warning: {line}"
            assert 3 <= len(machine.approver.requests) <= 5
            words = "machine is gone"
            with structlog.testing.capture_logs() as lines:
                await asyncio.sleep(3000)
            assert ["machine is gone" in line for line in said(lines)] == [True]
        assert len(machine.notes("CertificateRefused")) == 2
        await machine.requested()
        machine.issue()
        await asyncio.sleep(3)
        assert len(machine.api.switches) == 1


async def test_a_certificate_that_is_never_accepted_is_replaced(machine: Machine) -> None:
    """After an hour another one is requested: the fault may be in the certificate."""
    machine.api.fail(Unauthorized("not accepted"), path="/version")
    async with machine.running(machine.controller()):
        await machine.requested()
        machine.issue()
        await asyncio.sleep(3900)
        assert machine.open_requests == 1
        machine.api.heal()
        machine.issue()
        await asyncio.sleep(3)
        assert len(machine.api.switches) == 1


async def test_a_certificate_that_is_due_at_once_is_no_storm(machine: Machine) -> None:
    """A signer whose certificates are nearly over when they are issued: at most one request a minute."""
    async with machine.running(machine.controller()):
        await machine.requested()
        for _ in range(120):
            if machine.open_requests:
                machine.approver.issue()  # valid since the epoch, for a month: over long ago
            await asyncio.sleep(5)
    assert 5 < len(machine.approver.requests) <= 11
