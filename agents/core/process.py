"""Run another program to its end: with a deadline, bounded output, and nothing left of it.

The program becomes the leader of a process group of its own. When the deadline passes or whoever waits is cancelled, the
whole group is killed, so that a child of the program does not go on alone.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agents.core.errors import RetriableError

MOST_OUTPUT_BYTES = 1024 * 1024
"""What is kept of each stream, its beginning and its end; the rest is read and thrown away."""
_END_BYTES = 64 * 1024
"""Of that, what is kept of the end: that is where programs say why they failed."""
_MOST_TEXT_IN_ERROR = 1024
_CHUNK_BYTES = 64 * 1024
_STOP_GRACE_SECONDS = 2.0
# Meant for this process, not for those that it starts.
_OURS_ALONE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})


class ProcessError(RetriableError):
    """A program could not be started, failed or did not end; fields: `command`, `problem`, `output`."""


class ProcessTimeout(ProcessError):
    """It did not end before its deadline and was killed."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that has ended.

    Attributes:
        exit_code: as the shell counts: 128 plus the signal's number for one that was killed.
        stdout: what it printed, at most `MOST_OUTPUT_BYTES`; of more, the middle is missing.
        stderr: the same of its error output.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def ending(self) -> str:
        """Return the exit code in words, with the signal where it stands for one."""
        number = self.exit_code - 128
        known = any(number == one.value for one in signal.Signals)
        return f"exit code {self.exit_code}" + (f" ({signal.Signals(number).name})" if known else "")

    def text(self) -> str:
        """Return the end of what it said, for an error's `output` field."""
        said = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return said[-_MOST_TEXT_IN_ERROR:]


async def run(
    argv: Sequence[str],
    *,
    deadline: timedelta,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
) -> Completed:
    """Start a program without input and wait for its end.

    Args:
        argv: program and arguments; no shell reads them.
        deadline: from now.
        environment: the whole environment; None for ours without what concerns this process alone.
        check: whether an exit code other than 0 is an error.

    Raises:
        ProcessError: it could not be started, or failed and `check` is set.
        ProcessTimeout: it did not end in time.
    """
    command = " ".join(argv[:3])
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=inherited_environment() if environment is None else environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ProcessError("program not started", command=command, problem=os.strerror(error.errno or 0)) from error
    except ValueError as error:  # what no program can be given, as a NUL in an argument
        command = command.encode(errors="replace").decode()
        raise ProcessError("program not started", command=command, problem=str(error)) from error
    stdout, stderr = bytearray(), bytearray()
    try:
        async with asyncio.timeout(deadline.total_seconds()), asyncio.TaskGroup() as group:
            group.create_task(_read(process.stdout, stdout))
            group.create_task(_read(process.stderr, stderr))
            group.create_task(process.wait())
    except TimeoutError as error:
        await _kill_group(process)
        ended = Completed(1, bytes(stdout), bytes(stderr))
        raise ProcessTimeout(
            "program did not end in time", command=command, deadline=str(deadline), output=ended.text()
        ) from error
    except BaseException:
        await _kill_group(process)
        raise
    code = process.returncode or 0
    completed = Completed(128 - code if code < 0 else code, bytes(stdout), bytes(stderr))
    if check and completed.exit_code != 0:
        raise ProcessError("program failed", command=command, problem=_ending(code), output=completed.text())
    return completed


def inherited_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment as another program should see it: without what systemd says to this process alone."""
    found = os.environ if environment is None else environment
    return {name: value for name, value in found.items() if name not in _OURS_ALONE}


async def _read(stream: asyncio.StreamReader | None, into: bytearray) -> None:
    most, end = MOST_OUTPUT_BYTES - _END_BYTES, bytearray()
    try:
        while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
            fits = max(0, most - len(into))
            into += chunk[:fits]
            end = (end + chunk[fits:])[-_END_BYTES:]
    finally:
        into += end


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the program and what it started, and wait for it; bounded, because a process in the kernel may not end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE_SECONDS):
                await process.wait()


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
