"""An agent whose wall clock jumps by an hour while it runs; nobody else's does."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT
from tests.machine.nodeagent.test_heartbeat import longest_gap
from tests.support.shifted_clock import ShiftedClock, shifted_clock
from tests.support.worker import Worker

HOUR = timedelta(hours=1)


class Jumpy:
    """A worker whose agent's wall clock jumps."""

    def __init__(self, worker: Worker, clock: ShiftedClock) -> None:
        self.worker = worker
        self._clock = clock

    def jump(self, by: timedelta) -> None:
        """Set the agent's clock, and wait until it has been looked at."""
        self._clock.shift(wall=by)
        wait_for(
            lambda: abs(own_time(self.worker) - by) < timedelta(seconds=30) or None,
            timeout=25,
            what=f"a clock that is off by {by}",
        )


@pytest.fixture
def jumpy(lab: Lab, agent: AgentSource, tmp_path: Path) -> Iterator[Jumpy]:
    """A worker whose agent asks a library of ours for the time."""
    with lab.removed_after(lab.add_machine("jumpy")) as machine:
        worker = Worker.join(lab, machine, agent)
        with shifted_clock(worker, tmp_path) as clock:
            worker.apply(worker.base.with_file("/opt/test/clock", "x"))
            yield Jumpy(worker, clock)


def said(worker: Worker) -> timedelta:
    """Return how far what the Lease says is ahead of the time at which the API server stored it."""
    lease = worker.lease()
    assert lease is not None
    stored = max(datetime.fromisoformat(entry["time"]) for entry in lease["metadata"]["managedFields"])
    return datetime.fromisoformat(lease["spec"]["renewTime"]) - stored


def own_time(worker: Worker) -> timedelta:
    """Return how far the clock of the agent is ahead, as its status file shows it."""
    return datetime.fromisoformat(worker.status()["heartbeat"]) - datetime.now(UTC)


def test_a_clock_that_jumps_does_no_harm(jumpy: Jumpy) -> None:
    """Contract 7.1, 4.6: an hour ahead and behind: heartbeats in time that say the API server's time, no certificate asked for, said once each."""
    worker, pid = jumpy.worker, jumpy.worker.machine.main_pid(AGENT_UNIT)
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    asked = len(worker.lab.api.list(requests))
    for by, side in ((HOUR, "ahead of"), (-HOUR, "behind")):
        jumpy.jump(by)
        assert longest_gap(worker, seconds=25) < 12
        assert abs(said(worker)) < timedelta(seconds=3)
        event = worker.wait_event("ClockDiffers", containing=f"3600 s {side} the API server's")
        assert (event["type"], event.get("count") or 1) == ("Warning", 1)
        checksum = worker.publish(worker.base.with_file("/opt/test/clock", side))
        worker.wait_applied(checksum, timeout=20)
    jumpy.jump(timedelta(0))
    worker.wait_event("ClockAgrees", containing="agrees with the API server's again")
    assert len(worker.events("ClockDiffers")) == 2
    assert worker.machine.main_pid(AGENT_UNIT) == pid
    assert len(worker.lab.api.list(requests)) == asked
    log = worker.machine.journal(AGENT_UNIT)
    assert log.count("Clock differs from the API server's") == 2
