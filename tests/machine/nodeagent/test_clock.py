"""An agent whose wall clock jumps by an hour while it runs; nobody else's does."""

import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT
from tests.machine.nodeagent.test_heartbeat import longest_gap
from tests.support.worker import UNITS, Worker

OFFSET, LIBRARY = "/run/clock-offset", "/opt/test-clock.so"
"""Others load the library too; it changes nothing where the unit's variable is not set."""
DROP_IN = f"{UNITS}/{AGENT_UNIT}.d/50-test-clock.conf"
HOUR = timedelta(hours=1)
SOURCE = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    static int ours = -1;
    long seconds = 0;
    if (ours < 0) ours = getenv("TEST_CLOCK") != NULL;
    if (!ours) return 0;
    FILE *file = fopen("OFFSET", "r");
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}
""".replace("OFFSET", OFFSET)


@pytest.fixture
def jumpy(lab: Lab, agent: AgentSource, tmp_path: Path) -> Iterator[Worker]:
    """A worker whose agent asks a library of ours for the time."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make a clock with")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=60)
    with lab.removed_after(lab.add_machine("jumpy")) as machine:
        worker = Worker.join(lab, machine, agent)
        machine.write(LIBRARY, library.read_bytes(), 0o755)
        machine.write(OFFSET, b"0", 0o644)
        machine.run(["mkdir", "-p", str(Path(DROP_IN).parent)])
        machine.write(DROP_IN, b"[Service]\nEnvironment=TEST_CLOCK=1\n", 0o644)
        # For every program that starts from now on: the agent's own launcher lets no LD_PRELOAD through.
        machine.write("/etc/ld.so.preload", f"{LIBRARY}\n".encode(), 0o644)
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", AGENT_UNIT)
        worker.apply(worker.base.with_file("/opt/test/clock", "x"))
        yield worker


def said(worker: Worker) -> timedelta:
    """Return how far what the Lease says is ahead of the time at which the API server stored it."""
    lease = worker.lease()
    assert lease is not None
    stored = max(datetime.fromisoformat(entry["time"]) for entry in lease["metadata"]["managedFields"])
    return datetime.fromisoformat(lease["spec"]["renewTime"]) - stored


def own_time(worker: Worker) -> timedelta:
    """Return how far the clock of the agent is ahead, as its status file shows it."""
    return datetime.fromisoformat(worker.status()["heartbeat"]) - datetime.now(UTC)


def jump(worker: Worker, by: timedelta) -> None:
    """Set the agent's clock, and wait until it has been looked at."""
    worker.machine.write(OFFSET, str(int(by.total_seconds())).encode(), 0o644)
    wait_for(
        lambda: abs(own_time(worker) - by) < timedelta(seconds=30) or None,
        timeout=25,
        what=f"a clock that is off by {by}",
    )


def test_a_clock_that_jumps_does_no_harm(jumpy: Worker) -> None:
    """Contract 7.1, 4.6: an hour ahead and behind: heartbeats in time that say the API server's time, no certificate asked for, said once each."""
    worker, pid = jumpy, jumpy.machine.main_pid(AGENT_UNIT)
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    asked = len(worker.lab.api.list(requests))
    for by, side in ((HOUR, "ahead of"), (-HOUR, "behind")):
        jump(worker, by)
        assert longest_gap(worker, seconds=25) < 12
        assert abs(said(worker)) < timedelta(seconds=3)
        event = worker.wait_event("ClockDiffers", containing=f"3600 s {side} the API server's")
        assert (event["type"], event.get("count") or 1) == ("Warning", 1)
        checksum = worker.publish(worker.base.with_file("/opt/test/clock", side))
        worker.wait_applied(checksum, timeout=20)
    jump(worker, timedelta(0))
    worker.wait_event("ClockAgrees", containing="agrees with the API server's again")
    assert len(worker.events("ClockDiffers")) == 2
    assert worker.machine.main_pid(AGENT_UNIT) == pid
    assert len(worker.lab.api.list(requests)) == asked
    log = worker.machine.journal(AGENT_UNIT)
    assert log.count("Clock differs from the API server's") == 2
