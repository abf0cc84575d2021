"""Other programs: real ones, in real time."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core import process
from agents.core.process import ProcessError, ProcessTimeout
from tests.lab.api import wait_for

LONG = timedelta(seconds=30)


async def gone(pid_file: Path) -> bool:
    """Tell whether the process whose id is in a file ends, waiting a little for the kernel."""
    stat = Path(f"/proc/{int(pid_file.read_text())}/stat")

    def ended() -> bool:
        return not stat.exists() or stat.read_text().split()[2] == "Z"

    return await asyncio.to_thread(wait_for, ended, timeout=5, what="the process to end", interval=0.01)


async def test_output_and_exit_code_come_back() -> None:
    """Both streams and the exit code are returned; without `check` a failure is no error."""
    done = await process.run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline=LONG, check=False)
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


@pytest.mark.parametrize(
    ("script", "problem"),
    [("echo no room >&2; exit 7", "exit code 7"), ("echo no room >&2; kill -9 $$", "ended by SIGKILL")],
)
async def test_a_failure_names_command_ending_and_what_was_said(script: str, problem: str) -> None:
    """The error has the command, how it ended and the end of its output."""
    with pytest.raises(ProcessError) as caught:
        await process.run(["sh", "-c", script], deadline=LONG)
    assert caught.value.fields["problem"] == problem
    assert caught.value.fields["output"] == "no room"


async def test_a_program_that_is_not_there_is_an_ordinary_failure() -> None:
    """A missing program names itself and the reason."""
    with pytest.raises(ProcessError, match=r"no-such-program.*No such file"):
        await process.run(["no-such-program"], deadline=LONG)


@pytest.mark.parametrize("argument", ["a\0b", "\ud800"])
async def test_an_argument_that_no_program_can_be_given_is_an_ordinary_failure(argument: str) -> None:
    """A NUL, or half of a character, is no unexpected error."""
    with pytest.raises(ProcessError, match="program not started"):
        await process.run(["true", argument], deadline=LONG)


async def test_output_is_bounded() -> None:
    """Contract 9 W36: 10 MiB of output are read, so that the program ends, and thrown away but for one: beginning and end."""
    script = "echo begin; head -c 10485760 /dev/zero; echo; echo last; echo end >&2; exit 1"
    done = await process.run(["sh", "-c", script], deadline=LONG, check=False)
    assert len(done.stdout) == 1024 * 1024
    assert (done.stdout[:6], done.stdout[-6:]) == (b"begin\n", b"\nlast\n")
    assert done.text() == "end"


async def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """Contract 9 W25: after the deadline neither the program nor its child runs; the error has what it had said."""
    script = f"sleep 600 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; echo waiting; wait"
    with pytest.raises(ProcessTimeout, match=r"did not end in time.*waiting"):
        await process.run(["sh", "-c", script], deadline=timedelta(seconds=0.5))
    assert await gone(tmp_path / "child")
    assert await gone(tmp_path / "self")


async def test_a_cancelled_caller_leaves_nothing_running(tmp_path: Path) -> None:
    """When whoever waits is cancelled, the program and its child end before the cancellation is felt."""
    script = f"sleep 600 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self.part; mv {tmp_path}/self.part {tmp_path}/self; wait"
    async with asyncio.TaskGroup() as group:
        task = group.create_task(process.run(["sh", "-c", script], deadline=LONG))
        await asyncio.to_thread(wait_for, (tmp_path / "self").exists, timeout=10, what="the start", interval=0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await gone(tmp_path / "child")
    assert await gone(tmp_path / "self")


def test_what_concerns_us_alone_is_not_inherited() -> None:
    """Contract 6.14: our PATH goes on unchanged; what systemd told this process does not."""
    assert process.inherited_environment({"PATH": "/bin", "NOTIFY_SOCKET": "/run/x"}) == {"PATH": "/bin"}
    assert process.inherited_environment()["PATH"] == os.environ["PATH"]
