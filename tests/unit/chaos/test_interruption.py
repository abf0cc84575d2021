"""How the process that a sweep watches comes to its end."""

import signal
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos import interruption
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import Worker


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when it is asked to."""
    yield from _started(["cat"])


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not."""
    yield from _started(["sh", "-c", "trap '' TERM; exec cat"])


def _started(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as found:
        assert found.stdin is not None
        assert found.stdout is not None
        found.stdin.write(b"ready\n")
        found.stdout.read(6)  # before it is what it is to be, its command line is empty
        yield found
        found.kill()


def worker_with(process: subprocess.Popen[bytes], applied: Iterator[str]) -> tuple[Worker, list[tuple[str, ...]]]:
    """Return a worker whose agent is a process, and what systemctl is asked for."""
    asked: list[tuple[str, ...]] = []

    def systemctl(*arguments: str) -> str:
        asked.append(arguments)
        process.send_signal(signal.SIGTERM)
        return ""

    machine = SimpleNamespace(systemctl=systemctl, journal=lambda _unit, *, lines: f"the last {lines} lines")
    worker: Any = SimpleNamespace(machine=machine, applied=lambda: next(applied))
    return cast("Worker", worker), asked


def test_a_process_that_outlives_its_apply_is_stopped(process: subprocess.Popen[bytes]) -> None:
    """Not before the OSC is applied, and in order."""
    applied = iter(["old", "old", "new"])
    worker, asked = worker_with(process, applied)
    interruption.end_once_applied(worker, process.pid, "new")
    assert asked == [("stop", "--no-block", AGENT_UNIT)]
    assert list(applied) == []
    assert process.wait() == -signal.SIGTERM


def test_a_process_that_ended_by_itself_is_left_at_that(process: subprocess.Popen[bytes]) -> None:
    """Killed at its point, or restarted: the unit is not stopped."""
    process.kill()
    process.wait()
    worker, asked = worker_with(process, iter([]))
    interruption.end_once_applied(worker, process.pid, "new")
    assert asked == []


def test_a_process_that_does_not_stop_is_an_error(
    stubborn: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before systemd kills it, which would look as if its point had been reached; the journal is told."""
    monkeypatch.setattr(interruption, "END_SECONDS", 0.2)
    worker, _ = worker_with(stubborn, iter(["new"]))
    with pytest.raises(AssertionError, match=r"for end of the process(.|\n)*the last 60 lines"):
        interruption.end_once_applied(worker, stubborn.pid, "new")
    assert not interruption.has_ended(stubborn.pid)
