"""The whole program as a process, where only a process can show it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
HANGING = """
import asyncio, os, threading, time
from agents.core.shutdown import Shutdown
from nodeagent import app

async def main():
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, time.sleep, 60)
    stop = asyncio.Event()
    loop.add_signal_handler(15, stop.set)
    print("ready", flush=True)
    await stop.wait()
    app._end_soon(os._exit)
    return 0

raise SystemExit(asyncio.run(main()))
"""


def test_a_hanging_thread_does_not_hold_up_the_end() -> None:
    """Contract 1.7: a thread that hangs, in name resolution or on a disk, is abandoned 5 s after SIGTERM, with exit code 1."""
    process = subprocess.Popen([sys.executable, "-c", HANGING], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 1
        assert 4 < time.monotonic() - started < 10
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
