"""An agent on a machine whose clocks run ahead or behind; nobody else's do.

A library of ours is loaded into every program that the machine starts from then on. It changes nothing where the agent's
unit does not set a variable, so kubelet, containerd and systemd keep the real time.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import UNITS, Worker

_OFFSETS, _LIBRARY, _PRELOAD = "/run/clock-offsets", "/opt/test-clock.so", "/etc/ld.so.preload"
_DROP_IN = f"{UNITS}/{AGENT_UNIT}.d/50-test-clock.conf"
_SOURCE = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(clockid_t id) {
    static int ours = -1;
    long wall = 0, elapsed = 0;
    if (ours < 0) ours = getenv("TEST_CLOCK") != NULL;
    if (!ours) return 0;
    FILE *file = fopen("OFFSETS", "r");
    if (file) { if (fscanf(file, "%ld %ld", &wall, &elapsed) != 2) wall = elapsed = 0; fclose(file); }
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) return wall;
    return id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE ? elapsed : 0;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0) now->tv_sec += offset(id);
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
""".replace("OFFSETS", _OFFSETS)


class ShiftedClock:
    """The clocks of one machine's agent."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def shift(self, *, wall: timedelta = timedelta(0), elapsed: timedelta = timedelta(0)) -> None:
        """Set how far the agent's clocks are off, at this moment.

        Args:
            wall: its wall clock; behind if negative.
            elapsed: the clock by which it measures durations; it must not go back while the agent runs.
        """
        offsets = f"{int(wall.total_seconds())} {int(elapsed.total_seconds())}"
        self._worker.machine.write(_OFFSETS, offsets.encode(), 0o644)


@contextmanager
def shifted_clock(worker: Worker, folder: Path) -> Iterator[ShiftedClock]:
    """Start a worker's agent anew with clocks that can be shifted, for the length of a block.

    Args:
        worker: a machine whose agent runs.
        folder: where the library is built.
    """
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make a clock with")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=60)
    machine, clock = worker.machine, ShiftedClock(worker)
    machine.write(_LIBRARY, library.read_bytes(), 0o755)
    clock.shift()
    machine.run(["mkdir", "-p", str(Path(_DROP_IN).parent)])
    machine.write(_DROP_IN, b"[Service]\nEnvironment=TEST_CLOCK=1\n", 0o644)
    # For every program that starts from now on: the agent's own launcher lets no LD_PRELOAD through.
    machine.write(_PRELOAD, f"{_LIBRARY}\n".encode(), 0o644)
    _restart_agent(worker)
    try:
        yield clock
    finally:
        machine.run(["rm", _PRELOAD, _DROP_IN])
        machine.run(["rmdir", "--ignore-fail-on-non-empty", str(Path(_DROP_IN).parent)])
        _restart_agent(worker)


def _restart_agent(worker: Worker) -> None:
    worker.machine.systemctl("daemon-reload")
    worker.machine.systemctl("stop", AGENT_UNIT)
    worker.start_agent()
