"""`apply --once`: the whole agent in the foreground, until what the cluster wants of this machine is applied; with its progress.

It is the agent itself that works, with its journal and its heartbeat; what it writes down about itself on the way (`nodeagent/paths.py`)
is read here and shown. An agent that runs as a service already does this work, so beside one there is nothing to do here. An item
that fails is tried again as always; when the next try is further away than `PATIENCE`, that is the result.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, TextIO

from pydantic import Field

from agents.core.clock import Clock
from agents.core.errors import TerminalError
from agents.core.shutdown import Shutdown
from agents.inspection.document import document
from agents.inspection.output import Style, printable
from nodeagent.inspection import state
from nodeagent.inspection.state import Board, State
from nodeagent.inspection.status import PHASES, Left, describe_left, left_of
from nodeagent.paths import Paths
from systemd.manager import SystemdUnitManager

Outcome = Literal["applied", "failed", "inProgress"]

AGENT_UNIT = "gardener-node-agent.service"
POLL = timedelta(milliseconds=100)
PATIENCE = timedelta(seconds=10)
EXIT_CODES = {"applied": 0, "failed": 1, "inProgress": 2}
_RUNNING = ("active", "activating", "reloading", "deactivating")
_FINISHED, _FAILING = "applied", "failing"


class AgentRuns(TerminalError):
    """The service does this work."""


@document
class Failing:
    """Something that could not be applied, or is waited for."""

    item: Annotated[str, Field(description="For example unit kubelet.service or file /etc/motd.")]
    cause: str
    attempt: Annotated[int, Field(description="From 1.")]


@document
class Applied:
    """What became of `apply --once`."""

    outcome: Annotated[Outcome, Field(description="Exit codes: applied 0, failed 1, inProgress 2.")]
    checksum: Annotated[
        str, Field(description="Of the OperatingSystemConfig, as reported on the Node; empty if none was seen.")
    ]
    seconds: Annotated[float, Field(description="From the start to the result.")]
    left: Annotated[int, Field(description="How many items of it are left to do.")]
    reason: Annotated[str, Field(description="Why it is not applied; empty if it is.")] = ""
    failing: tuple[Failing, ...] = ()


@dataclass(slots=True)
class Progress:
    """Shows each step: on a terminal in one line that changes, elsewhere as lines of their own.

    Attributes:
        stream: for progress, beside the result.
        quiet: whether the log is shown instead.
    """

    stream: TextIO
    quiet: bool = False
    _shown: str = ""

    def show(self, text: str) -> None:
        """Show a step, unless it reads as the one before."""
        text = printable(text)
        if self.quiet or text == self._shown:
            return
        self._shown = text
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r\x1b[K{text[:width]}")
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Leave the line."""
        if self._shown and self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()


@dataclass(slots=True)
class Follower:
    """Reads what the agent of this process writes down about itself.

    Attributes:
        paths: where that is.
        config_dir: directory of the configuration.
        clock: for the length of the work.
    """

    paths: Paths
    config_dir: Path
    clock: Clock
    _started: float = field(init=False)
    _before: datetime | None = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock.monotonic()
        # What an agent before us said of itself counts no more.
        self._before = self._read().board_written

    def _read(self) -> State:
        return state.read(self.paths, self.config_dir)

    async def look(self) -> tuple[str, Applied | None]:
        """Return what is being done, and the result if that is known."""
        found = await asyncio.to_thread(self._read)
        board = found.board if found.board_written != self._before else None
        if board is None:
            return PHASES["starting"], None
        left = _left(found)
        return _words(board, left), self._judge(board, len(left))

    async def give_up(self, reason: str) -> Applied:
        """Return the result of somebody who waits no longer."""
        found = await asyncio.to_thread(self._read)
        board, left = found.board or Board(), _left(found)
        again = f"; {PHASES['restarting']}: run the command again" if board.phase == "restarting" else ""
        return self._result("inProgress", board, len(left), f"{reason}{again}")

    def _judge(self, board: Board, left: int) -> Applied | None:
        if board.phase == _FINISHED and not left and not board.items:
            return self._result("applied", board, left)
        soon = self.clock.now() + PATIENCE
        if board.phase == _FAILING and not any(item.next_try and item.next_try < soon for item in board.items):
            return self._result("failed", board, left, "what is listed could not be applied")
        return None

    def _result(self, outcome: Outcome, board: Board, left: int, reason: str = "") -> Applied:
        return Applied(
            outcome=outcome,
            checksum=board.checksum,
            seconds=round(self.clock.monotonic() - self._started, 1),
            left=left,
            reason=reason,
            failing=tuple(Failing(item=one.name, cause=one.cause, attempt=one.attempt) for one in board.items),
        )


Run = Callable[[Shutdown], Awaitable[int]]
"""Runs the agent until it is asked to stop; returns its exit code."""


async def apply_once(run: Run, follower: Follower, progress: Progress, *, timeout: timedelta) -> Applied:
    """Run the agent until there is a result.

    Args:
        run: the agent.
        follower: looks at what it writes down.
        progress: shows that.
        timeout: after which it is stopped, wherever it is.
    """
    shutdown, seen = Shutdown(), _Seen()
    try:
        async with asyncio.TaskGroup() as group:
            follow = group.create_task(_follow(follower, progress, shutdown, seen, timeout), name="progress")
            code = await run(shutdown)
            follow.cancel()
    finally:
        progress.close()
    if seen.result is not None:
        return seen.result
    reason = "the agent ended with an error" if code else f"stopped: {shutdown.requested}"
    return await follower.give_up(reason)


@dataclass(slots=True)
class _Seen:
    result: Applied | None = None


async def _follow(follower: Follower, progress: Progress, shutdown: Shutdown, seen: _Seen, timeout: timedelta) -> None:
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            while True:
                step, result = await follower.look()
                progress.show(step)
                if result is not None:
                    break
                await asyncio.sleep(POLL.total_seconds())
    except TimeoutError:
        result = await follower.give_up(f"not done after {timeout.total_seconds():g} s")
    seen.result = result
    shutdown.request(f"apply --once: {result.outcome}")


async def refuse_beside_service(units: SystemdUnitManager) -> None:
    """Make sure that no agent runs as a service.

    Raises:
        AgentRuns: one does.
        AgentError: systemd cannot tell.
    """
    found = await units.unit(AGENT_UNIT)
    if found is not None and found.active_state in _RUNNING:
        raise AgentRuns(
            "the agent runs as a service and applies everything itself; 'gardener-node-agent status --wait' follows it",
            unit=AGENT_UNIT,
            state=found.active_state,
        )


def lines(found: Applied, style: Style) -> list[str]:
    """Return the result for people."""
    took = f"after {found.seconds:g} s"
    if found.outcome == "applied":
        return [f"{style('applied', 'green')} {found.checksum[:12]} {took}"]
    colour, word = ("red", "failed") if found.outcome == "failed" else ("yellow", "in progress")
    head = f"{style(word, colour)} {took}: {found.reason}; {_items(found.left)} left"  # type: ignore[arg-type]
    return [
        head,
        *(f"  {printable(one.item)}: {printable(one.cause)} (attempt {one.attempt})" for one in found.failing),
    ]


def _left(found: State) -> list[Left]:
    return list(left_of(found.pending)) if found.pending is not None and found.pending.unfinished else []


def _items(count: int) -> str:
    return f"{count} item{'' if count == 1 else 's'}"


def _words(board: Board, left: Sequence[Left]) -> str:
    failing = "".join(f"; {item.name} failed, attempt {item.attempt}" for item in board.items[:1])
    if not left:
        return f"{PHASES.get(board.phase, board.phase)}{failing}"
    return f"{_items(len(left))} left, next: {describe_left(left[0])}{failing}"
