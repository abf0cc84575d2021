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
from agents.kube.errors import ServerError, Unauthorized, Unavailable
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS, NODES
from agents.pki.certificate import parse_leaf
from agents.pki.store import FileKubeconfigStore
from agents.runtime.controller import Controller
from nodeagent.config import ApiServer, Controllers, NodeAgentConfiguration
from nodeagent.controllers import certificate
from nodeagent.credentials import CredentialsManager
from tests.lab.pki import Authority
from tests.support.clock import EPOCH
from tests.support.fake_api import FakeApi
from tests.support.fake_systemd import FakeSystemd
from tests.support.in_memory_clients import InMemoryClients
from tests.support.own_node import OwnNode
from tests.support.tasks import running
from tests.unit.agents.pki.conftest import Approver

LIFETIME = timedelta(hours=10)


class Machine(OwnNode):
    """A machine with a certificate, and a cluster that signs."""

    def __init__(self, root: Path, host: FakeSystemd) -> None:
        super().__init__(root, host)
        self.approver = Approver(self.api)
        self.before_join = FakeApi()
        """The API server as whoever has a bootstrap token sees it: what our own credentials do not get there is our own."""
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
        """Return the controller of a new process, and remember its credentials."""
        config = NodeAgentConfiguration(
            api_version="nodeagent.config.gardener.cloud/v1alpha1",
            kind="NodeAgentConfiguration",
            api_server=ApiServer(server="https://api", ca_file=str(self.paths.cluster_ca)),
            controllers=Controllers(),
        )
        clock: Clock = self.clock
        self.credentials = CredentialsManager(
            config=config,
            paths=self.paths,
            machine_name="m",
            clients=InMemoryClients(self.before_join, clock),
            clock=clock,
        )

        async def expires(moment: datetime) -> None:
            self.expiries.append(moment)

        return certificate.new_controller(
            credentials=self.credentials,
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

    def issue(self, *, age: timedelta = timedelta(0)) -> None:
        """Sign what is open, valid for so long already."""
        request = self.approver.requests[-1]
        signed = self.approver.sign(
            base64.b64decode(request["spec"]["request"]), start=self.clock.now() - age, lifetime=LIFETIME
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
        await machine.credentials.confirm()
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
                machine.issue(age=LIFETIME * 0.9)
            await asyncio.sleep(5)
    assert 5 < len(machine.approver.requests) <= 11


TOKEN, OTHER_TOKEN = "abcdef.0123456789abcdef", "fedcba.0123456789abcdef"
LOST = "Client certificate has expired or is refused, and there is no other one yet; trying again"


class Lost:
    """A machine whose certificate has expired during an outage that is over now."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.paths, self.api = machine.paths, machine.before_join
        self.approver = Approver(machine.before_join)

    async def expire(self) -> list[str]:
        """Let it become due and expire while no API server answers, then be refused; returns what was said at level error."""
        await asyncio.sleep(LIFETIME.total_seconds() * 0.78)
        self.machine.api.go_away()
        self.api.go_away()
        with structlog.testing.capture_logs() as lines:
            await asyncio.sleep(LIFETIME.total_seconds() * 0.22 + 2000)  # attempts to renew are up to 1000 s apart
            stored = await self.machine.store.load()
            assert stored is not None
            self.machine.api.certificate = stored.credentials.client_certificate
            self.machine.api.refused.add(self.machine.api.certificate)
            self.machine.api.heal()
            self.api.heal()
            self.machine.credentials.in_use.answered("401")  # informers ask all the time
            await asyncio.sleep(1)
        return _said(lines)

    def issue(self) -> None:
        """Sign the newest request that was made with a bootstrap token, valid from now on."""
        request = base64.b64decode(self.approver.requests[-1]["spec"]["request"])
        signed = self.approver.sign(request, start=self.machine.clock.now(), lifetime=LIFETIME)
        self.approver.decide("Approved", certificate=signed)

    async def goes_on(self) -> bool:
        """Tell whether the certificate that was just issued is soon in use and stored, and nothing of the way to it is left."""
        await asyncio.sleep(3)
        stored = await self.machine.store.load()
        used = [access.credentials for access in self.machine.api.switches]
        return stored is not None and used == [stored.credentials] and not self.paths.pending_request.exists()


def _said(lines: list[MutableMapping[str, Any]]) -> list[str]:
    return [f"{line['event']}: {line.get('error')}" for line in lines if line["log_level"] == "error"]


async def test_an_expired_certificate_is_replaced_as_soon_as_there_is_a_token(machine: Machine) -> None:
    """Contract 4.2, 4.6: expired in an outage: said once, no request, no end of the process; then a token comes, and we go on."""
    lost = Lost(machine)
    async with machine.running(machine.controller()):
        said = await lost.expire()
        [line] = [line for line in said if line.startswith(LOST)]
        assert "bootstrap-token" in line
        with structlog.testing.capture_logs() as lines:
            await asyncio.sleep(1200)
            assert lost.approver.requests == []
            machine.paths.bootstrap_token.write_text(TOKEN)
            await asyncio.sleep(6)
            assert len(lost.approver.requests) == 1
            lost.issue()
            assert await lost.goes_on()
        assert _said([line for line in lines if line.get("controller") == "certificate"]) == []
        assert TOKEN not in str(lines)
        assert machine.expiries[-1] > machine.clock.now()
        assert machine.shutdown.requested is None


async def test_a_token_that_was_there_before_is_used_when_the_server_is_back(machine: Machine) -> None:
    """Contract 4.2, 4.6: nobody answers while the certificate expires: nothing is asked for until the server refuses it, then for one key."""
    lost = Lost(machine)
    machine.paths.bootstrap_token.write_text(TOKEN)
    async with machine.running(machine.controller()):
        assert [line for line in await lost.expire() if line.startswith(LOST)] == []
        await asyncio.sleep(6)
        assert len(lost.approver.requests) == 1
        asked = {call.body for call in lost.api.requests("POST")}
        assert len(asked) == 1
        lost.issue()
        assert await lost.goes_on()


async def test_a_denial_for_the_token_is_said_once_and_another_token_tried_at_once(machine: Machine) -> None:
    """Contract 4.5: the machine has a Node: one line with the approver's words, a request a minute; each has its own key."""
    lost = Lost(machine)
    machine.paths.bootstrap_token.write_text(TOKEN)

    async def deny() -> None:
        while True:
            newest = lost.approver.requests[-1:]
            if newest and not newest[0].get("status"):
                lost.approver.decide("Denied", message=f"{newest[0]['metadata']['name']}: Node exists already")
            await asyncio.sleep(0.5)

    async with machine.running(machine.controller()):
        async with running(deny):
            await lost.expire()
            with structlog.testing.capture_logs() as lines:
                await asyncio.sleep(600)
        [line] = [line for line in _said(lines) if line.startswith(LOST)]
        assert "explanation=this request: Node exists already" in line
        assert 8 <= len(lost.approver.requests) <= 11
        assert len({request["spec"]["request"] for request in lost.approver.requests}) == len(lost.approver.requests)
        before = len(lost.approver.requests)
        machine.paths.bootstrap_token.write_text(OTHER_TOKEN)
        await asyncio.sleep(6)
        assert len(lost.approver.requests) == before + 1
        lost.issue()
        assert await lost.goes_on()


async def test_a_process_that_is_killed_while_it_waits_leaves_its_request_to_the_next(machine: Machine) -> None:
    """Contract 4.3, 9 W28: one request, whichever process asked for it."""
    lost = Lost(machine)
    machine.paths.bootstrap_token.write_text(TOKEN)
    async with machine.running(machine.controller()):
        await lost.expire()
        await asyncio.sleep(10)
    assert len(lost.approver.requests) == 1
    machine.api.heal()
    machine.controller()
    async with asyncio.TaskGroup() as group:
        obtained = group.create_task(machine.credentials.obtain())
        await asyncio.sleep(10)
        lost.issue()
    assert obtained.result().credentials.client_certificate
    assert len(lost.approver.requests) == 1


async def test_a_certificate_that_is_refused_before_its_end_is_replaced(machine: Machine) -> None:
    """A 401 for a certificate that is still valid: asked again once, then replaced with the token; one that is taken again stays."""
    lost = Lost(machine)
    machine.paths.bootstrap_token.write_text(TOKEN)
    async with machine.running(machine.controller()):
        machine.credentials.in_use.answered("401")
        await asyncio.sleep(10)
        assert lost.approver.requests == []
        machine.api.fail(Unauthorized("unknown authority"), path="/version", times=1)
        machine.credentials.in_use.answered("401")
        await asyncio.sleep(61)
        assert len(lost.approver.requests) == 1
        lost.issue()
        assert await lost.goes_on()


async def test_only_the_servers_own_word_is_a_refusal(machine: Machine) -> None:
    """A 401 while an API server starts, and then it is overloaded, or away: the certificate may be good, and nothing else is asked for."""
    lost = Lost(machine)
    machine.paths.bootstrap_token.write_text(TOKEN)
    async with machine.running(machine.controller()):
        for error in (ServerError("overloaded", status=503), Unavailable("connection refused")):
            machine.api.fail(error, path="/version")
            machine.credentials.in_use.answered("401")
            await asyncio.sleep(90)
            machine.api.heal()
            await asyncio.sleep(90)
        assert lost.approver.requests == []


async def test_of_two_servers_one_refuses(machine: Machine) -> None:
    """One takes each new certificate, the other none: no request after the other, and the certificate in use stays for its life."""
    lost = Lost(machine)
    machine.paths.bootstrap_token.write_text(TOKEN)

    async def refuse() -> None:
        while True:
            machine.api.fail(Unauthorized("unknown authority"), path="/version", times=1)
            machine.credentials.in_use.answered("401")
            await asyncio.sleep(5)
            machine.credentials.in_use.answered("200")

    async def sign() -> None:
        while True:
            if lost.approver.requests and not lost.approver.requests[-1].get("status"):
                lost.issue()
            await asyncio.sleep(1)

    async with machine.running(machine.controller()), running(refuse, sign):
        await asyncio.sleep(3600)
    assert len(lost.approver.requests) <= 1


async def test_an_old_file_that_is_brought_back_is_renewed_with_what_is_in_use(machine: Machine) -> None:
    """A restored backup has expired long ago, the certificate in use has not: it asks for the next one, no token is needed."""
    old, key = Authority.create("ca").issue_client("me", [], validity=timedelta(seconds=1))
    credentials = Credentials(client_certificate=old, client_key=key)
    machine.api.refused.add(old)
    async with machine.running(machine.controller()):
        await asyncio.sleep(10)
        bundle = Authority.create("ca").certificate_pem
        await machine.store.save(ClusterAccess(server="https://api", ca_data=bundle, credentials=credentials))
        await machine.requested(within=timedelta(hours=2))
        machine.issue()
        await asyncio.sleep(3)
        [used] = machine.api.switches
        stored = await machine.store.load()
        assert stored is not None
        assert stored.credentials == used.credentials != credentials


async def test_what_somebody_stores_comes_into_use(machine: Machine) -> None:
    """A certificate on the disk that the API server takes is used, also where a switch was cut off after it was written; once."""
    other, key = Authority.create("ca").issue_client("me", [], validity=LIFETIME)
    credentials = Credentials(client_certificate=other, client_key=key)
    async with machine.running(machine.controller()):
        await asyncio.sleep(10)
        bundle = Authority.create("ca").certificate_pem
        await machine.store.save(ClusterAccess(server="https://api", ca_data=bundle, credentials=credentials))
        await asyncio.sleep(7200)
        assert [access.credentials for access in machine.api.switches] == [credentials]


async def test_a_file_that_is_gone_does_not_hold_back_the_token(machine: Machine) -> None:
    """Contract 4.2: cut off, and nobody left a kubeconfig either: the running agent goes on with the bootstrap token."""
    lost = Lost(machine)
    async with machine.running(machine.controller()):
        await lost.expire()
        machine.paths.kubeconfig.unlink()
        machine.paths.bootstrap_token.write_text(TOKEN)
        await asyncio.sleep(20)
        assert len(lost.approver.requests) == 1
        lost.issue()
        assert await lost.goes_on()


async def test_nothing_is_confirmed_before_it_has_worked(machine: Machine) -> None:
    """Contract 4.4: looking at a certificate before the API server has answered does not remove the backup of the one before."""
    backup = machine.paths.kubeconfig.with_name("kubeconfig.bak")
    backup.write_bytes(machine.paths.kubeconfig.read_bytes())
    async with machine.running(machine.controller()):
        await asyncio.sleep(7200)
        assert backup.exists()
        await machine.credentials.confirm()
        assert not backup.exists()


@pytest.mark.parametrize("broken", [False, True])
async def test_what_works_is_confirmed_also_where_it_is_due(machine: Machine, broken: bool) -> None:
    """Contract 4.4, 4.6: nobody signs: what works is kept all the same; a disk that does not take that holds no renewal back."""
    backup = machine.paths.kubeconfig.with_name("kubeconfig.bak")
    backup.mkdir() if broken else backup.write_bytes(machine.paths.kubeconfig.read_bytes())
    machine.clock.advance(LIFETIME.total_seconds() * 0.95)
    controller = machine.controller()
    machine.credentials.works()
    async with machine.running(controller):
        await machine.requested(within=timedelta(minutes=5))
        assert backup.exists() is broken


async def test_what_was_found_out_about_the_kubeconfig_is_told_once_there_is_a_node_to_tell_it_about(
    machine: Machine,
) -> None:
    """Contract 4.2, 9 W2: the certificate is looked at before the Node is known; what that found out is an event as soon as it is."""
    machine.paths.kubeconfig.write_bytes(b"torn")
    machine.api.remove(NODES, "worker-1")
    controller = machine.controller()
    assert await machine.credentials.stored() is not None
    async with machine.running(controller):
        await asyncio.sleep(10)
        assert machine.notes("StateDamaged") == []
        machine.register()
        await machine.credentials.confirm()
        await asyncio.sleep(2)
        assert len(machine.notes("StateDamaged")) == 1
