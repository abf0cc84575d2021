"""Report on the Node whether the units of the last applied OSC are in the state that they should be in.

Source: gardener pkg/nodeagent/controller/systemdunitcheck (contract 7.8; 9 W9, W40, W42).
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agents.core import files
from agents.core.clock import Clock
from agents.core.duration import format_duration
from agents.core.errors import TerminalError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.models import NODES, Node, find_condition
from agents.kube.patch import strategic
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import created
from agents.runtime.reconcile import Persistent, Request, Result
from nodeagent.config import SystemdUnitCheck
from nodeagent.host.node_identity import NodeIdentity, OwnNodeSource
from osc.codec import decode_document, load_state
from osc.types import OperatingSystemConfig
from systemd.manager import UnitManager
from systemd.states import UnitState

log = get_logger(__name__)

CONTROLLER = "systemd-unit-check"
CONDITION = "SystemdUnitsReady"
ALL_WELL = "every unit of the operating system config is as it should be"
_LONGEST_MESSAGE = 16 * 1024
_Version = tuple[int, int, int]
_CHANGING = ("activating", "deactivating")


@dataclass(frozen=True, slots=True, order=True)
class ManagedUnit:
    """A unit of the OSC, and whether it should run."""

    name: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a unit, or only not finished yet."""

    message: str
    healthy: bool


def managed_units(config: OperatingSystemConfig) -> tuple[ManagedUnit, ...]:
    """Return the units of an OSC by name; of two with one name the later one counts only if it says `enable`."""
    found: dict[str, bool] = {}
    for unit in (*config.spec.units, *config.status.extension_units):
        if unit.enable is not None:
            found[unit.name] = unit.enable
        else:
            found.setdefault(unit.name, unit.content is not None or bool(unit.drop_ins))
    return tuple(ManagedUnit(name, found[name]) for name in sorted(found))


def needs_age(state: UnitState) -> bool:
    """Tell whether the verdict depends on how long a unit has been in its state; one that waits for its next run is well."""
    return state.active_state in _CHANGING and state.sub_state != "auto-restart"


def judge(
    unit: ManagedUnit, state: UnitState | None, *, age: timedelta, at_rest: bool, stuck: timedelta
) -> Verdict | None:
    """Return what is to be said about a unit, None if nothing is.

    Args:
        unit: what it should be.
        state: what it is; None if systemd has no state for it.
        age: how long it has been so; read only if `needs_age`.
        at_rest: an inactive one has done its work, or waits for its trigger.
        stuck: from which age on a change of state counts as stuck.
    """
    if state is None or state.load_state == "not-found":
        return _wrong(unit, "not loaded") if unit.enabled else None
    if needs_age(state):
        cut = format_duration(timedelta(seconds=int(age.total_seconds())))
        if age >= stuck:
            return _wrong(unit, f"stuck in {state.active_state} for {cut}")
        return Verdict(f"{unit.name}: {state.active_state} for {cut}", healthy=True)
    if state.active_state == "active" and not unit.enabled:
        return _wrong(unit, "active but should be disabled")
    if state.active_state == "failed" and unit.enabled:
        return _wrong(unit, "failed")
    if state.active_state == "inactive" and unit.enabled and not (at_rest and state.sub_state == "dead"):
        return _wrong(unit, "inactive but should be enabled")
    return None


def _wrong(unit: ManagedUnit, what: str) -> Verdict:
    return Verdict(f"{unit.name}: {what}", healthy=False)


def condition(verdicts: Iterable[Verdict]) -> tuple[str, str, str]:
    """Return status, reason and message of the condition."""
    said = list(verdicts)
    if wrong := [verdict.message for verdict in said if not verdict.healthy]:
        return "False", "UnhealthyUnits", "; ".join(wrong)[:_LONGEST_MESSAGE]
    if said:
        return "True", "ProgressingUnits", "; ".join(verdict.message for verdict in said)[:_LONGEST_MESSAGE]
    return "True", "AllUnitsHealthy", ALL_WELL


class LastApplied:
    """The units of the last applied OSC, read again only when the file is another one: decoding 500 KiB takes 15 ms.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: _Version | None = None
        self._units: tuple[ManagedUnit, ...] | None = None

    def units(self) -> tuple[ManagedUnit, ...] | None:
        """Return the units, None if there is no such file or it is damaged (its owner mends it); blocks on the disk."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            self._seen = self._units = None
            return None
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._seen:
            self._units, self._seen = self._read(version)
        return self._units

    def _read(self, version: _Version) -> tuple[tuple[ManagedUnit, ...] | None, _Version | None]:
        """Return the units, and which version of the file that was; none if it could not be read and is to be read again."""
        try:
            content = files.read_optional(self._path)
            return None if content is None else managed_units(decode_document(load_state(content)).config), version
        except (files.FileError, TerminalError) as error:
            log.error("Last applied operating system config unreadable, units not checked", error=error)
            return None, version if isinstance(error, TerminalError) else None


class SystemdUnitCheckReconciler:
    """Looks at all units and writes one condition."""

    def __init__(
        self,
        *,
        client: Client,
        nodes: Informer[Node],
        units: UnitManager,
        clock: Clock,
        last_applied: Path,
        config: SystemdUnitCheck,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._units = units
        self._clock = clock
        self._last_applied = LastApplied(last_applied)
        self._config = config

    async def reconcile(self, request: Request) -> Result:
        """Report; nothing is reported before an OSC was applied, nor when systemd cannot be asked."""
        node = self._nodes.get(request)
        if node is None:
            return Result()
        managed = await asyncio.to_thread(self._last_applied.units)
        if managed is not None:
            status, reason, message = condition(await self._verdicts(managed))
            await self._report(node, status, reason, message)
        return Result(requeue_after=self._config.sync_period)

    async def _verdicts(self, managed: Sequence[ManagedUnit]) -> list[Verdict]:
        states = await self._units.states([unit.name for unit in managed])
        found = [await self._judge(unit, states.get(unit.name)) for unit in managed if not _is_template(unit.name)]
        return [verdict for verdict in found if verdict is not None]

    async def _judge(self, unit: ManagedUnit, state: UnitState | None) -> Verdict | None:
        age, at_rest = timedelta(0), False
        if state is not None and needs_age(state):
            changed = await self._units.last_change(unit.name)
            age = timedelta(seconds=max(0.0, self._clock.monotonic() - changed)) if changed is not None else age
        elif state is not None and state.active_state == "inactive" and unit.enabled:
            at_rest = await self._is_at_rest(unit.name, state)
        return judge(unit, state, age=age, at_rest=at_rest, stuck=self._config.stuck_threshold)

    async def _is_at_rest(self, name: str, state: UnitState) -> bool:
        """Tell whether an inactive unit is one that ran to its end, or that something else starts when it is needed."""
        if state.load_state == "not-found" or state.sub_state != "dead":
            return False
        if name.endswith(".service") and await self._units.service_type(name) == "oneshot":
            return True
        return bool(await self._units.triggered_by(name))

    async def _report(self, node: Node, status: str, reason: str, message: str) -> None:
        """Patch this condition alone, whatever the kubelet has written since we read the Node."""
        now = _time(self._clock.now())
        before = find_condition(node.status.conditions, CONDITION)
        kept = before.last_transition_time if before is not None and before.status == status else ""
        if before is None or before.status != status:
            log.info("Condition changed", condition=CONDITION, status=status, reason=reason, message=message[:256])
        document = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": kept or now,
        }
        patch = strategic({"status": {"conditions": [document]}})
        await self._client.patch(NODES, node.metadata.name, patch, subresource="status")


def _is_template(name: str) -> bool:
    """Tell whether a unit file only serves to make units from; such a one has no state."""
    return name.rpartition(".")[0].endswith("@")


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_controller(
    *,
    client: Client,
    nodes: Informer[Node],
    identity: NodeIdentity,
    units: UnitManager,
    clock: Clock,
    last_applied: Path,
    config: SystemdUnitCheck,
) -> Controller:
    """Build the controller; `last_applied` is the file whose units are looked at."""
    reconciler = SystemdUnitCheckReconciler(
        client=client, nodes=nodes, units=units, clock=clock, last_applied=last_applied, config=config
    )
    return Controller(
        name=CONTROLLER,
        reconciler=Persistent(reconciler),
        sources=[OwnNodeSource(identity, predicate=created)],
        deadline=config.sync_period,
        max_backoff=config.sync_period,
    )
