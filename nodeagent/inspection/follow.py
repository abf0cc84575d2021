"""Looks at a machine once, or again and again until it is done or has failed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agents.core.clock import Clock
from agents.core.errors import AgentError
from nodeagent.inspection import probes, state, status, status_text
from nodeagent.inspection.diagnose import Diagnosis, judge
from nodeagent.inspection.examination import Examined, examine
from nodeagent.inspection.machine import RealMachine
from nodeagent.inspection.status import Status
from nodeagent.paths import Paths
from systemd.states import UnitState

POLL = timedelta(seconds=1)


async def look(*, paths: Paths, config_dir: Path, clock: Clock, environment: Mapping[str, str]) -> Status:
    """Return the state of this machine now.

    Args:
        paths: where its files are.
        config_dir: directory of the agent's configuration.
        clock: for ages.
        environment: says where containerd listens.
    """
    found = await asyncio.to_thread(state.read, paths, config_dir)
    certificate = await asyncio.to_thread(status.read_certificate, paths, found.config, clock.now())
    async with RealMachine(paths=paths, state=found, clock=clock, environment=environment) as machine:
        answers = await probes.ask(machine)
    return status.gather(found, answers, certificate, now=clock.now())


@dataclass(frozen=True, slots=True)
class CloseLook:
    """A diagnosis with what a bundle has beside it."""

    diagnosis: Diagnosis
    status: Status
    units: Sequence[UnitState]


async def look_closely(*, paths: Paths, config_dir: Path, clock: Clock, environment: Mapping[str, str]) -> CloseLook:
    """Examine every link of the chain; arguments as in `look`."""
    found = await asyncio.to_thread(state.read, paths, config_dir)
    certificate = await asyncio.to_thread(status.read_certificate, paths, found.config, clock.now())
    async with RealMachine(paths=paths, state=found, clock=clock, environment=environment) as machine:
        answers = await probes.ask(machine)
        units = await _units(machine)
    examined = Examined(paths, config_dir, found, answers)
    diagnosis = judge(await examine(examined, clock=clock), now=clock.now())
    return CloseLook(diagnosis, status.gather(found, answers, certificate, now=clock.now()), units)


async def _units(machine: RealMachine) -> Sequence[UnitState]:
    try:
        async with asyncio.timeout(probes.DEADLINE.total_seconds()):
            return await machine.units.list_units()
    except (AgentError, TimeoutError):
        return ()  # the diagnosis says what is wrong with systemd


async def follow(
    gather: Callable[[], Awaitable[Status]], *, clock: Clock, timeout: timedelta, changed: Callable[[Status], None]
) -> Status:
    """Look until it is done or failed, or the time is over; returns what was seen last.

    Args:
        gather: looks once; has deadlines of its own.
        clock: for the timeout.
        timeout: longest wait.
        changed: told about the first state, and about each that reads differently from the one before.
    """
    end, before = clock.monotonic() + timeout.total_seconds(), ""
    while True:
        found = await gather()
        if (summary := status_text.summary(found)) != before:
            changed(found)
            before = summary
        left = end - clock.monotonic()
        if found.outcome in ("done", "failed") or left <= 0:
            return found
        await asyncio.sleep(min(POLL.total_seconds(), left))
