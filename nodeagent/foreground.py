"""`apply --once`: the whole agent in the foreground, until what the cluster wants of this machine is applied; with its progress.

It is the agent itself that works, with its journal and its heartbeat; what it writes down about itself on the way (`nodeagent/paths.py`)
is read here and shown. An agent that runs as a service already does this work, so beside one there is nothing to do here. An item
that fails is tried again as always; when the next try is further away than `PATIENCE`, that is the result.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, TextIO

from pydantic import Field

from agents.core.clock import Clock
from agents.core.errors import AgentError, TerminalError
from agents.core.shutdown import Shutdown
from agents.inspection.document import document
from agents.inspection.output import Style, printable
from nodeagent.inspection import state
from nodeagent.inspection.state import Board, State
from nodeagent.inspection.status import PHASES, Left, describe_left, left_of
from nodeagent.paths import Paths
from systemd.manager import UnitManager

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

    Nobody needs to look on: what cannot be shown, because the reader of a pipe has gone, ends nothing.

    Attributes:
        stream: for progress, beside the result.
        quiet: whether the log is shown instead.
    """

    stream: TextIO
    quiet: bool = False
    _shown: str = ""
    _step: str = ""
    _since: float = 0.0

    def show(self, text: str) -> None:
        """Show a step, unless it reads as the one before; on a terminal also for how long it lasts, as the pull of an image may."""
        text = printable(text)
        if text != self._step:
            self._step, self._since = text, time.monotonic()
        terminal = self.stream.isatty()
        if terminal and (seconds := int(time.monotonic() - self._since)):
            text = f"{text} ({seconds} s)"
        if self.quiet or text == self._shown:
            return
        self._shown = text
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{text[:width]}")
        else:
            self._write(f"{text}\n")

    def close(self) -> None:
        """Leave the line."""
        if self._shown and self.stream.isatty():
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            self.quiet = True


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

    def give_up(self, reason: str, outcome: Outcome = "inProgress") -> Applied:
        """Return the result of somebody who waits no longer."""
        found = self._read()
        # What an agent before us said of itself is no reason of ours.
        board = found.board if found.board is not None and found.board_written != self._before else Board()
        hint = ""
        if board.phase == "restarting":
            hint = f"; {PHASES['restarting']}: run the command again"
        elif outcome == "inProgress" and board.phase in ("", "starting"):
            hint = f"; {PHASES['starting']}, and 'gardener-node-agent diagnose' finds out what it waits for"
        return self._result(outcome, board, len(_left(found)), f"{reason}{hint}")

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


@dataclass(slots=True)
class Owner:
    """Owns the agent of this process, see `nodeagent.app.Owner`.

    Attributes:
        follower: looks at what the agent writes down.
        report: prints a result.
        end_process: ends the process at once, with an exit code.
        shutdown: ends the agent.
        errors: with which it ended by itself.
        result: once it is known.
    """

    follower: Follower
    report: Callable[[Applied], None]
    end_process: Callable[[int], None] = os._exit
    shutdown: Shutdown = field(default_factory=Shutdown)
    errors: list[str] = field(default_factory=list)
    result: Applied | None = None
    _reported: bool = False

    def say(self, line: str) -> None:
        """Keep an error for the result."""
        self.errors.append(line.removeprefix("error: "))

    def abort(self, code: int) -> None:
        """End the process although something of the agent still runs; what is known by now is the result."""
        self.end_process(self.finish(self.result or self.ended(code)))

    def finish(self, found: Applied) -> int:
        """Print the result, unless that was done; returns the exit code."""
        if not self._reported:
            self._reported = True
            self.report(found)
        return EXIT_CODES[found.outcome]

    def ended(self, code: int) -> Applied:
        """Return the result of an agent that ended, with a code, before there was one."""
        if self.errors:
            return self.follower.give_up(f"the agent ended with an error: {'; '.join(self.errors)}", "failed")
        if self.shutdown.requested is None:
            return self.follower.give_up(f"the agent ended with code {code}", "failed")
        return self.follower.give_up(f"stopped: {self.shutdown.requested}")


Run = Callable[[Owner], Awaitable[int]]
"""Runs the agent until it is asked to stop; returns its exit code."""


async def apply_once(run: Run, owner: Owner, progress: Progress, *, timeout: timedelta) -> Applied:
    """Run the agent until there is a result.

    Args:
        run: the agent.
        owner: of it.
        progress: shows what it is doing.
        timeout: after which it is stopped, wherever it is.

    Raises:
        AgentError: the agent cannot be started.
    """
    try:
        async with asyncio.TaskGroup() as group:
            follow = group.create_task(_follow(owner, progress, timeout), name="progress")
            try:
                code = await run(owner)
            except AgentError as error:
                # Not out of the group, which would wrap it.
                owner.say(str(error))
                code = 1
            follow.cancel()
    finally:
        progress.close()
    if owner.result is None:
        owner.result = await asyncio.to_thread(owner.ended, code)
    return owner.result


async def _follow(owner: Owner, progress: Progress, timeout: timedelta) -> None:
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            while True:
                step, result = await owner.follower.look()
                progress.show(step)
                if result is not None:
                    break
                await asyncio.sleep(POLL.total_seconds())
    except TimeoutError:
        result = await asyncio.to_thread(owner.follower.give_up, f"not done after {timeout.total_seconds():g} s")
    owner.result = result
    owner.shutdown.request(f"apply --once: {result.outcome}")


async def environment_of_service(units: UnitManager) -> dict[str, str]:
    """Return the environment that the service would have: what the operator's shell has is not the agent's.

    Another KUBECONFIG leads elsewhere, another PATH restarts containerd, another namespace of containerd is the kubelet's.

    Raises:
        AgentRuns: the service runs; two agents are too many.
        AgentError: systemd cannot tell.
    """
    found = await units.unit(AGENT_UNIT)
    if found.active_state in _RUNNING:
        raise AgentRuns(
            "the agent runs as a service and applies everything itself; 'gardener-node-agent status --wait' follows it",
            unit=AGENT_UNIT,
            state=found.active_state,
        )
    return await units.environment(AGENT_UNIT)


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
