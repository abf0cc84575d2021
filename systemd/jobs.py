"""Jobs of systemd: what was asked for, and how it ended."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from systemd.states import UnitState

Command = Literal["start", "stop", "restart"]

Queued = Callable[[str], None]
"""Told systemd's name of a job, right after it was queued."""


class JobOutcome(StrEnum):
    """How a job ended; the names are systemd's, but for `pending`."""

    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    DEPENDENCY = "dependency"
    SKIPPED = "skipped"
    PENDING = "pending"
    """It has not ended in the time that we wait."""


OUTCOMES = {outcome.value: outcome for outcome in JobOutcome if outcome is not JobOutcome.PENDING}
"""Those that systemd reports, by its name for them."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What became of a job; `reason` describes the unit's state where the outcome is not `done`."""

    unit: str
    command: Command
    outcome: JobOutcome
    reason: str = ""
    job: str = ""


def inferred(report: JobReport, state: UnitState) -> JobReport:
    """Judge by the unit's state how a job ended whose signal was lost."""
    if state.job is not None:
        return replace(report, outcome=JobOutcome.CANCELED, reason=f"another job took its place, {state.description}")
    if report.command == "stop":
        good = state.active_state in ("inactive", "failed")
    else:
        good = state.active_state in ("active", "reloading", "inactive") and state.result in ("", "success")
    if good:
        return replace(report, outcome=JobOutcome.DONE, reason="")
    return replace(report, outcome=JobOutcome.FAILED, reason=state.description)
