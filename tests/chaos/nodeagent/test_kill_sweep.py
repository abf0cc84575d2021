"""Kill the agent at every file rename, removal and message that an apply makes; each next start must converge.

The kill comes from outside: strace injects SIGKILL into the N-th call of a kind. The OSC touches files, drop-ins, units,
removals and the agent's own configuration, so that an own restart is part of each apply. Instead of waiting for
`RestartSec` the sweep starts the unit itself.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc
from tests.support.worker import Worker, service

MOST_SECONDS = 200.0
FEWEST_KILLS = 20
# Renames are files, unit files, drop-ins and journal steps; unlinks are removals; sends are D-Bus calls and API requests.
CALLS = {"rename": "rename,renameat,renameat2", "unlink": "unlink,unlinkat", "send": "sendto,sendmsg", "fsync": "fsync"}


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


def agent_pid(worker: Worker) -> int:
    """Return the interpreter's process: the one-file build has a parent that only waits."""
    main = worker.machine.main_pid(AGENT_UNIT)
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    return int(children[0]) if children else main


def agent_is_ready(worker: Worker) -> bool:
    """Tell whether the agent runs and has its informers."""
    done = worker.machine.run(["curl", "-sf", "http://127.0.0.1:2751/readyz"], check=False)
    return done.returncode == 0


def wait_ended(pid: int) -> None:
    """Wait until a process is gone, or a zombie."""
    command_line = Path(f"/proc/{pid}/cmdline")
    wait_for(lambda: not command_line.exists() or not command_line.read_bytes(), timeout=20, what="end of the process")


def is_traced(pid: int, tracer: int) -> bool:
    """Tell whether strace has attached; a heartbeat may have met its end there already."""
    try:
        return f"TracerPid:\t{tracer}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@contextmanager
def killed_at(pid: int, calls: str, number: int, log: Path) -> Iterator[None]:
    """Send SIGKILL to a process at the N-th of some calls of any of its threads."""
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(log),
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:signal=KILL:when={number}",
        "-p",
        str(pid),
    ]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_traced(pid, tracer.pid), timeout=10, what="strace")
        yield
    finally:
        # A tracer that dies lets its tracees go; asked politely it may wait for one of them.
        tracer.kill()
        tracer.wait()


def converge(worker: Worker, checksum: str) -> None:
    """Start the agent whenever it is down, until the OSC is applied."""

    def look() -> bool:
        if worker.machine.systemctl("is-active", AGENT_UNIT, check=False) != "active":
            # A mere start would wait for RestartSec.
            worker.machine.systemctl("restart", AGENT_UNIT, check=False)
        return worker.applied() == checksum

    try:
        wait_for(look, timeout=40, what="convergence", interval=0.05)
    except Exception as error:
        raise AssertionError(f"{error}\n{worker.machine.journal(AGENT_UNIT, lines=60)}") from error


@pytest.fixture(scope="module")
def worker(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A worker whose agent may be started as often as it takes."""
    with lab.removed_after(lab.add_machine("sweep")) as machine:
        joined = Worker.join(lab, machine, agent)
        machine.write(f"/run/systemd/system/{AGENT_UNIT}.d/sweep.conf", b"[Unit]\nStartLimitIntervalSec=0\n")
        machine.systemctl("daemon-reload")
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
            if kill_once(worker, osc, calls, occurrence, tmp_path / f"{number}.strace"):
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


def kill_once(worker: Worker, osc: WorkerOsc, calls: str, occurrence: int, log: Path) -> bool:
    """Publish an OSC, kill the agent at a call, and let it converge; False if it never came to that call."""
    wait_for(lambda: agent_is_ready(worker) or None, timeout=20, what="agent")
    pid = agent_pid(worker)
    with killed_at(pid, calls, occurrence, log):
        checksum = worker.publish(osc)
        wait_ended(pid)
    converge(worker, checksum)
    return "killed by SIGKILL" in log.read_text()


def worker_applied(worker: Worker, osc: WorkerOsc) -> None:
    """Apply an OSC that restarts the agent."""
    converge(worker, worker.publish(osc))
