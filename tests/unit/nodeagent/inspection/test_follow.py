"""`status --wait`: looks until it is done or failed, and no longer than it was told to."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from nodeagent.inspection import status
from nodeagent.inspection.follow import follow
from nodeagent.inspection.probes import Answers
from nodeagent.inspection.state import State
from nodeagent.inspection.status import Certificate, Outcome, Status
from tests.support.clock import EPOCH, FakeClock

EMPTY = status.gather(State(), Answers(), Certificate(), now=EPOCH)


async def followed(
    clock: FakeClock, *outcomes: tuple[Outcome, str], seconds: float = 60, each: float = 0
) -> tuple[Status, Sequence[str], float]:
    """Follow a machine that shows these outcomes, the last one for ever; returns what was told, and how long it took."""
    looks, told = iter(outcomes), list[str]()

    async def gather() -> Status:
        await asyncio.sleep(each)
        outcome, reason = next(looks, outcomes[-1])
        return replace(EMPTY, outcome=outcome, reasons=(reason,))

    start = clock.monotonic()
    found = await follow(
        gather,
        clock=clock,
        timeout=timedelta(seconds=seconds),
        changed=lambda state: told.append(f"{state.outcome} {state.reasons[0]}"),
    )
    return found, told, clock.monotonic() - start


@pytest.mark.parametrize("end", ["done", "failed"])
async def test_it_ends_with_done_and_with_failed(clock: FakeClock, end: Outcome) -> None:
    """What is in progress or degraded is followed, once a second; each change is told once."""
    story: list[tuple[Outcome, str]] = [("inProgress", "a"), ("inProgress", "a"), ("degraded", "b"), (end, "c")]
    found, told, seconds = await followed(clock, *story)
    assert found.outcome == end
    assert told == ["inProgress a", "degraded b", f"{end} c"]
    assert seconds == 3


async def test_it_ends_when_the_time_is_over(clock: FakeClock) -> None:
    """The last state is returned, with its exit code 2."""
    found, told, seconds = await followed(clock, ("inProgress", "a"), seconds=5.5)
    assert (found.outcome, told, seconds) == ("inProgress", ["inProgress a"], 5.5)
    assert status.exit_code(found) == 2


async def test_without_time_it_looks_once(clock: FakeClock) -> None:
    """`--timeout 0` is no wait, and still a look."""
    assert (await followed(clock, ("degraded", "a"), ("done", "b"), seconds=0))[0].outcome == "degraded"


async def test_looks_that_take_long_are_not_repeated_after_the_end(clock: FakeClock) -> None:
    """Time that a look takes counts."""
    assert (await followed(clock, ("degraded", "a"), seconds=5, each=4))[2] == 9
