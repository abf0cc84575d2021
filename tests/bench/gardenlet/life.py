"""Rows about a gardenlet that has little to do: its start, its memory, what it asks, how it dies and hands over."""

import datetime as dt
import shutil
import signal
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.gardenlet.seat import Seat, memory
from tests.bench.measure import let_pass
from tests.lab.requests import Request

_SETTLE_SECONDS = 15.0
_MINUTE = 60.0
_WATCH_SECONDS = 450.0
"""How long a watch lives on average: API servers end them after 5 to 10 minutes."""
_OF_FILE = "targets: as from the source tree; unpacking costs what it may cost the node agent"
BUILT = Path(__file__).resolve().parents[3] / "build/bin/gardenlet"
_LATEST_EXPIRY = 3
"""Restarts as another Pod; each takes as long as the leader's Lease."""


def start(seat: Seat) -> Iterator[Figure]:
    """Measure starts with the garden's kubeconfig present and the leader's Lease free."""
    seat.join()
    times = [seat.restart() for _ in range(seat.sizes.repetitions)]
    note = f"process started until the Lease was renewed, median of {len(times)}"
    yield Figure("start until the first beat", statistics.median(times), "s", "2.0 s", 1.5, note)


def program(seat: Seat) -> Iterator[Figure]:
    """Measure the program in one file: where it has to unpack itself first, where it has not, and its memory."""
    built = Path(shutil.copy2(BUILT, seat.folder))
    seat.gardenlet.program = [str(built)]
    seat.join()
    first, warm = [], []
    for _ in range(seat.sizes.repetitions):
        shutil.rmtree(built.with_name(f".{built.name}.unpacked"))
        first.append(seat.restart())
        warm.append(seat.restart())
    let_pass(seat.sizes.idle)
    found = memory(seat.gardenlet)
    yield Figure("size of the one file", built.stat().st_size / 1e6, "MB", "111 MB", 35)
    yield Figure("start of the one file until the first beat", statistics.median(warm), "s", "2.0 s", 1.5, _OF_FILE)
    yield Figure("the same where it has to unpack first", statistics.median(first), "s", "", 2.75, _OF_FILE)
    yield Figure("resident memory of the one file, idle", found["VmRSS"], "MB", "100 MB", 80, "VmRSS")
    yield Figure("of that anonymous", found["RssAnon"], "MB", "34 MB", 50, "RssAnon")


def idle_memory(seat: Seat) -> Iterator[Figure]:
    """Measure a restarted gardenlet that has one Seed and nothing to do."""
    seat.join()
    seat.restart()
    let_pass(seat.sizes.idle)
    found = memory(seat.gardenlet)
    note = f"VmRSS after {seat.sizes.idle:.0f} s"
    yield Figure("resident memory, idle", found["VmRSS"], "MB", "100 MB", 80, note)
    yield Figure("of it anonymous", found["RssAnon"], "MB", "34 MB", 50, "RssAnon")
    yield Figure("most there was", found["VmHWM"], "MB", "", None, "VmHWM")


def requests(seat: Seat) -> Iterator[Figure]:
    """Count what both API servers were asked, from their audit logs."""
    seat.join()
    seat.restart()
    let_pass(_SETTLE_SECONDS)
    begun, since = dt.datetime.now(dt.UTC), time.monotonic()
    let_pass(max(2 * seat.sizes.idle, 20))
    minutes = (time.monotonic() - since) / _MINUTE
    garden = seat.gardenlet.garden
    asked = {
        "garden": [one for one in garden.requests() if seat.gardenlet.name in one.user],
        "seed": garden.seed_requests(),
    }
    watches = sum(open_watches(each) for each in asked.values())
    sent = {side: len(list(answered(each, begun))) / minutes for side, each in asked.items()}
    renewals = watches * _MINUTE / _WATCH_SECONDS
    what = ", ".join(f"{side} {rate:.0f}" for side, rate in sent.items())
    note = f"{what}, renewals of {watches} watches {renewals:.1f}"
    yield Figure("requests per minute, idle", sum(sent.values()) + renewals, "", "132", 95, note)
    yield Figure("open watches, idle", watches, "", "37 to 47")


def answered(found: Iterable[Request], since: dt.datetime) -> Iterator[Request]:
    """Yield what was answered since a moment, without watches."""
    for one in found:
        if one.received > since and one.stage == "ResponseComplete" and one.verb != "watch":
            yield one


def open_watches(found: Sequence[Request]) -> int:
    """Return how many watches were accepted and not closed; those of a killed process are closed by the API server."""
    opened = [one.received for one in found if one.verb == "watch" and one.stage == "ResponseStarted"]
    closed = {one.received for one in found if one.verb == "watch" and one.stage == "ResponseComplete"}
    return len(set(opened) - closed)


def restart(seat: Seat) -> Iterator[Figure]:
    """Measure from a SIGKILL until the next beat: as the same Pod, and as another one."""
    seat.join()
    one, same, other = seat.gardenlet, [], []
    for _ in range(seat.sizes.repetitions):
        same.append(_killed(seat))
    for number in range(min(_LATEST_EXPIRY, seat.sizes.repetitions)):
        one.pod_uid = f"another-{number}"
        other.append(_killed(seat))
    yield Figure(
        "SIGKILL until the next beat, same Pod",
        max(same),
        "s",
        "17 to 20 s",
        3,
        f"longest of {len(same)}, same POD_UID",
    )
    note = f"longest of {len(other)}; the leader's Lease must expire"
    yield Figure("SIGKILL until the next beat, another Pod", max(other), "s", "17 to 20 s", 17.5, note)


def _killed(seat: Seat) -> float:
    killed = time.monotonic()
    seat.gardenlet.end(signal.SIGKILL)
    seat.gardenlet.start()
    beat = seat.beats.after(seat.gardenlet.started)
    # It has led for a moment, so that its Lease is a fresh one.
    seat.beats.first(lambda later: later.renewed > beat.renewed)
    return beat.seen - killed


def handover(seat: Seat) -> Iterator[Figure]:
    """Measure the gap between two renewals when a leader ends in order and its replica takes over, to and fro."""
    seat.join()
    leader, follower, gaps = seat.gardenlet, seat.gardenlet.replica(seat.folder / "replica"), []
    try:
        for _ in range(max(2, seat.sizes.repetitions - 1)):
            follower.start()
            follower.until(200, "/readyz")
            last = seat.beats.after(time.monotonic())
            leader.end()
            last = seat.beats.all[-1]
            first = seat.beats.first(lambda beat, last=last: beat.renewed > last.renewed)  # type: ignore[misc]
            gaps.append((first.renewed - last.renewed).total_seconds())
            leader, follower = follower, leader
    finally:
        leader.kill()
        follower.kill()
    yield Figure("hand-over by SIGTERM", max(gaps), "s", "", 6, f"between two renewTimes, longest of {len(gaps)}")
