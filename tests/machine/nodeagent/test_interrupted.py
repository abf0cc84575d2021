"""An apply that is interrupted from outside: by SIGTERM, and by a power cut."""

import time
from pathlib import Path

from tests.lab.api import wait_for
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc
from tests.support.worker import Worker, service

FOLDER = "/opt/test/many"
FILES = 500
SLOW = "slow.service"


def large(worker: Worker) -> WorkerOsc:
    """Return an OSC with files for some passes of fsyncs, and a unit whose job takes until a file is there."""
    osc = worker.base
    for number in range(FILES):
        osc = osc.with_file(f"{FOLDER}/{number}", f"{number}\n" * 20)
    command = '/bin/sh -c "until [ -e /opt/test/go ]; do sleep 0.1; done"'
    return osc.with_unit(SLOW, content=service(command=command, kind="oneshot", extra="RemainAfterExit=yes"))


def written(worker: Worker) -> int:
    """Return how many of the files are there."""
    folder = worker.machine.path(FOLDER)
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def wait_finished(worker: Worker, osc: WorkerOsc, checksum: str) -> None:
    """Let the slow unit end, and wait until the machine is as the OSC says."""
    worker.machine.write("/opt/test/go", b"")
    worker.wait_applied(checksum, timeout=90)
    assert worker.differences(osc) == []
    worker.machine.path("/opt/test/go").unlink()


def terminate(worker: Worker) -> float:
    """Send SIGTERM to the agent; returns the seconds until that process was gone."""
    pid = worker.machine.main_pid(AGENT_UNIT)
    started = time.monotonic()
    # As `systemctl stop` does: to every process of the unit.
    worker.machine.systemctl("kill", "--kill-whom=all", "--signal=SIGTERM", AGENT_UNIT)
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or None, timeout=10, what="end of the process")
    return time.monotonic() - started


def test_sigterm_while_files_are_written(worker: Worker) -> None:
    """Contract 1.7: SIGTERM in the middle of the files of an apply: ended within 5 s with 0; the next start converges."""
    osc = large(worker)
    checksum = worker.publish(osc)
    wait_for(lambda: written(worker) or None, timeout=20, what="the first files", interval=0.001)
    assert terminate(worker) < 5
    assert worker.machine.unit(AGENT_UNIT)["ExecMainStatus"] == "0"
    wait_finished(worker, osc, checksum)


def test_sigterm_while_a_job_is_waited_for(worker: Worker) -> None:
    """Contract 1.7: SIGTERM while the agent waits for a job ends it within 5 s with 0; the next start converges."""
    osc = large(worker)
    checksum = worker.publish(osc)
    wait_for(
        lambda: worker.machine.unit(SLOW).get("ActiveState") == "activating" or None, timeout=30, what="the slow job"
    )
    assert terminate(worker) < 5
    assert worker.machine.unit(AGENT_UNIT)["ExecMainStatus"] == "0"
    wait_finished(worker, osc, checksum)


def test_a_power_cut_in_the_middle_of_an_apply(worker: Worker) -> None:
    """Contract 6.4, 9 W2, W3: power cut while files are written: after the boot exactly the OSC, no temporary file."""
    osc = large(worker)
    checksum = worker.publish(osc)
    wait_for(lambda: written(worker) or None, timeout=20, what="the first files", interval=0.001)
    worker.machine.kill_power()
    assert worker.applied() != checksum
    worker.machine.boot()
    wait_finished(worker, osc, checksum)
    wait_for(
        lambda: worker.machine.unit("kubelet.service")["ActiveState"] == "active" or None, timeout=30, what="kubelet"
    )
