"""systemd's watchdog, turned on as docs/operations.md says, on an agent that no longer does anything."""

import signal
from collections.abc import Iterator

import pytest

from tests.lab.api import wait_for
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import UNITS, Worker

DROP_IN = f"{UNITS}/{AGENT_UNIT}.d/50-watchdog.conf"


@pytest.fixture(params=["WatchdogSec=5", "Type=notify\nWatchdogSec=5"], ids=["simple", "notify"])
def watched(worker: Worker, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A worker whose agent is watched, by the documented drop-in alone and as the package's unit has it."""
    machine = worker.machine
    machine.write(DROP_IN, f"[Service]\n{request.param}\n".encode())
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", AGENT_UNIT)
    yield worker
    machine.run(["rm", "-r", f"{UNITS}/{AGENT_UNIT}.d"])
    machine.systemctl("daemon-reload")
    machine.systemctl("reset-failed", AGENT_UNIT, check=False)
    machine.systemctl("restart", AGENT_UNIT)


def test_a_frozen_agent_is_ended_and_started_anew(watched: Worker) -> None:
    """Contract 7.1: served as long as the agent lives, also for longer than the limit; frozen, it is killed, and the next one works."""
    machine = watched.machine
    first = machine.main_pid(AGENT_UNIT)

    def served_since() -> int:
        return int(machine.unit(AGENT_UNIT)["WatchdogTimestampMonotonic"])

    begun = wait_for(served_since, timeout=20, what="the watchdog to be served")
    wait_for(lambda: served_since() > begun + 10_000_000, timeout=20, what="ten seconds of it", interval=0.5)
    assert machine.main_pid(AGENT_UNIT) == first
    lines = machine.journal(AGENT_UNIT).count("Watchdog timeout")
    machine.kill(first, signal.SIGSTOP)
    # systemd's limit, the time until a service is started again, and its start.
    wait_for(lambda: machine.main_pid(AGENT_UNIT) != first, timeout=30, what="another process", interval=0.2)
    assert machine.journal(AGENT_UNIT).count("Watchdog timeout") == lines + 1
    watched.apply(watched.base.with_file("/opt/test/after-the-watchdog", "x"), timeout=30)
