"""The state of a unit, as systemd tells it.

Signatures: org.freedesktop.systemd1(5).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from systemd.bus import Variant

CHANGED_MONOTONIC = "StateChangeTimestampMonotonic"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd knows of a unit. A unit that it does not know has the load state `not-found`."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    unit_file_state: str = ""
    fragment_path: str = ""
    """The unit file that is in effect; empty if there is none."""
    result: str = ""
    """Why a service ended, `success` if well; empty for other kinds of units."""
    job: str | None = None
    """Object path of the job that is queued or running for it."""
    needs_reload: bool = False
    state_changed: datetime | None = None
    changed_monotonic: float | None = None
    """When its state changed, in seconds of the monotonic clock, which nobody sets."""
    invocation_id: str = ""

    @property
    def description(self) -> str:
        """State in words for operators."""
        parts = [f"{self.active_state}/{self.sub_state}"]
        if self.load_state not in ("loaded", ""):
            parts.append(f"load state {self.load_state}")
        if self.result not in ("", "success"):
            parts.append(f"result {self.result}")
        return ", ".join(parts)


def plain(value: object) -> object:
    """Return what a D-Bus variant holds."""
    return value.value if isinstance(value, Variant) else value


def sequence(value: object) -> Sequence[object]:
    """Return a D-Bus structure or array; an empty one for anything else."""
    return value if isinstance(value, list | tuple) else ()


def read_row(row: object) -> UnitState:
    """Read a row of ListUnits: `(ssssssouso)`."""
    name, _, load_state, active_state, sub_state, _, _, job_id, _, job = sequence(row)
    return UnitState(str(name), str(load_state), str(active_state), str(sub_state), job=str(job) if job_id else None)


def seconds(value: object) -> float | None:
    """Read a time in microseconds; systemd says 0 for never."""
    return value / 1_000_000 if isinstance(value, int) and value else None


def read_state(name: str, found: Mapping[str, object], result: str) -> UnitState:
    """Read the properties of a unit; `result` is that of a service."""
    job = sequence(found.get("Job"))
    changed = found.get("StateChangeTimestamp")
    invocation = found.get("InvocationID")
    return UnitState(
        name=name,
        load_state=str(found.get("LoadState", "")),
        active_state=str(found.get("ActiveState", "")),
        sub_state=str(found.get("SubState", "")),
        unit_file_state=str(found.get("UnitFileState", "")),
        fragment_path=str(found.get("FragmentPath", "")),
        result=result,
        job=str(job[1]) if job and job[0] else None,
        needs_reload=bool(found.get("NeedDaemonReload")),
        changed_monotonic=seconds(found.get(CHANGED_MONOTONIC)),
        state_changed=_EPOCH + timedelta(microseconds=changed) if isinstance(changed, int) and changed else None,
        invocation_id=bytes(invocation).hex() if isinstance(invocation, bytes) else "",
    )
