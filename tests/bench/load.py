"""What an agent costs that has a lot to do: large OSCs, many of them, and many files to look after."""

import itertools
import re
import statistics
import time
from collections.abc import Iterator
from datetime import datetime

from agents.core.memory import LONGEST, QUIET
from tests.bench import measure
from tests.bench.figures import Figure
from tests.lab.api import wait_for
from tests.lab.worker_osc import WorkerOsc
from tests.support.worker import Worker

LARGE_FILES = 300
LARGE_BYTES = 500 * 1024
LOADED_SECONDS = 40.0
DRIFT_FILES = 500
SCANS = 20
_BETWEEN_SCANS = 0.5
_GIVEN_BACK_SECONDS = (QUIET + LONGEST).total_seconds() + 3
"""After work, until the agent has given its memory back."""
WARM_UP, CHANGES = 100, 1000
_MIB = 1024 * 1024
_CONDITIONS = {"True": "ReadyForUpdate", "False": "Idle"}
_SCANS = re.compile(
    r'^controller_runtime_reconcile_time_seconds_count\{controller="operatingsystemconfig"\} (\S+)$', re.M
)


def large(base: WorkerOsc, version: int) -> bytes:
    """Return an OSC of about 500 KiB with 300 files, all of which another version changes."""
    filler = LARGE_BYTES // LARGE_FILES - 150
    for index in range(LARGE_FILES):
        base = base.with_file(f"/opt/large/{index}", f"{version} {index}\n{'x' * filler}\n", mode=0o644)
    return base.data()


def large_osc(worker: Worker, storage: str) -> Iterator[Figure]:
    """Measure a large OSC, then many of them without a pause between."""
    versions = [large(worker.base, version) for version in range(2)]
    times: list[float] = []
    renewals: list[datetime] = []
    ends = time.monotonic() + LOADED_SECONDS
    for _ in _applied(worker, itertools.cycle(versions), times):
        renewed = _renewed(worker)
        if not renewals or renewals[-1] != renewed:
            renewals.append(renewed)
        if time.monotonic() > ends:
            break
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(renewals)]
    # The first one creates the files.
    changes = times[1:] or times
    note = f"{len(versions[0]) / 1024:.0f} KiB, all files change; median of {len(changes)}"
    yield Figure(f"OSC of 500 KiB with 300 files ({storage})", statistics.median(changes), "s", "", 1.0, note)
    note = f"{len(times)} such OSCs in {LOADED_SECONDS:.0f} s, one after another"
    yield Figure(f"longest heartbeat gap, loaded ({storage})", max(gaps, default=-1), "s", "", 12, note)
    worker.apply(worker.base, timeout=120)


def memory_growth(worker: Worker) -> Figure:
    """Return by how much the agent grows over 1,000 OSC changes, after 100 that fill what stays filled."""
    versions = [measure.osc(worker.base, files=5, units=0, version=version).data() for version in range(10)]
    before = 0.0
    for count, _ in enumerate(_applied(worker, itertools.cycle(versions), []), start=1):
        if count == WARM_UP:
            measure.let_pass(_GIVEN_BACK_SECONDS)
            before = measure.memory(worker)[0]
        if count == WARM_UP + CHANGES:
            break
    measure.let_pass(_GIVEN_BACK_SECONDS)
    after = measure.memory(worker)[0]
    worker.apply(worker.base, timeout=60)
    note = f"VmRSS, {before:.1f} MB before"
    return Figure(f"memory growth over {CHANGES} OSC changes", (after - before) * 1e6 / _MIB, "MiB", "", 2, note)


def drift_scan(worker: Worker) -> Figure:
    """Return the CPU time of one look at 500 files that are as they should be."""
    osc = worker.base
    for index in range(DRIFT_FILES):
        osc = osc.with_file(f"/opt/drift/{index}", f"{index}\n{'x' * 400}\n", mode=0o644)
    worker.apply(osc, timeout=120)
    _wait_idle(worker)
    scans, begun, cpu = _scans(worker), time.monotonic(), measure.cpu_seconds(worker)
    # A Node that becomes ready for an update in place has the OSC looked at; as nothing is to be updated, that is all.
    for number in range(SCANS):
        for status in ("False", "True"):
            _set_condition(worker, status, number)
        measure.let_pass(_BETWEEN_SCANS)
    used, done, took = measure.cpu_seconds(worker) - cpu, _scans(worker) - scans, time.monotonic() - begun
    _set_condition(worker, "False", SCANS)
    worker.apply(worker.base, timeout=120)
    note = f"mean of {done:.0f} in {took:.0f} s, with all else that the agent did meanwhile"
    return Figure(f"CPU time of a drift scan of {DRIFT_FILES} files", used / done, "s", "", 0.2, note)


def _applied(worker: Worker, versions: Iterator[bytes], times: list[float]) -> Iterator[bytes]:
    """Apply one OSC after another; adds how long each took, and yields it."""
    api = worker.lab.api
    query = {"fieldSelector": f"metadata.name={worker.machine.name}"}
    with api.one_connection(), api.watch("/api/v1/nodes", **query) as events:
        for data in versions:
            started = time.monotonic()
            measure.wait_checksum(events, worker.publish_bytes(data))
            times.append(time.monotonic() - started)
            yield data


def _renewed(worker: Worker) -> datetime:
    lease = worker.lease()
    assert lease is not None
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def _scans(worker: Worker) -> float:
    script = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:2752/metrics', timeout=5).read().decode())"
    found = _SCANS.search(worker.machine.run(["python3", "-c", script]).stdout)
    return float(found.group(1)) if found else 0.0


def _wait_idle(worker: Worker) -> None:
    wait_for(lambda: worker.status()["phase"] == "applied" or None, timeout=30, what="an agent with nothing to do")


def _set_condition(worker: Worker, status: str, number: int) -> None:
    condition = {"type": "InPlaceUpdate", "status": status, "reason": _CONDITIONS[status], "message": str(number)}
    path = f"/api/v1/nodes/{worker.machine.name}/status"
    worker.lab.api.patch_strategic(path, {"status": {"conditions": [condition]}})
