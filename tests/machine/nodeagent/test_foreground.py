"""`apply --once` on a real machine: what the service would do, in the foreground, with progress and a result."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.lab.api import wait_for
from tests.lab.worker_osc import AGENT_BINARY, AGENT_UNIT, WorkerOsc
from tests.support.worker import Worker, service

APPLY = [AGENT_BINARY, "apply", "--once"]
FILES = 300


@contextmanager
def without_service(worker: Worker) -> Iterator[None]:
    """Stop the agent's service for the length of a block."""
    worker.machine.systemctl("stop", AGENT_UNIT)
    try:
        yield
    finally:
        worker.start_agent()


def many(worker: Worker, folder: str, *, seconds: int) -> WorkerOsc:
    """Return an OSC with many files, and a unit whose start takes so long: whoever looks on sees something of it."""
    content = service(f"for {folder}").replace("ExecStart=", f"ExecStartPre=/usr/bin/sleep {seconds}\nExecStart=", 1)
    osc = worker.base.with_unit("once.service", content=content, command="start", enable=True)
    for number in range(FILES):
        osc = osc.with_file(f"{folder}/{number:03}", f"{number}\n" * 100, mode=0o640)
    return osc


def apply(worker: Worker, *arguments: str) -> tuple[int, dict[str, Any], list[str]]:
    """Run it; returns exit code, document and the lines of its progress."""
    done = worker.machine.run([*APPLY, *arguments, "-o", "json"], check=False, timeout=120)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document, done.stderr.splitlines()


def test_what_the_cluster_wants_is_applied(worker: Worker) -> None:
    """Everything of a new OSC is on the machine and said on the Node when it ends, with 0; progress is counted in plain lines."""
    osc = many(worker, "/opt/once", seconds=1)
    containerd = worker.machine.main_pid("containerd.service")
    with without_service(worker):
        checksum = worker.publish(osc)
        code, found, progress = apply(worker)
        # Its drop-in has the PATH of the service, not that of whoever runs this.
        assert worker.machine.main_pid("containerd.service") == containerd
        assert (code, found["outcome"], found["checksum"], found["left"]) == (0, "applied", checksum, 0), found
        assert worker.applied() == checksum
        assert worker.differences(osc) == [f"unit {AGENT_UNIT} is inactive"]
        assert [line for line in progress if re.fullmatch(r"[1-9][0-9]* items? left, next: .*once.*", line)], progress
        assert not any("\x1b" in line for line in progress)
        # A second time there is nothing to do, and that is soon known.
        code, found, _ = apply(worker)
        assert (code, found["outcome"], found["checksum"]) == (0, "applied", checksum)
    assert worker.temporary_files() == []


def test_beside_the_service(worker: Worker) -> None:
    """The service does this already: exit code 1, what to do instead, and nothing else happened."""
    before = worker.machine.main_pid(AGENT_UNIT)
    done = worker.machine.run(APPLY, check=False)
    assert done.returncode == 1
    assert "status --wait" in done.stderr
    assert worker.machine.main_pid(AGENT_UNIT) == before


def test_what_fails_is_named(worker: Worker) -> None:
    """A unit that fails: everything else is applied, it is tried again for a while, and then named with its cause; exit code 1."""
    bad = worker.base.with_unit("bad.service", content=service(command="/bin/false", kind="oneshot"), command="start")
    osc = bad.with_file("/opt/once/good", "good\n")
    with without_service(worker):
        worker.publish(osc)
        code, found, progress = apply(worker)
        assert (code, found["outcome"]) == (1, "failed"), found
        (item,) = found["failing"]
        assert item["item"] == "unit bad.service"
        assert item["attempt"] > 1
        assert "failed" in item["cause"]
        assert worker.machine.read("/opt/once/good") == b"good\n"
        assert any("unit bad.service failed, attempt" in line for line in progress), progress
        text = worker.machine.run([*APPLY, "--timeout", "2"], check=False, timeout=60)
        assert text.returncode == 2
        assert "in progress after 2" in text.stdout
        assert "unit bad.service" in text.stdout


def test_interrupted(worker: Worker) -> None:
    """Ctrl-C in the middle of an apply: it stops in order with 2 and says what is left; the service goes on from there."""
    osc = many(worker, "/opt/interrupted", seconds=5)
    with without_service(worker):
        checksum = worker.publish(osc)
        with worker.machine.popen([*APPLY, "-o", "json"]) as running:
            folder = worker.machine.path("/opt/interrupted")
            wait_for(
                lambda: folder.exists() and any(folder.iterdir()), timeout=30, what="the first files", interval=0.001
            )
            (pid,) = worker.machine.run(["pgrep", "-f", "apply --once"]).stdout.split()
            worker.machine.kill(worker.machine.host_pid(int(pid)), signal.SIGINT)
            output = running.communicate(timeout=60)[0].decode()
        assert running.returncode == 2, output
        assert "stopped: signal SIGINT" in output
        assert worker.applied() != checksum
    worker.wait_applied(checksum)
    assert worker.differences(osc) == []
    assert worker.temporary_files() == []
