"""Three machines of one pool that go on one after the other; also when the holder vanishes."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.userdata import hand_program, run_bootstrap
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc, WorkerPool
from tests.support.worker import STATUS_FILE, Worker, service

SERIAL = "reconciliation.osc.node-agent.gardener.cloud/serial"
GATE, LEFTOVER = "/opt/test/go", "/opt/test/leftover"
SLOW = service(command=f'/bin/sh -c "until [ -e {GATE} ]; do sleep 0.1; done"', kind="oneshot")


@pytest.fixture(scope="module")
def pool(lab: Lab, agent: AgentSource) -> Iterator[list[Worker]]:
    """Three machines of one serial pool."""
    pool = replace(lab.pool(agent), name="serial")
    base = WorkerOsc.for_pool(pool)
    with ExitStack() as stack:
        workers = []
        for number in range(3):
            machine = stack.enter_context(lab.removed_after(lab.add_machine(f"serial-{number}")))
            hand_program(machine, lab, agent=agent, pool=pool)
            workers.append(Worker(lab, machine, base))
        checksum = publish(lab, pool, base)
        for worker in workers:
            run_bootstrap(worker.machine)
        for worker in workers:
            worker.wait_applied(checksum, timeout=120)
        yield workers


def publish(lab: Lab, pool: WorkerPool, osc: WorkerOsc) -> str:
    """Publish an OSC for one machine after the other."""
    checksum = lab.publish_osc(osc)
    path = f"/api/v1/namespaces/kube-system/secrets/{pool.secret_name}"
    lab.api.patch(path, {"metadata": {"annotations": {SERIAL: "true"}}})
    return checksum


def lock_path(worker: Worker) -> str:
    """Return where the API server has the lock."""
    return f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{worker.base.pool.secret_name}"


def holder(worker: Worker) -> str | None:
    """Return who holds the lock."""
    lease = worker.lab.api.find(lock_path(worker))
    return None if lease is None else lease["spec"].get("holderIdentity")


def wait_holder(pool: list[Worker], *, but: tuple[str, ...] = ()) -> Worker:
    """Wait until one of the machines holds the lock and is at work; returns it."""

    def look() -> Worker | None:
        name = holder(pool[0])
        return next((worker for worker in pool if worker.machine.name == name and name not in but), None)

    found = wait_for(look, timeout=60, what="a holder of the lock")
    wait_for(
        lambda: found.machine.unit("slow.service").get("ActiveState") == "activating" or None,
        timeout=60,
        what="the holder at work",
    )
    return found


def slow(pool: list[Worker], content: str) -> WorkerOsc:
    """Return an OSC with a unit that keeps its machine busy until a file is there."""
    for worker in pool:
        worker.machine.path(GATE).unlink(missing_ok=True)
    return pool[0].base.with_unit("slow.service", content=SLOW, enable=True).with_file("/opt/test/version", content)


def trace(pool: list[Worker]) -> str:
    """Return what the agents said of the lock and of the OSC, in the order of time."""
    lines = [
        (json.loads(line), worker.machine.name)
        for worker in pool
        for line in worker.machine.journal(AGENT_UNIT).splitlines()
        if line.startswith("{")
    ]
    told = sorted((line.get("ts", ""), name, line.get("msg", "")) for line, name in lines)
    return "two machines at a time:\n" + "\n".join(" ".join(entry) for entry in told[-80:])


def begun(pool: list[Worker], version: str) -> list[str]:
    """Return the machines that have begun with a version of the OSC."""
    path = "/opt/test/version"
    return [
        worker.machine.name
        for worker in pool
        if worker.machine.exists(path) and worker.machine.read(path) == version.encode()
    ]


def looks(worker: Worker) -> int:
    """Return how often a machine's agent has asked who holds the lock."""
    return sum(
        (request.machine, request.verb, request.resource, request.name)
        == (worker.machine.name, "get", "leases", worker.base.pool.secret_name)
        for request in worker.lab.requests()
    )


def wait_looks(pool: list[Worker], number: int) -> None:
    """Wait until each machine has asked so many times more who holds the lock."""
    before = [looks(worker) for worker in pool]
    wait_for(
        lambda: all(looks(worker) >= seen + number for worker, seen in zip(pool, before, strict=True)),
        timeout=60,
        what="machines that ask for the lock",
        interval=0.2,
    )


def finish(worker: Worker) -> None:
    """Let a machine's unit end."""
    worker.machine.write(GATE, b"")


def test_machines_go_on_strictly_one_after_the_other(pool: list[Worker]) -> None:
    """Contract 6.11, Appendix C (serial): three hosts, one Lease: while one is at work no other has begun; free at the end."""
    osc = slow(pool, "1")
    checksum = publish(pool[0].lab, pool[0].base.pool, osc)
    done: list[str] = []
    for _ in pool:
        current = wait_holder(pool, but=tuple(done))
        for other in pool:
            if other is not current and other.machine.name not in done:
                assert not other.machine.exists("/opt/test/version"), trace(pool)
        finish(current)
        current.wait_applied(checksum)
        done.append(current.machine.name)
    wait_for(lambda: holder(pool[0]) is None or None, timeout=10, what="the lock to be free")
    assert sorted(done) == ["serial-0", "serial-1", "serial-2"]


def test_w18_a_holder_that_is_killed_goes_on_with_its_lock(pool: list[Worker]) -> None:
    """Contract 9 W18: the agent that is started again has the same host name: it goes on, nobody else begins before it ends."""
    osc = slow(pool, "2")
    checksum = publish(
        pool[0].lab, pool[0].base.pool, osc.with_unit("slow.service", content=SLOW + "# 2\n", enable=True)
    )
    current = wait_holder(pool)
    others = [worker for worker in pool if worker is not current]
    current.machine.kill(current.machine.main_pid(AGENT_UNIT))
    # systemd would have it back before the others have looked twice.
    current.machine.systemctl("stop", AGENT_UNIT)
    wait_looks(others, 2)
    assert begun(others, "2") == [], trace(pool)
    current.start_agent()
    wait_looks(pool, 2)
    assert begun(pool, "2") == [current.machine.name], trace(pool)
    assert holder(current) == current.machine.name
    finish(current)
    current.wait_applied(checksum, timeout=60)
    for worker in others:
        finish(worker)
    for worker in others:
        worker.wait_applied(checksum, timeout=60)
    wait_for(lambda: holder(pool[0]) is None or None, timeout=10, what="the lock to be free")


def test_w18_a_holder_that_disappears_is_replaced_when_its_lease_is_over(pool: list[Worker]) -> None:
    """Contract 6.11: a machine that lost its network holds nobody up for longer than its lease, and goes no step further itself."""
    osc = slow(pool, "3").with_unit("slow.service", content=SLOW + "# 3\n", enable=True)
    checksum = publish(pool[0].lab, pool[0].base.pool, osc)
    lost = wait_holder(pool)
    lost.machine.cut_network()
    try:
        expire(lost)
        current = wait_holder(pool, but=(lost.machine.name,))
    finally:
        lost.machine.restore_network()
    wait_taken(lost)
    finish(lost)
    wait_for(
        lambda: lost.machine.unit("slow.service")["ActiveState"] == "inactive", timeout=10, what="the end of its unit"
    )
    wait_looks([lost], 3)
    assert holder(lost) == current.machine.name
    assert lost.last_applied()["spec"]["files"] != osc.document()["spec"]["files"], trace(pool)
    assert lost.applied() != checksum
    for worker in pool:
        finish(worker)
    for worker in pool:
        worker.wait_applied(checksum, timeout=120)
    wait_for(lambda: holder(pool[0]) is None or None, timeout=30, what="the lock to be free")


def test_w18_a_holder_that_is_gone_for_good_holds_nobody_up_for_longer_than_its_lease(pool: list[Worker]) -> None:
    """Contract 6.11: power cut and Node deleted: nobody goes on before the last of the 600 s, then one after the other, free at the end.

    Of the 600 s, all but the last eight are taken off by dating back when the Lease was renewed. The machine is started again
    only after the others are done, for the tests that follow.
    """
    osc = slow(pool, "4").with_unit("slow.service", content=SLOW + "# 4\n", enable=True)
    checksum = publish(pool[0].lab, pool[0].base.pool, osc)
    gone = wait_holder(pool)
    others = [worker for worker in pool if worker is not gone]
    assert gone.lab.api.get(lock_path(gone))["spec"]["leaseDurationSeconds"] == 600
    lose_power(gone)
    gone.lab.delete_node(gone.machine.name)
    wait_looks(others, 1)
    over = expire_in(gone, timedelta(seconds=8))
    assert begun(others, "4") == [], trace(others)
    first = wait_holder(others)
    lease = gone.lab.api.get(lock_path(gone))["spec"]
    assert datetime.fromisoformat(lease["acquireTime"]) >= over
    assert begun(others, "4") == [first.machine.name], trace(others)
    one_after_the_other(others, "4", checksum)
    wait_for(lambda: holder(others[0]) is None or None, timeout=10, what="the lock to be free")
    gone.machine.boot()
    gone.wait_applied(checksum, timeout=120)
    wait_for(lambda: holder(gone) is None or None, timeout=10, what="the lock to be free")


def test_w18_a_holder_that_comes_back_after_its_lease_waits_for_its_turn(pool: list[Worker]) -> None:
    """Contract 6.11: power cut in the middle of an apply; back while another machine is at work: not a step further before that one is done.

    Its time is taken from the Lease by dating back when it was renewed.
    """
    unit = {"content": SLOW + "# 5\n", "enable": True, "filePaths": [LEFTOVER]}
    before = slow(pool, "5").with_file(LEFTOVER, "x").with_unit("slow.service", **unit)
    checksum = publish(pool[0].lab, pool[0].base.pool, before)
    for worker in pool:
        finish(worker)
    for worker in pool:
        worker.wait_applied(checksum, timeout=120)
    osc = slow(pool, "6").with_unit("slow.service", content=SLOW + "# 6\n", enable=True)
    checksum = publish(pool[0].lab, pool[0].base.pool, osc)
    lost = wait_holder(pool)
    others = [worker for worker in pool if worker is not lost]
    lose_power(lost)
    expire(lost)
    current = wait_holder(others)
    lost.machine.boot()
    wait_phase(lost, "waitingForTurn")
    wait_looks([lost], 3)
    assert holder(lost) == current.machine.name
    assert lost.machine.exists(LEFTOVER), "it removed what the new OSC no longer has"
    assert lost.last_applied()["spec"]["files"] == before.document()["spec"]["files"], trace(pool)
    finish(current)
    current.wait_applied(checksum, timeout=60)
    for worker in pool:
        finish(worker)
    for worker in pool:
        worker.wait_applied(checksum, timeout=120)
    assert not lost.machine.exists(LEFTOVER)
    wait_for(lambda: holder(pool[0]) is None or None, timeout=30, what="the lock to be free")


def wait_phase(worker: Worker, phase: str) -> None:
    """Wait until the agent of a machine that was started a moment ago says what it is doing."""
    wait_for(
        lambda: (worker.machine.exists(STATUS_FILE) and worker.status()["phase"] == phase) or None,
        timeout=60,
        what=f"phase {phase}",
    )


def wait_taken(worker: Worker) -> None:
    """Wait until a machine knows that somebody else has its lock: it renews once a minute."""
    wait_for(
        lambda: "Lock for serial reconciliation was taken by somebody else" in worker.machine.journal(AGENT_UNIT),
        timeout=90,
        what="the lock to be missed",
        interval=0.5,
    )


def expire(worker: Worker) -> None:
    """Let ten minutes go by, as far as the lock is concerned."""
    spec: dict[str, Any] = {"renewTime": "2026-01-01T00:00:00.000000Z"}
    worker.lab.api.patch(lock_path(worker), {"spec": spec})


def expire_in(worker: Worker, left: timedelta) -> datetime:
    """Let most of the lock's time go by; returns when the rest of it is over."""
    lease = worker.lab.api.get(lock_path(worker))["spec"]
    duration = timedelta(seconds=lease["leaseDurationSeconds"])
    renewed = datetime.now(UTC) - duration + left
    spec = {"renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    worker.lab.api.patch(lock_path(worker), {"spec": spec})
    return renewed + duration


def lose_power(worker: Worker) -> None:
    """Cut the power of a machine at work. Its boot starts the unit that keeps it busy, which then ends at once."""
    worker.machine.kill_power()
    (worker.machine.base / "upper" / GATE.lstrip("/")).write_bytes(b"")


def one_after_the_other(pool: list[Worker], version: str, checksum: str) -> None:
    """See machines go on one at a time; whoever is still to come has begun nothing."""
    waiting = list(pool)
    while waiting:
        current = wait_holder(waiting)
        waiting.remove(current)
        assert begun(waiting, version) == [], trace(pool)
        finish(current)
        current.wait_applied(checksum, timeout=60)
