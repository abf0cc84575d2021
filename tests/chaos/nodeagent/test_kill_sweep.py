"""Kill the agent at every file rename, removal and message that an apply makes; each next start must converge.

The kill comes from outside: a tracer sends SIGKILL before the N-th call of a kind. The OSC touches files, drop-ins, units,
removals and the agent's own configuration, so that an own restart is part of each apply. Instead of waiting for
`RestartSec` the sweep starts the unit itself.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.chaos.interruption import (
    agent_pid,
    converge,
    injected,
    restart_without_limit,
    wait_ended,
    wait_ready,
    was_reached,
)
from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc
from tests.support.worker import Worker, service

MOST_SECONDS = 200.0
FEWEST_KILLS = 20
# Renames are files, unit files, drop-ins and journal steps; unlinks are removals; sends are D-Bus calls and API requests.
CALLS = {
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
    "send": ("sendto", "sendmsg"),
    "fsync": ("fsync",),
}


def variant(base: WorkerOsc, number: int) -> WorkerOsc:
    """Return an OSC that differs from the one before in every kind of item."""
    side = "even" if number % 2 == 0 else "odd"
    config = base.files[base.pool.agent_config_path]["content"]["inline"]["data"]
    osc = base.with_file(base.pool.agent_config_path, f"{config}# {number}\n", mode=0o600)
    for index in range(3):
        osc = osc.with_file(f"/opt/test/sweep/{index}", f"{number}", mode=0o640)
    osc = osc.with_file(f"/opt/test/sweep/only-{side}", side)
    osc = osc.with_unit(
        "sweep-a.service",
        content=service(str(number)),
        dropIns=[{"name": f"{side}.conf", "content": f"[Unit]\n# {number}\n"}],
    )
    osc = osc.with_unit("sweep-b.service", content=service("b"), filePaths=["/opt/test/sweep/0"])
    return osc.with_unit(
        f"sweep-{side}.service", content=service(side), dropIns=[{"name": "d.conf", "content": "[Unit]\n"}]
    )


@pytest.fixture(scope="module")
def worker(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A worker whose agent may be started as often as it takes."""
    with lab.removed_after(lab.add_machine("sweep")) as machine:
        joined = Worker.join(lab, machine, agent)
        restart_without_limit(joined)
        yield joined


def test_a_kill_at_any_step_converges(worker: Worker, tmp_path: Path) -> None:
    """Contract 6.4, 6.5, 9 W1, W2, W3, W10: after SIGKILL at any rename, removal, fsync or message the next start converges.

    The machine then is exactly as the OSC says: files with modes, units running, what left is gone, no temporary file.
    """
    end = time.monotonic() + MOST_SECONDS
    number, kills = 1, dict.fromkeys(CALLS, 0)
    before = variant(worker.base, number)
    worker_applied(worker, before)
    # All kinds in turn, so that a slow machine, which stops early, has seen some of each.
    left = dict(CALLS)
    for occurrence in count(1):
        for kind, calls in tuple(left.items()):
            if time.monotonic() > end:
                left.clear()
                break
            number += 1
            osc = variant(worker.base, number)
            if kill_once(worker, osc, calls, occurrence, tmp_path / f"{number}.log"):
                kills[kind] += 1
            else:
                del left[kind]
            problems = worker.differences(osc) + worker.absent(before, osc)
            assert problems == [], (
                f"{calls} number {occurrence}: {problems}\n{worker.machine.journal(AGENT_UNIT, lines=60)}"
            )
            before = osc
        if not left:
            break
    print(f"kills: {kills}")
    assert all(kills.values()), kills
    assert sum(kills.values()) >= FEWEST_KILLS, kills


def kill_once(worker: Worker, osc: WorkerOsc, calls: Sequence[str], occurrence: int, log: Path) -> bool:
    """Publish an OSC, kill the agent at a call, and let it converge; False if it never came to that call."""
    wait_ready(worker)
    pid = agent_pid(worker)
    with injected(pid, calls, log, when=occurrence):
        checksum = worker.publish(osc)
        wait_ended(pid)
    converge(worker, checksum)
    return was_reached(log)


def worker_applied(worker: Worker, osc: WorkerOsc) -> None:
    """Apply an OSC that restarts the agent."""
    converge(worker, worker.publish(osc))
