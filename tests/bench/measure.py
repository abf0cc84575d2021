"""How each figure is measured."""

import datetime as dt
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure
from tests.bench.floor import floor_seconds
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.userdata import run_bootstrap
from tests.lab.worker_osc import AGENT_BINARY, AGENT_UNIT, WorkerOsc
from tests.support.worker import APPLIED, Worker, service

REPETITIONS = 5
_POLL_SECONDS = 0.003
_IDLE_SECONDS = 120.0
_SETTLE_SECONDS = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")
_UNPACKED = f"{Path(AGENT_BINARY).parent}/.gardener-node-agent.unpacked"
_FILE = "x" * 1200 + "\n"


def osc(base: WorkerOsc, *, files: int, units: int, version: int) -> WorkerOsc:
    """Return an OSC with plain files of about 1.2 KB and simple units that change by their description."""
    for index in range(files):
        base = base.with_file(f"/opt/bench/{index}", f"{version} {index}\n{_FILE}", mode=0o644)
    for index in range(units):
        base = base.with_unit(
            f"bench-{index}.service", content=service(f"version {version}", command="/usr/bin/sleep infinity")
        )
    return base


def apply_seconds(worker: Worker, *, files: int, units: int) -> tuple[float, float]:
    """Return the median time from the patch of the Secret until the Node has the checksum; all files and units change.

    And that of a bare daemon-reload after each of them: a virtual machine is slower at one moment than at another.
    """
    worker.apply(osc(worker.base, files=files, units=units, version=0), timeout=120)
    api, times, reloads = worker.lab.api, [], []
    query = {"fieldSelector": f"metadata.name={worker.machine.name}"}
    with api.one_connection(), api.watch("/api/v1/nodes", **query) as events:
        for version in range(1, REPETITIONS + 1):
            data = osc(worker.base, files=files, units=units, version=version).data()
            started = time.monotonic()
            checksum = worker.publish_bytes(data)
            wait_checksum(events, checksum)
            times.append(time.monotonic() - started)
            reloads.append(_reload_seconds(worker))
    return statistics.median(times), statistics.median(reloads)


def _reload_seconds(worker: Worker) -> float:
    """Return the time of a bare daemon-reload, without the start of busctl."""
    script = "import subprocess,time\ndef took(*c):\n s=time.monotonic(); subprocess.run(['busctl',*c],check=True,stdout=subprocess.DEVNULL); return time.monotonic()-s\n"
    reload = "print(took('call','org.freedesktop.systemd1','/org/freedesktop/systemd1','org.freedesktop.systemd1.Manager','Reload')-took('--version'))"
    return float(worker.machine.run(["python3", "-c", script + reload]).stdout)


def applies(worker: Worker, storage: str) -> Iterator[Figure]:
    """Measure the three OSC changes, with one bare reload and the bare calls of the smallest change beside them."""
    data = osc(worker.base, files=3, units=2, version=0).data()
    bare = floor_seconds(worker, data, units=2, repetitions=REPETITIONS)
    yield Figure(
        f"calls to systemd and the API server for 2 units ({storage})", bare, "s", note="no agent, nothing else"
    )
    few, reload = apply_seconds(worker, files=3, units=2)
    yield Figure(f"bare daemon-reload ({storage})", reload, "s", note="one after each change of 3 files and 2 units")
    yield Figure(f"3 files and 2 units ({storage})", few, "s", "0.17 s", reload + 0.05, "one reload + 0.05 s")
    yield Figure(
        f"200 files and 2 units ({storage})", apply_seconds(worker, files=200, units=2)[0], "s", "1.88 s", 0.40
    )
    yield Figure(
        f"50 files and 20 units ({storage})", apply_seconds(worker, files=50, units=20)[0], "s", "0.58 s", 0.45
    )
    worker.apply(worker.base, timeout=120)


def start_seconds(worker: Worker) -> float:
    """Return the median time from the start of the process until the Lease is renewed."""
    times = []
    for _ in range(REPETITIONS):
        worker.machine.systemctl("stop", AGENT_UNIT)
        times.append(_start(worker))
    return statistics.median(times)


def _start(worker: Worker) -> float:
    before = _renew_time(worker)
    started = dt.datetime.now(dt.UTC)
    worker.start_agent()
    _wait_renewal(worker, before)
    return (dt.datetime.fromisoformat(_renew_time(worker)) - started).total_seconds()


def first_start_seconds(worker: Worker) -> float:
    """Return the median time until the Lease is renewed of starts that have to unpack the program first."""
    times = []
    for _ in range(REPETITIONS):
        worker.machine.systemctl("stop", AGENT_UNIT)
        worker.machine.run(["rm", "-r", _UNPACKED])
        times.append(_start(worker))
    return statistics.median(times)


def wait_checksum(events: Iterator[dict[str, Any]], checksum: str) -> None:
    """Read a watch on our Node until it carries a checksum."""
    for event in events:
        if event["object"]["metadata"].get("annotations", {}).get(APPLIED) == checksum:
            return


def _wait_renewal(worker: Worker, before: str) -> None:
    wait_for(lambda: _renew_time(worker) != before, timeout=30, what="renewal", interval=_POLL_SECONDS)


def _renew_time(worker: Worker) -> str:
    lease = worker.lease()
    return "" if lease is None else str(lease["spec"]["renewTime"])


def memory(worker: Worker) -> tuple[float, float]:
    """Return resident and anonymous memory of the agent in MB."""
    status = Path(f"/proc/{worker.machine.main_pid(AGENT_UNIT)}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    resident, anonymous = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon"))
    return resident, anonymous


def cpu_seconds(worker: Worker) -> float:
    """Return the CPU time of the agent so far, programs that it started and that have ended included."""
    stat = Path(f"/proc/{worker.machine.main_pid(AGENT_UNIT)}/stat").read_text()
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15]) / _TICKS


def let_pass(seconds: float) -> None:
    """Let time go by."""
    end = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > end, timeout=seconds + 10, what="some time", interval=min(seconds, 0.5))


def idle(worker: Worker) -> Iterator[Figure]:
    """Measure an agent with nothing to do, a moment after it had."""
    let_pass(_SETTLE_SECONDS)
    lines = len(worker.machine.journal(AGENT_UNIT).splitlines())
    started, cpu = dt.datetime.now(dt.UTC), cpu_seconds(worker)
    let_pass(_IDLE_SECONDS)
    used, said = cpu_seconds(worker) - cpu, len(worker.machine.journal(AGENT_UNIT).splitlines()) - lines
    requests = [request for request in worker.lab.requests() if request.machine == worker.machine.name]
    sent = [
        request
        for request in requests
        if request.received > started and request.stage == "ResponseComplete" and request.verb != "watch"
    ]
    opened = [request for request in requests if request.verb == "watch" and request.stage == "ResponseStarted"]
    closed = [request for request in requests if request.verb == "watch" and request.stage == "ResponseComplete"]
    watches = len({request.received for request in opened} - {request.received for request in closed})
    # Two watches of 5 to 10 minutes each are renewed once in 7.5 minutes on average.
    renewals = watches * 60 / 450
    yield Figure("open watches, idle", watches, "", "5", 3)
    yield Figure(
        "requests per minute, idle", len(sent) * 60 / _IDLE_SECONDS + renewals, "", "7", 7.5, "watch renewals included"
    )
    yield Figure("lines on stderr per idle minute", said * 60 / _IDLE_SECONDS, "", "0", 0)
    note = f"{used:.2f} s in {_IDLE_SECONDS:.0f} s, children included"
    yield Figure("CPU time per idle hour", used * 3600 / _IDLE_SECONDS, "s", "", 10, note)


def join_seconds(lab: Lab, name: str, agent: str) -> float:
    """Return the time from the start of `bootstrap` until the Node is annotated."""
    with lab.removed_after(lab.add_machine(name)) as machine:
        worker = Worker.prepare(lab, machine, lab.agent(agent))
        checksum = worker.publish(worker.base)
        started = time.monotonic()
        run_bootstrap(machine)
        worker.wait_applied(checksum, timeout=120)
        return time.monotonic() - started
