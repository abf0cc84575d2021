"""Ending the agent from outside: at a system call that is counted, or at a moment; and getting it going again."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab.api import wait_for
from tests.lab.errors import LabError
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import Worker

_TRACER = Path(__file__).with_name("tracer.py")
CONVERGENCE_SECONDS = 120
END_SECONDS = 20
"""For the end of a process that is on its way; less than the 90 s after which systemd kills what is to stop."""


def agent_pid(worker: Worker) -> int:
    """Return the agent's process."""
    return worker.machine.main_pid(AGENT_UNIT)


def agent_is_ready(worker: Worker) -> bool:
    """Tell whether the agent runs and has its informers."""
    done = worker.machine.run(["curl", "-sf", "http://127.0.0.1:2751/readyz"], check=False)
    return done.returncode == 0


def wait_ready(worker: Worker) -> None:
    """Wait until the agent runs and has its informers; start it if it is down."""

    def look() -> bool:
        start_if_down(worker)
        return agent_is_ready(worker)

    wait_for(look, timeout=40, what="agent")


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or a zombie."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def wait_ended(pid: int) -> None:
    """Wait until a process is gone, or a zombie."""
    wait_for(lambda: has_ended(pid), timeout=END_SECONDS, what="end of the process")


def end_once_applied(worker: Worker, pid: int, checksum: str) -> None:
    """Wait until a process of the agent has ended by itself, or the OSC is applied; then end it in order.

    Raises:
        AssertionError: neither came, or the process did not end in order. That is told before systemd loses patience: its SIGKILL
            would look like the one of a sweep, which would then never come to its end.
    """
    try:
        wait_for(
            lambda: has_ended(pid) or worker.applied() == checksum,
            timeout=CONVERGENCE_SECONDS,
            what="end of the process, or the OSC to be applied",
        )
        if not has_ended(pid):
            worker.machine.systemctl("stop", "--no-block", AGENT_UNIT)
            wait_ended(pid)
    except LabError as error:
        raise AssertionError(f"{error}\n{worker.machine.journal(AGENT_UNIT, lines=60)}") from error


@contextmanager
def injected(
    pid: int, calls: Sequence[str], log: Path, *, when: int, error: str = "", path: str = ""
) -> Iterator[None]:
    """Have something happen to a system call of a process, whichever of its threads makes it.

    Args:
        pid: process.
        calls: names of the calls that count.
        log: file that the tracer writes.
        when: which of them.
        error: what it fails with, instead of a SIGKILL before it.
        path: if given, only calls with this open file count.
    """
    told = json.dumps({"pid": pid, "calls": list(calls), "when": when, "error": error, "path": path})
    with log.open("wb") as output:
        tracer = subprocess.Popen([sys.executable, str(_TRACER), told], stdin=subprocess.DEVNULL, stdout=output)
        try:
            wait_for(lambda: "ready" in log.read_text() or tracer.poll(), timeout=10, what="the tracer")
            yield
        finally:
            # A tracer that dies lets its tracees go.
            tracer.kill()
            tracer.wait()


def was_reached(log: Path) -> bool:
    """Tell whether a process came to that call."""
    return "reached" in log.read_text()


def start_if_down(worker: Worker) -> None:
    """Start the agent now if it is down; systemd would wait for RestartSec."""
    if worker.machine.systemctl("is-active", AGENT_UNIT, check=False) != "active":
        worker.machine.systemctl("reset-failed", AGENT_UNIT, check=False)
        worker.machine.systemctl("restart", AGENT_UNIT, check=False)


def converge(worker: Worker, checksum: str, *, timeout: float = CONVERGENCE_SECONDS) -> None:
    """Start the agent whenever it is down, until the OSC is applied."""

    def look() -> bool:
        start_if_down(worker)
        return worker.applied() == checksum

    try:
        wait_for(look, timeout=timeout, what="convergence", interval=0.15)
    except Exception as error:
        raise AssertionError(f"{error}\n{worker.machine.journal(AGENT_UNIT, lines=60)}") from error


def restart_without_limit(worker: Worker) -> None:
    """Let systemd start the agent as often as it takes."""
    worker.machine.write(f"/run/systemd/system/{AGENT_UNIT}.d/chaos.conf", b"[Unit]\nStartLimitIntervalSec=0\n")
    worker.machine.systemctl("daemon-reload")
