"""The tracer of the sweeps, on a process with two threads that take turns."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.interruption import injected, was_reached

_PROGRAM = """
import ctypes, os, sys, threading
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: whoever runs the test
print("ready", flush=True)
sys.stdin.readline()
files = [os.open(path, os.O_WRONLY | os.O_CREAT) for path in sys.argv[1:]]

def sync(thread):
    for turn in range(2):
        for file, name in zip(files, "ab"):
            try:
                os.fsync(file)
                print(thread, turn, name, flush=True)
            except OSError as error:
                print(thread, turn, name, error.strerror, flush=True)

for thread in (1, 2):
    started = threading.Thread(target=sync, args=(thread,))
    started.start()
    started.join()
"""
ALL = [f"{thread} {turn} {name}" for thread in (1, 2) for turn in (0, 1) for name in "ab"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that begins when it gets a line."""
    argv = [sys.executable, "-c", _PROGRAM, str(tmp_path / "a"), str(tmp_path / "b")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        assert found.stdout.readline() == "ready\n"
        yield found
        found.kill()


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """Let it do its work, and return what it says."""
    return process.communicate("\n", timeout=20)[0].splitlines()


def test_calls_are_counted_over_all_threads(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """The sixth is the second one of the second thread; the call fails, once, and nothing else is touched."""
    log = tmp_path / "log"
    with injected(process.pid, ["fsync"], log, when=6, error="EIO"):
        assert lines_of(process) == [*ALL[:5], f"{ALL[5]} Input/output error", *ALL[6:]]
        assert was_reached(log)
    assert process.returncode == 0


def test_a_process_is_killed_before_the_call(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """What came before has happened, the call has not."""
    log = tmp_path / "log"
    with injected(process.pid, ["fsync"], log, when=7):
        assert lines_of(process) == ALL[:6]
    assert was_reached(log)
    assert process.returncode == -signal.SIGKILL


def test_calls_with_one_file_count_alone(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """The third one with the second file."""
    log = tmp_path / "log"
    with injected(process.pid, ["fsync"], log, when=3, error="EROFS", path=str(tmp_path / "b")):
        assert lines_of(process) == [*ALL[:5], f"{ALL[5]} Read-only file system", *ALL[6:]]


def test_a_call_that_never_comes_is_not_reached(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """So a sweep knows its end; the process goes on when the tracer is gone."""
    log = tmp_path / "log"
    with injected(process.pid, ["fsync"], log, when=9):
        pass
    assert lines_of(process) == ALL
    assert not was_reached(log)
