"""A whole process around the manager, as systemd sees it: signals, exit codes, the time it takes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

PROGRAM = """
import asyncio, sys
from datetime import timedelta
from random import Random
from agents.core import logging
from agents.core.clock import SystemClock
from agents.core.shutdown import Shutdown
from agents.runtime.controller import Controller, Environment
from agents.runtime.health import InformerSync
from agents.runtime.manager import Manager
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import StartupSource

shutdown = Shutdown()

class Reconciler:
    async def reconcile(self, request):
        print("working", flush=True)
        mode = request.name
        if mode == "request":
            shutdown.request("certificate renewed")
        try:
            await asyncio.sleep(60)
        finally:
            if mode == "stuck":
                await asyncio.sleep(60)
            print("stopped", flush=True)
        return Result()

async def main():
    logging.configure("error", "json")
    clock = SystemClock()
    environment = Environment(clock=clock, rng=Random(1), metrics=Metrics())
    controller = Controller(name="test", reconciler=Reconciler(), sources=[StartupSource([Request("", sys.argv[1])])])
    manager = Manager(environment=environment, shutdown=shutdown, informer_sync=InformerSync(clock=clock),
                      controllers=[controller], stop_deadline=timedelta(seconds=float(sys.argv[2])))
    return await manager.run()

sys.exit(asyncio.run(main()))
"""


@contextmanager
def program(mode: str, stop_seconds: float = 5) -> Iterator["subprocess.Popen[str]"]:
    """Run the program until it works."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", PROGRAM, mode, str(stop_seconds)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "working\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_exits_0(number: signal.Signals) -> None:
    """Contract 1.7: after SIGTERM or SIGINT work must be stopped and the exit code must be 0."""
    with program("work") as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.splitlines()[-1]) == (0, "stopped")


def test_second_signal_exits_1_at_once() -> None:
    """Contract 1.7: a second signal must end the process at once with 1."""
    with program("stuck", stop_seconds=30) as process:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 1
        assert time.monotonic() - started < 2


def test_stuck_work_is_abandoned() -> None:
    """Contract 1.7: work that does not stop in time must be abandoned, and the exit code must be 1."""
    with program("stuck", stop_seconds=0.5) as process:
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 1
        assert 0.4 < time.monotonic() - started < 3


def test_own_request_exits_0() -> None:
    """Contract 1.8: a restart that the process asks for itself must exit with 0."""
    with program("request") as process:
        assert process.wait(timeout=10) == 0
