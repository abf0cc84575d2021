"""The API server is away for minutes: the node goes on, and afterwards everything is as if nothing had been.

The agent's certificate becomes due for renewal meanwhile; in another case it expires, and a bootstrap token is brought afterwards. The
full run also lets the API server come back at another address behind the same name.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.chaos.campaign import Case
from tests.chaos.interruption import agent_pid, wait_ready
from tests.chaos.sweep import two_sides
from tests.chaos.twin import EMPTY, World
from tests.lab.api import wait_for
from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.network import SERVER_ADDRESS, in_netns
from tests.lab.userdata import TOKEN_FILE
from tests.lab.worker_osc import AGENT_UNIT, KUBELET_UNIT
from tests.support.short_certificate import expiry, give_certificate
from tests.support.worker import Worker

HEARTBEAT_SECONDS = 10.0
"""From the API server's return to a renewal."""
OTHER_ADDRESS = "10.200.0.5"
LIFETIME = timedelta(seconds=1050)
LEFT_AFTERWARDS = timedelta(seconds=150)
"""How long the certificate lasts after an outage; renewal is due after 80 to 88 % of its life, so 126 to 210 s before its end."""
EXPIRING_SECONDS = 45.0
EXPIRES_BEFORE = timedelta(seconds=15)
"""How long before the end of its outage a certificate expires."""
RENEWAL_SECONDS = 120
"""kube-controller-manager, which signs, has to find the API server again first."""


class Outages:
    """One outage, or the two of the full run."""

    name = "outages"

    def __init__(self, world: World, *, seed: int, seconds: float, moves: bool, scratch: Path) -> None:
        self._world = world
        self._seed = seed
        self._seconds = seconds
        self._moves = moves
        self._worker: Worker | None = None
        self.notes = ""

    def cases(self) -> Iterator[Case]:
        """Yield them."""
        yield Case(self.name, self._seed, {"seconds": self._seconds, "moves": False})
        yield Case(self.name, self._seed, {"seconds": EXPIRING_SECONDS, "moves": False, "expires": True})
        if self._moves:
            yield Case(self.name, self._seed, {"seconds": self._seconds / 10, "moves": True})

    def run(self, case: Case) -> list[str]:
        """Take the API server away and bring it back, with an empty watch cache."""
        if self._worker is None:
            self._worker = self._world.worker()
        worker, plane = self._worker, self._world.lab.control_plane
        before, wanted = two_sides(1)
        worker.apply(self._world.osc(worker, before), timeout=60)
        lost = case.values.get("expires", False)
        self._give_ageing_certificate(worker, case.values["seconds"], expires=lost)
        expires = expiry(worker)
        units = [worker.machine.unit(name)["InvocationID"] for name in (KUBELET_UNIT, "chaos-1.service")]
        pid, restarts = agent_pid(worker), _restarts(worker)
        # In the middle of an apply, so that something is left to do.
        checksum = worker.publish(self._world.osc(worker, wanted))
        plane.kill_apiserver()
        killed = datetime.now(UTC)
        time.sleep(case.values["seconds"])
        problems = self._during(worker, units)
        # Once, because its own configuration changed, if it had read that.
        if (more := _restarts(worker) - restarts) > 1 and agent_pid(worker) != pid:
            problems.append(f"the agent was restarted {more} times")
        with self._moved(worker) if case.values["moves"] else nullcontext():
            plane.start_apiserver()
            back = time.monotonic()
            if lost and not self._start_over(worker, expires):
                problems.append("the certificate that expired meanwhile was not replaced with the bootstrap token")
            problems += self._afterwards(worker, checksum, killed)
            what = "another certificate and heartbeat" if lost else "heartbeat"
            self.notes += f"{case.values['seconds']:.0f} s: {what} {self._beat - back:.1f} s after the return; "
            if not lost and not _renews(worker, expires):
                problems.append("the certificate that became due meanwhile was not renewed")
        worker.apply(self._world.osc(worker, EMPTY), timeout=60)
        return problems

    def _give_ageing_certificate(self, worker: Worker, seconds: float, *, expires: bool) -> None:
        """Give the agent a certificate that is due for renewal before an outage ends, and expires soon after it, or before."""
        outage = timedelta(seconds=seconds)
        if expires:
            give_certificate(worker, left=outage - EXPIRES_BEFORE, lifetime=outage - EXPIRES_BEFORE)
        else:
            give_certificate(worker, left=outage + LEFT_AFTERWARDS, lifetime=LIFETIME)
        wait_ready(worker)

    def _during(self, worker: Worker, units: list[str]) -> list[str]:
        problems = []
        now = [worker.machine.unit(name)["InvocationID"] for name in (KUBELET_UNIT, "chaos-1.service")]
        running = [worker.machine.unit(name)["ActiveState"] for name in (KUBELET_UNIT, AGENT_UNIT)]
        if now[0] != units[0]:
            problems.append("kubelet was restarted during the outage")
        if running != ["active", "active"]:
            problems.append(f"kubelet and agent are {running}")
        return problems

    def _start_over(self, worker: Worker, expires: datetime) -> bool:
        """Do what an operator has to do for a node whose agent is cut off; returns whether that was enough."""
        self._world.lab.delete_node(worker.machine.name)
        worker.machine.write(TOKEN_FILE, self._world.lab.create_bootstrap_token().encode(), 0o640)
        if not _renews(worker, expires):
            return False
        worker.machine.systemctl("restart", KUBELET_UNIT)
        wait_for(worker.node, timeout=60, what="the Node to be registered again")
        return True

    def _afterwards(self, worker: Worker, checksum: str, killed: datetime) -> list[str]:
        # A renewal of after the outage's begin came through after its end, perhaps before anybody else saw the server.
        try:
            wait_for(lambda: _renewed(worker) > killed, timeout=HEARTBEAT_SECONDS, what="heartbeat", interval=0.05)
        except Exception as error:  # noqa: BLE001 - told with what else is wrong
            return [f"{error}\n{worker.machine.journal(AGENT_UNIT, lines=30)}"]
        finally:
            self._beat = time.monotonic()
        worker.wait_applied(checksum, timeout=120)
        return []

    @contextmanager
    def _moved(self, worker: Worker) -> Iterator[None]:
        """Give the API server another address behind its name, and have the old one silent, for the length of a block."""
        netns, machine = in_netns(self._world.lab.network.netns), worker.machine
        shown = run(*netns, "ip", "-o", "-4", "addr", "show").splitlines()
        device = next(line.split()[1] for line in shown if f"{SERVER_ADDRESS}/" in line)
        address = [f"{OTHER_ADDRESS}/24", "dev", device]
        hosts = machine.read("/etc/hosts")
        run(*netns, "ip", "addr", "add", *address)
        machine.write("/etc/hosts", hosts.replace(f"{SERVER_ADDRESS} ".encode(), f"{OTHER_ADDRESS} ".encode()))
        machine.drop_address(SERVER_ADDRESS)
        try:
            yield
        finally:
            machine.write("/etc/hosts", hosts)
            machine.restore_network()
            run(*netns, "ip", "addr", "del", *address)

    def recover(self) -> None:
        """Remove the machine; the next case gets another."""
        self.close()

    def close(self) -> None:
        """Remove the machine."""
        if self._worker is not None:
            self._world.remove(self._worker.machine)
            self._worker = None


def _renews(worker: Worker, before: datetime) -> bool:
    """Wait for another certificate on the disk."""
    try:
        wait_for(lambda: expiry(worker) != before, timeout=RENEWAL_SECONDS, what="another certificate")
    except LabError:
        return False
    return True


def _renewed(worker: Worker) -> datetime:
    lease = worker.lease()
    if lease is None:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def _restarts(worker: Worker) -> int:
    return int(worker.machine.unit(AGENT_UNIT)["NRestarts"])
