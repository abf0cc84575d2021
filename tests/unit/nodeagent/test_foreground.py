"""Progress of `apply --once`: one changing line on a terminal, lines elsewhere; and what is taken for a result."""

import asyncio
import io
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core import files
from agents.core.errors import FatalError
from nodeagent.foreground import (
    AGENT_UNIT,
    AgentRuns,
    Applied,
    Follower,
    Owner,
    Progress,
    Run,
    apply_once,
    environment_of_service,
)
from nodeagent.paths import Paths
from nodeagent.status import StatusBoard
from tests.support.clock import FakeClock
from tests.support.fake_systemd import ENVIRONMENT, FakeSystemd
from tests.support.systemd_behaviour import SIMPLE, connected


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_lines_elsewhere() -> None:
    """A line for each step that reads differently, without control characters; a name cannot steer the terminal."""
    stream = io.StringIO()
    progress = Progress(stream)
    for text in ("starting", "starting", "next: write file /a\x1b[2J"):
        progress.show(text)
    progress.close()
    assert stream.getvalue() == "starting\nnext: write file /a\\x1b[2J\n"


def test_one_line_on_a_terminal() -> None:
    """Each step takes the place of the one before; nothing is left of them; with `quiet` nothing is shown at all."""
    stream = Terminal()
    progress = Progress(stream)
    progress.show("starting")
    progress.show("x" * 1000)
    progress.close()
    shown = stream.getvalue().split("\r\x1b[K")
    assert (shown[0], shown[1], shown[3]) == ("", "starting", "")
    assert 0 < len(shown[2]) < 1000
    quiet = Terminal()
    Progress(quiet, quiet=True).show("starting")
    assert quiet.getvalue() == ""


def test_a_long_step_counts_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an image is pulled a terminal shows for how long; elsewhere it is one line."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    terminal, pipe = Terminal(), io.StringIO()
    for progress in (Progress(terminal), Progress(pipe)):
        for now[0] in (100.0, 100.4, 101.2, 101.4, 163.0):
            progress.show("1 item left, next: file /opt/bin/kubelet")
    assert terminal.getvalue().split("\r\x1b[K") == [
        "",
        "1 item left, next: file /opt/bin/kubelet",
        "1 item left, next: file /opt/bin/kubelet (1 s)",
        "1 item left, next: file /opt/bin/kubelet (63 s)",
    ]
    assert pipe.getvalue() == "1 item left, next: file /opt/bin/kubelet\n"


def paths_at(tmp_path: Path) -> Paths:
    """Return paths below a folder, with those for state made."""
    found = Paths(root=tmp_path)
    for folder in (found.base, found.status.parent):
        folder.mkdir(parents=True, exist_ok=True)
    return found


def follower_at(paths: Paths, clock: FakeClock) -> Follower:
    """Return one that looks there."""
    return Follower(paths, paths.base, clock)


async def apply(agent: Run, follower: Follower, *, seconds: float = 60.0) -> Applied:
    """Run an agent until there is a result."""
    owner = Owner(follower, report=lambda _: None)
    return await apply_once(agent, owner, Progress(io.StringIO()), timeout=timedelta(seconds=seconds))


async def run(follower: Follower, board: StatusBoard, *, seconds: float = 60.0, phase: str, checksum: str) -> Applied:
    """Follow an agent that says one thing of itself, and stays until it is asked to stop."""

    async def agent(owner: Owner) -> int:
        await board.phase(phase, checksum=checksum)
        await owner.shutdown.wait()
        return 0

    return await apply(agent, follower, seconds=seconds)


async def test_what_was_said_before_counts_no_more(tmp_path: Path, clock: FakeClock) -> None:
    """`applied`, said by an agent that ran before, is no result; said by ours it is."""
    paths = paths_at(tmp_path)
    files.write_atomic(paths.status, b'{"phase": "applied", "checksum": "old"}', mode=0o600)
    os.utime(paths.status, (1000, 1000))
    follower = follower_at(paths, clock)
    board = StatusBoard(path=paths.status, clock=clock, version="v1.150.0")
    assert await follower.look() == ("the agent is starting", None)
    found = await run(follower, board, phase="applied", checksum="new")
    assert (found.outcome, found.checksum, found.reason) == ("applied", "new", "")


async def test_nothing_that_will_be_tried_soon(tmp_path: Path, clock: FakeClock) -> None:
    """Failing without a next try, as for an OperatingSystemConfig that is invalid, is the result at once."""
    paths = paths_at(tmp_path)
    follower, board = follower_at(paths, clock), StatusBoard(path=paths.status, clock=clock, version="v1.150.0")
    await board.failing({"operating system config": "is not YAML"}, next_try=None)
    started = clock.monotonic()
    found = await run(follower, board, phase="failing", checksum="")
    assert found.outcome == "failed"
    assert [(one.item, one.cause, one.attempt) for one in found.failing] == [
        ("operating system config", "is not YAML", 1)
    ]
    assert clock.monotonic() - started < 5


async def test_the_time_is_over(tmp_path: Path, clock: FakeClock) -> None:
    """What is tried again soon is waited for; after the timeout it is in progress, with the cause."""
    paths = paths_at(tmp_path)
    follower, board = follower_at(paths, clock), StatusBoard(path=paths.status, clock=clock, version="v1.150.0")

    async def agent(owner: Owner) -> int:
        async with asyncio.TaskGroup() as group:
            failing = group.create_task(fail())
            await owner.shutdown.wait()
            failing.cancel()
        return 0

    async def fail() -> None:
        while True:
            await board.failing({"unit a.service": "failed"}, next_try=clock.now() + timedelta(seconds=1))
            await board.phase("failing")
            await asyncio.sleep(1)

    started = clock.monotonic()
    found = await apply(agent, follower, seconds=30)
    assert (found.outcome, found.reason) == ("inProgress", "not done after 30 s")
    assert found.failing[0].attempt > 20
    assert 29.9 < clock.monotonic() - started < 35


async def test_the_agent_ends_by_itself(tmp_path: Path, clock: FakeClock) -> None:
    """Its own unit changed: in progress, and what to do. An error: failed, with the error, which nobody repeats for ever."""
    paths = paths_at(tmp_path)
    board = StatusBoard(path=paths.status, clock=clock, version="v1.150.0")

    async def restarts(owner: Owner) -> int:
        await board.phase("restarting", checksum="new")
        owner.shutdown.request("own unit or one of its files changed")
        return 0

    async def breaks(owner: Owner) -> int:
        owner.say("error: port cannot be used (port=2751)")
        return 1

    async def cannot_start(_owner: Owner) -> int:
        raise FatalError("machine name is missing")

    found = await apply(restarts, follower_at(paths, clock))
    assert found.outcome == "inProgress"
    assert "own unit or one of its files changed" in found.reason
    assert "run the command again" in found.reason
    found = await apply(breaks, follower_at(paths, clock))
    assert (found.outcome, found.reason) == (
        "failed",
        "the agent ended with an error: port cannot be used (port=2751)",
    )
    found = await apply(cannot_start, follower_at(paths, clock))
    assert (found.outcome, found.reason) == ("failed", "the agent ended with an error: machine name is missing")


async def test_an_agent_that_cannot_begin(tmp_path: Path, clock: FakeClock) -> None:
    """It says nothing of itself until the timeout, because the API server is away or the Secret is not there: the next step is named."""

    async def waits(owner: Owner) -> int:
        await owner.shutdown.wait()
        return 0

    found = await apply(waits, follower_at(paths_at(tmp_path), clock), seconds=30)
    assert found.outcome == "inProgress"
    assert found.reason.startswith("not done after 30 s; the agent is starting")
    assert "gardener-node-agent diagnose" in found.reason


class Closed(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, _text: str) -> int:
        """Fail as a pipe does."""
        raise BrokenPipeError


async def test_nobody_looks_on(tmp_path: Path, clock: FakeClock) -> None:
    """A pipe for progress that breaks ends nothing: the agent goes on until it is asked to stop."""
    paths = paths_at(tmp_path)
    board, ended = StatusBoard(path=paths.status, clock=clock, version="v1.150.0"), []

    async def agent(owner: Owner) -> int:
        await asyncio.sleep(1)
        await board.phase("applied", checksum="new")
        ended.append(await owner.shutdown.wait())
        return 0

    owner = Owner(follower_at(paths, clock), report=lambda _: None)
    found = await apply_once(agent, owner, Progress(Closed()), timeout=timedelta(seconds=60))
    assert (found.outcome, ended) == ("applied", ["apply --once: applied"])


async def test_what_does_not_end_in_time(tmp_path: Path, clock: FakeClock) -> None:
    """Of an agent that is abandoned the result is printed as well, once, and the exit code is that of the result."""
    printed: list[Applied] = []
    codes: list[int] = []
    owner = Owner(follower_at(paths_at(tmp_path), clock), report=printed.append, end_process=codes.append)
    owner.shutdown.request("signal SIGINT")
    owner.abort(1)
    owner.abort(1)
    assert [(found.outcome, found.reason.split(";")[0]) for found in printed] == [
        ("inProgress", "stopped: signal SIGINT")
    ]
    assert codes == [2, 2]


async def test_the_environment_is_the_services(host: FakeSystemd) -> None:
    """What systemd would give the service, nothing of the shell's, also before there is a unit; beside a running service it is refused."""
    plain = dict(entry.split("=", 1) for entry in ENVIRONMENT)
    async with connected(host) as units:
        assert await environment_of_service(units) == plain
        unit = SIMPLE.replace("[Install]", "Environment=KUBECONFIG=/etc/own PATH=/opt/bin\n[Install]")
        host.write_unit(AGENT_UNIT, unit)
        assert await environment_of_service(units) == {**plain, "PATH": "/opt/bin", "KUBECONFIG": "/etc/own"}
        await units.start(AGENT_UNIT)
        with pytest.raises(AgentRuns, match="status --wait"):
            await environment_of_service(units)
