"""The longest gap between heartbeats stays below 25 s, whatever happens around them."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.commands import run
from tests.lab.machine import Machine
from tests.lab.network import SERVER_ADDRESS, SERVER_NAME, in_netns
from tests.lab.userdata import hand_program, run_bootstrap
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc
from tests.support.worker import Worker, service

LONGEST_GAP_SECONDS = 25
OTHER_ADDRESS = "10.200.0.5"


def longest_gap(worker: Worker, *, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> float:
    """Watch the Lease for so long, and return the longest time between two renewals, or since the last one."""
    renewals: list[datetime] = []
    ends = time.monotonic() + seconds
    meanwhile()

    def look() -> bool:
        lease = worker.lease()
        assert lease is not None
        renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
        if not renewals or renewals[-1] != renewed:
            renewals.append(renewed)
        return time.monotonic() > ends

    wait_for(look, timeout=seconds + 10, what="the end of the time to watch", interval=0.3)
    assert len(renewals) > 2
    renewals.append(datetime.now(UTC))
    return max((later - earlier).total_seconds() for earlier, later in pairwise(renewals))


def test_a_long_step_does_not_hold_up_the_heartbeat(worker: Worker) -> None:
    """Contract 7.1: a unit whose job does not end, and 500 files beside it: the heartbeat does not notice."""
    osc = worker.base.with_unit(
        "slow.service", content=service(command="/usr/bin/sleep 40", kind="oneshot"), enable=True
    )
    for number in range(500):
        osc = osc.with_file(f"/opt/test/many/{number}", f"{number}\n" * 50)
    assert longest_gap(worker, seconds=40, meanwhile=lambda: worker.publish(osc)) < LONGEST_GAP_SECONDS


def test_an_api_server_that_moved_is_found(machine: Machine, lab: Lab, agent: AgentSource) -> None:
    """Contract 7.1: another address behind the same name, the old one silent: found by name, and the watches follow."""
    pool = replace(lab.pool(agent), name="moved", server=f"https://{SERVER_NAME}:6443")
    hand_program(machine, lab, agent=agent, pool=pool)
    worker = Worker(lab, machine, WorkerOsc.for_pool(pool))
    checksum = worker.publish(worker.base)
    run_bootstrap(machine)
    worker.wait_applied(checksum, timeout=90)
    hosts = machine.read("/etc/hosts")
    plane = worker.lab.control_plane.placement.netns
    assert plane is not None
    device = next(
        line.split()[1]
        for line in run(*in_netns(plane), "ip", "-o", "-4", "addr", "show").splitlines()
        if SERVER_ADDRESS in line
    )
    address = [f"{OTHER_ADDRESS}/24", "dev", device]
    run(*in_netns(plane), "ip", "addr", "add", *address)

    def move() -> None:
        machine.write("/etc/hosts", hosts.replace(f"{SERVER_ADDRESS} ".encode(), f"{OTHER_ADDRESS} ".encode()))
        machine.drop_address(SERVER_ADDRESS)

    try:
        pid = machine.main_pid(AGENT_UNIT)
        assert longest_gap(worker, seconds=40, meanwhile=move) < LONGEST_GAP_SECONDS
        checksum = worker.publish(worker.base.with_file("/opt/test/after-the-move", "x"))
        worker.wait_applied(checksum, timeout=20)
        assert machine.main_pid(AGENT_UNIT) == pid
    finally:
        machine.restore_network()
        run(*in_netns(plane), "ip", "addr", "del", *address)


def test_after_an_outage_the_next_heartbeat_comes_within_ten_seconds(worker: Worker) -> None:
    """Contract 7.1: no network at all for 45 s, longer than the Lease lasts; ten seconds after its return it is renewed."""
    worker.machine.cut_network()
    try:
        cut = time.monotonic()
        while time.monotonic() - cut < 45:
            worker.machine.run(["sleep", "5"])
        before = version(worker)  # not after the return: a renewal may be quicker than we are
    finally:
        worker.machine.restore_network()
    wait_for(lambda: version(worker) != before or None, timeout=10, what="a heartbeat after the network's return")


def version(worker: Worker) -> str:
    """Return the Lease's version: what its renewTime says may be from before the request got through."""
    lease = worker.lease()
    assert lease is not None
    return str(lease["metadata"]["resourceVersion"])
