"""Leader election between processes, on a real kube-apiserver."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from agents.core.clock import SystemClock
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.errors import Forbidden
from agents.kube.kubeconfig import Credentials
from agents.kube.models import SECRETS
from agents.kube.objects import Document
from agents.kube.patch import merge
from agents.kube.resource import Resource
from agents.runtime.election import LOCKS, ElectionTimes, LeaderElector, LockDocument
from tests.integration.agents.conftest import NewClient
from tests.lab.controlplane import ControlPlane

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role", namespaced=True, model=Document)
ROLE_BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding", namespaced=True, model=Document)

ROOT = Path(__file__).parents[4]
LEASE, RENEW, RETRY = 3.0, 2.0, 0.5
PATIENCE_SECONDS = 30.0


@dataclass(slots=True)
class Replica:
    """A process, and the moments that it told."""

    process: "subprocess.Popen[str]"
    lines: list[tuple[float, str]] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        """Collect lines until the process ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            moment, what = line.split()
            with self.came:
                self.lines.append((float(moment), what))
                self.came.notify_all()

    def wait_for(self, what: str) -> float:
        """Return when something happened for the first time."""
        with self.came:
            assert self.came.wait_for(lambda: self.when(what) is not None, PATIENCE_SECONDS), (what, self.lines)
        moment = self.when(what)
        assert moment is not None
        return moment

    def when(self, what: str) -> float | None:
        """Return when something happened, None if it has not."""
        return next((moment for moment, line in self.lines if line == what), None)

    def end(self, number: signal.Signals) -> tuple[float, int]:
        """Send a signal and wait for the end; return when it was sent, and the exit code."""
        moment = time.monotonic()
        self.process.send_signal(number)
        return moment, self.process.wait(timeout=PATIENCE_SECONDS)


class Election:
    """Starts replicas that compete for one Lease."""

    def __init__(self, stack: ExitStack, kubeconfig: Path, name: str) -> None:
        self._stack = stack
        self._kubeconfig = kubeconfig
        self._name = name
        self.replicas: list[Replica] = []

    def start(
        self, hostname: str, pod_uid: str = "", *, times: tuple[float, float, float] = (LEASE, RENEW, RETRY)
    ) -> Replica:
        """Start a replica."""
        arguments = [str(self._kubeconfig), self._name, hostname, pod_uid, *(str(value) for value in times)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.replica", *arguments],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        replica = Replica(process)
        listener = threading.Thread(target=replica.listen)
        listener.start()
        self._stack.callback(process.stdout.close)  # type: ignore[union-attr]
        self._stack.callback(listener.join)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.replicas.append(replica)
        replica.wait_for("starts")
        return replica

    def reigns(self, killed: dict[int, float]) -> list[tuple[float, float]]:
        """Return from when until when each replica led, in order; a killed one until then."""
        found = []
        for index, replica in enumerate(self.replicas):
            if (began := replica.when("leads")) is not None:
                ended = replica.when("stopped") or killed.get(index) or float("inf")
                found.append((began, ended))
        return sorted(found)


@pytest.fixture
def election(integration_control_plane: ControlPlane, tmp_path: Path, name: str) -> Iterator[Election]:
    """An election that nobody takes part in yet."""
    with ExitStack() as stack:
        yield Election(stack, Path(integration_control_plane.kubeconfig(tmp_path / "admin")), name)


async def read(client: Client, name: str) -> LockDocument:
    """Return the Lease."""
    return await client.get(LOCKS, name, namespace="default")


async def test_hand_over_when_the_leader_is_asked_to_stop(election: Election, client: Client, name: str) -> None:
    """Contract core 1.3: after SIGTERM the follower leads before the Lease expires, by a watch, and never while the other does."""
    first = election.start("one")
    first.wait_for("leads")
    second = election.start("two")
    time.sleep(LEASE + 1)
    assert second.when("leads") is None
    moment, code = first.end(signal.SIGTERM)
    assert code == 0
    began = second.wait_for("leads")
    assert first.wait_for("stopped") <= began < moment + LEASE - RETRY
    found = await read(client, name)
    assert (found.spec.holder_identity or "").startswith("two_")
    assert found.spec.lease_transitions == 1
    second.end(signal.SIGTERM)
    found = await read(client, name)
    assert (found.spec.holder_identity, found.spec.lease_duration_seconds) == ("", 1)


def test_take_over_after_a_kill_needs_the_lease_to_expire(election: Election) -> None:
    """Contract core 1.3: after SIGKILL a follower leads when the Lease has been seen unchanged for its duration, not earlier."""
    first = election.start("one")
    first.wait_for("leads")
    second = election.start("two")
    time.sleep(2)
    moment, _ = first.end(signal.SIGKILL)
    began = second.wait_for("leads")
    assert moment + LEASE - RETRY - 0.2 < began < moment + LEASE + 1


def test_restart_in_the_same_pod_leads_at_once(election: Election) -> None:
    """Contract core 1.3 (ours): killed and started again with the same POD_UID, it leads at once, long before the expiry."""
    slow = (30.0, 20.0, 2.0)
    first = election.start("pod", "uid-1", times=slow)
    first.wait_for("leads")
    other = election.start("other", times=slow)
    first.end(signal.SIGKILL)
    again = election.start("pod", "uid-1", times=slow)
    assert again.wait_for("leads") < again.wait_for("starts") + 5
    assert other.when("leads") is None


def test_restart_in_another_pod_waits(election: Election) -> None:
    """Contract core 1.3 (ours): the same host name with another POD_UID is somebody else."""
    first = election.start("pod", "uid-1")
    first.wait_for("leads")
    moment, _ = first.end(signal.SIGKILL)
    again = election.start("pod", "uid-2")
    assert again.wait_for("leads") > moment + LEASE - RETRY - 0.2


def test_leader_that_was_frozen_gives_up(election: Election) -> None:
    """Contract core 1.3: a leader that stood still while another took over ends with 1 as soon as it runs again."""
    first = election.start("one")
    first.wait_for("leads")
    second = election.start("two")
    time.sleep(1)
    first.process.send_signal(signal.SIGSTOP)
    second.wait_for("leads")
    thawed, code = first.end(signal.SIGCONT)
    assert code == 1
    assert first.wait_for("stopped") < thawed + 1
    time.sleep(LEASE)
    assert second.when("stopped") is None


def test_never_two_leaders(election: Election) -> None:
    """Contract core 1.3: over kills, stops and starts of three replicas, no two lead at the same time, and always one does."""
    killed: dict[int, float] = {}
    for number in range(3):
        election.start(f"host-{number}")
    for turn in range(6):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (leading := [r for r in election.replicas if r.when("leads") and r.process.poll() is None]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [leader] = leading
        time.sleep(0.7)
        number = signal.SIGKILL if turn % 2 else signal.SIGTERM
        moment, _ = leader.end(number)
        if number is signal.SIGKILL:
            killed[election.replicas.index(leader)] = moment
        election.start(f"host-{3 + turn}")
    reigns = election.reigns(killed)
    assert len(reigns) >= 6
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(reigns))


def test_outage_ends_the_leader_and_not_the_follower(
    election: Election, integration_control_plane: ControlPlane
) -> None:
    """Contract core 1.3: with the API server away the leader ends with 1 in time; a follower stays, and leads when it is back."""
    first = election.start("one")
    first.wait_for("leads")
    second = election.start("two")
    time.sleep(1)
    integration_control_plane.stop_apiserver()
    try:
        stopped = time.monotonic()
        assert first.process.wait(timeout=PATIENCE_SECONDS) == 1
        assert first.wait_for("stopped") < stopped + RENEW + 0.5
        time.sleep(LEASE)
        assert second.process.poll() is None
        assert second.when("leads") is None
    finally:
        integration_control_plane.start_apiserver()
    assert second.wait_for("leads") < time.monotonic() + PATIENCE_SECONDS


async def test_what_the_seed_role_permits_is_enough(client: Client, new_client: NewClient, name: str) -> None:
    """Contract core 1.3, 12.2: create, get, list and watch of Leases, update of one by name, and no patch."""
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "list", "watch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["update"]},
    ]
    token_id = name[-6:]
    user = {"token-id": token_id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
    secret = {"metadata": {"name": f"bootstrap-token-{token_id}"}, "type": "bootstrap.kubernetes.io/token"}
    await client.create(SECRETS, {**secret, "stringData": user}, namespace="kube-system")
    await client.create(ROLES, {"metadata": {"name": name}, "rules": rules}, namespace="default")
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": f"system:bootstrap:{token_id}"}],
    }
    await client.create(ROLE_BINDINGS, binding, namespace="default")
    limited = new_client(credentials=Credentials(token=f"{token_id}.0123456789abcdef"))
    led: list[str] = []

    async def lead(identity: str) -> None:
        elector = LeaderElector(
            client=limited,
            namespace="default",
            name=name,
            identity=identity,
            shutdown=Shutdown(),
            clock=SystemClock(),
            rng=Random(1),
            times=ElectionTimes(*(timedelta(seconds=value) for value in (LEASE, RENEW, RETRY))),
        )
        async with elector.leading():
            led.append(identity)
            await asyncio.sleep(2 * RETRY)

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(lead("a"))
        group.create_task(lead("b"))
    assert sorted(led) == ["a", "b"]
    with pytest.raises(Forbidden):
        await limited.patch(LOCKS, name, merge({"metadata": {"labels": {"a": "b"}}}), namespace="default")
