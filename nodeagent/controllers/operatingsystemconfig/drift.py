"""What somebody else changed of files and units that are ours: seen, said once, and put right within limits.

A unit is restarted only if it may have been started with what was wrong, and at most three times an hour, whoever of us restarted
it and however often we were started meanwhile; everything else is put right without touching what runs. Where somebody set the clock and the
order of change and start is open, it may have been. What comes back again and again is left as it is after six repairs within an hour,
and said so: two who both want the last word must not wear out the disk. Files that the OSC does not name are never looked at.

Source: contract 9 W14; the rest is ours.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.files import FileError
from agents.core.logging import get_logger
from nodeagent.controllers.operatingsystemconfig.containerd import BrokenConfig, ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.preparation import dirty_of
from nodeagent.host.clock_offsets import ClockOffsets
from nodeagent.host.consistency import Finding, changed_at, inspect
from nodeagent.host.extracted_files import ExtractedFiles
from nodeagent.host.restart_budget import RestartBudget
from osc.containerd import CONFIG_FILE, CONTAINERD_UNIT
from osc.diff import Changes, Dirty
from osc.merge import Effective
from osc.types import OWN_UNIT, Unit
from systemd.manager import UnitManager
from systemd.states import UnitState
from systemd.unitfiles import UnitFiles

log = get_logger(__name__)

WINDOW = timedelta(hours=1)
MOST_REPAIRS = 6
"""Of one item within the window."""
MOST_RESTARTS = 3
"""Of one unit within the window."""
MASKED = "UnitMasked"
_ENABLED = frozenset({"enabled", "enabled-runtime"})
_MASKED = frozenset({"masked", "masked-runtime"})
_OF_UNIT_FILES = frozenset({"UnitFileMissing", "UnitMismatch"})

Done = Literal["repaired", "left", "reported"]
_ACTIONS: Mapping[Done, str] = {
    "repaired": "put right",
    "left": f"left as it is: put right {MOST_REPAIRS} times within an hour",
    "reported": "only reported",
}

Report = Callable[[Finding, str], None]
"""Called once for each item that drifted, with what is done about it."""


class Drift:
    """Looks after what was applied.

    Args:
        repair: False if drift is only to be reported.
        units: asked for enablement, and since when a unit runs.
        containerd: looks at containerd's configuration and files of registries.
        extracted: looks at files out of images.
        secret_digests: returns, by path, those of what was written out of Secrets; may block.
        report: told about each item once.
        clock: for the limits, and to tell what was before what.
        budget: of restarts, also for other reasons.
        root: where the machine's file system starts.
    """

    def __init__(
        self,
        *,
        repair: bool,
        units: UnitManager,
        containerd: ContainerdFiles,
        extracted: ExtractedFiles,
        secret_digests: Callable[[], Mapping[str, str]],
        report: Report,
        clock: Clock,
        budget: RestartBudget,
        root: Path,
    ) -> None:
        self._repair = repair
        self._units = units
        self._containerd = containerd
        self._extracted = extracted
        self._secret_digests = secret_digests
        self._report = report
        self._clock = clock
        self._root = root
        self._unit_files = UnitFiles(root=root)
        self._offsets = ClockOffsets(clock)
        self._looked: float | None = None
        """When everything was looked at last."""
        self._wrong: set[str] = set()
        """What was wrong then or since."""
        self._refused: set[str] = set()
        """Units whose last restart for drift was one too many."""
        self._suspects: set[str] = set()
        self._known: dict[str, tuple[str | None, Done]] = {}
        self._repairs = _Allowance(MOST_REPAIRS, clock)
        self._budget = budget
        self.totals = Counter(repaired=0, left=0, reported=0)
        """Drifted items by what was done about them, for metrics."""

    def suspect(self, path: str) -> None:
        """Have the next look see after this path alone."""
        self._suspects.add(path)

    @property
    def suspecting(self) -> bool:
        """Whether the next look is about suspects alone."""
        return bool(self._suspects)

    async def look(self, applied: Effective, *, coming: Collection[str] = (), decided: Collection[str] = ()) -> Dirty:
        """Return what has to be put right: of the suspects if there are any, else of everything.

        Args:
            applied: what is looked at.
            coming: paths of files that are still to be brought: not looked at, and what is known of them is kept.
            decided: units that get a job in any case.
        """
        self._offsets.note()
        suspects, self._suspects = self._suspects, set()
        try:
            return await self._look(applied, suspects, coming, decided)
        except BaseException:
            self._suspects |= suspects  # what could not be looked at is suspected still
            raise

    async def _look(
        self, applied: Effective, suspects: set[str], coming: Collection[str], decided: Collection[str]
    ) -> Dirty:
        began = self._clock.monotonic()
        wanted = _only(applied, suspects) if suspects else applied
        findings = await self._on_disk(wanted)
        if not suspects:
            await asyncio.to_thread(self._extracted.keep_only, {*wanted.files_by_path(), *coming})
            findings += await self._enablement(wanted.units)
            findings += await asyncio.to_thread(lambda: list(self._registries(wanted)))
            findings += await self._containerd_config(wanted)
        found = _distinct(findings)
        dirty = await self._judge(found, applied, suspects or None, decided)
        wrong = {finding.item for finding in found} | self._wrong.intersection(coming)
        self._wrong = wrong | self._wrong if suspects else wrong
        self._looked = self._looked if suspects else began
        return dirty

    async def reconsider(self, wanted: Effective, left: Changes, *, decided: Collection[str]) -> Dirty:
        """Decide again about units that were not to be restarted for what is still not put right: one may have been started with it since.

        Args:
            wanted: what is being applied.
            left: what that has still to do.
            decided: units that get a job in any case.
        """
        wrong = {file.path for file in left.files_changed} | ({CONFIG_FILE} if left.containerd_config else set())
        units = {change.unit.name for change in left.units_changed}
        users = {name: paths & wrong for name, paths in _users(wanted).items() if name not in decided}
        users = {name: paths for name, paths in users.items() if paths or name in units}
        if not users:
            return Dirty()
        paths = frozenset[str]().union(*users.values())
        findings = await self._on_disk(_parts(wanted, paths, users.keys() & units))
        findings += await self._containerd_config(wanted) if CONFIG_FILE in paths else []
        self._wrong |= {finding.item for finding in findings}
        restarted = [name for name, about in _by_unit(findings, users) if await self._restart(name, about, again=True)]
        return Dirty(restarted=frozenset(restarted))

    async def _on_disk(self, wanted: Effective) -> list[Finding]:
        findings = await asyncio.to_thread(
            lambda: list(
                inspect(
                    wanted,
                    loaded_units=None,
                    with_modes=True,
                    secret_digests=self._secret_digests(),
                    root=self._root,
                )
            )
        )
        return findings + await asyncio.to_thread(lambda: list(self._extracted.changed(wanted.files)))

    async def _enablement(self, units: Iterable[Unit]) -> list[Finding]:
        found: list[Finding] = []
        for unit in units:
            try:
                state = await self._units.unit_file_state(unit.name)
            except AgentError as error:
                log.debug("Unit not looked at", unit=unit.name, error=error)
                continue
            enabled = unit.enable is not False or unit.name == OWN_UNIT
            if enabled and state in _MASKED:
                found.append(Finding(MASKED, f"unit {unit.name} is masked", unit=unit.name))
            elif enabled and state == "disabled":
                found.append(Finding("UnitEnableMismatch", f"unit {unit.name} is not enabled", unit=unit.name))
            elif not enabled and state in _ENABLED:
                found.append(Finding("UnitEnableMismatch", f"unit {unit.name} is enabled", unit=unit.name))
        return found

    def _registries(self, applied: Effective) -> Iterable[Finding]:
        for upstream, registry in applied.registries_by_upstream().items():
            if not self._containerd.has_registry(registry):
                yield Finding("RegistryMismatch", f"hosts.toml of registry {upstream} differs", registry=upstream)

    async def _containerd_config(self, applied: Effective) -> list[Finding]:
        """Look at containerd's configuration; a containerd that does not answer is no drift."""
        if applied.runtime is None:
            return []
        try:
            if not await self._containerd.differs(applied.runtime):
                return []
        except (BrokenConfig, FileError) as error:
            return [Finding("ContainerdConfigBroken", f"{error}")]
        except AgentError as error:
            log.debug("Configuration of containerd not looked at", error=error)
            return []
        changed = await asyncio.to_thread(changed_at, self._root / CONFIG_FILE.lstrip("/"))
        message = f"configuration of containerd in {CONFIG_FILE} differs"
        return [Finding("ContainerdConfigMismatch", message, path=CONFIG_FILE, changed_at=changed, definition=True)]

    async def _judge(
        self, findings: list[Finding], applied: Effective, looked_at: set[str] | None, decided: Collection[str]
    ) -> Dirty:
        seen = {_key(finding) for finding in findings}
        for key, (path, _action) in list(self._known.items()):
            if key not in seen and (not looked_at or path in looked_at):
                del self._known[key]
        repaired: list[Finding] = []
        for group in _by_target(findings):
            done = self._take(group, applied)
            for finding in group:
                self._tell(finding, done)
            if done == "repaired":
                repaired += group
        return await self._dirty(repaired, applied, decided)

    def _take(self, group: Sequence[Finding], applied: Effective) -> Done:
        """Decide about what is written again together; each item that differs uses up one of its repairs."""
        if not self._repair or not _can_be_put_right(group[0], applied):
            return "reported"
        allowed = [self._repairs.take(item) for item in dict.fromkeys(finding.item for finding in group)]
        return "repaired" if any(allowed) else "left"

    def _tell(self, finding: Finding, done: Done) -> None:
        known = (finding.place or finding.path, done)
        if done == "repaired" or self._known.get(_key(finding)) != known:
            action = _ACTIONS[done]
            log.info("Machine drifted", reason=finding.reason, finding=finding.message, action=action)
            self._report(finding, action)
            self.totals[done] += 1
        self._known[_key(finding)] = known

    async def _dirty(self, findings: Sequence[Finding], applied: Effective, decided: Collection[str]) -> Dirty:
        """Return what to write again, and which units stay as they run; each unit is decided about once."""
        for finding in findings:
            if finding.reason == MASKED and finding.unit is not None:
                await asyncio.to_thread(self._unit_files.unmask, finding.unit)
        still: set[tuple[str, str]] = set()
        for name, about in _by_unit(findings, _users(applied)):
            if name not in decided and not await self._restart(name, about):
                still.update((name, finding.path or "") for finding in about)
        return replace(dirty_of(findings), still=frozenset(still))

    async def _restart(self, name: str, findings: Sequence[Finding], *, again: bool = False) -> bool:
        """Tell whether a unit has to be restarted: it may have been started with what was wrong, and has not used up its limit.

        Args:
            name: of the unit.
            findings: what is wrong.
            again: it was asked about these before, so a refusal is told once.
        """
        wrong = [finding for finding in findings if finding.definition and finding.changed_at is not None]
        if not wrong:
            return False
        try:
            state = await self._units.unit(name)
        except AgentError as error:
            log.debug("Unit not looked at", unit=name, error=error)
            return False
        if state.active_state == "active" and all(self._is_later(finding, state) for finding in wrong):
            return False
        if self._budget.count(name) >= MOST_RESTARTS:
            if not again or name not in self._refused:
                self._budget.refuse()
                log.error("Unit was restarted too often, not restarted for drift", unit=name, limit=MOST_RESTARTS)
            self._refused.add(name)
            return False
        self._refused.discard(name)
        await asyncio.to_thread(self._budget.spend, name)
        return True

    def _is_later(self, finding: Finding, state: UnitState) -> bool:
        """Tell whether something became wrong after the unit's state changed last; False if a clock that was set leaves that open."""
        changed = state.changed_monotonic
        if finding.changed_at is None or changed is None or state.state_changed is None:
            return True
        right = None if finding.item in self._wrong else self._looked
        if right is not None and changed <= right:
            return True
        offset = state.state_changed.timestamp() - changed
        return changed < self._offsets.earliest(finding.changed_at, offset=offset, since=right)


class _Allowance:
    """So many times within the window, for each key."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._taken: dict[str, deque[float]] = defaultdict(deque)

    def take(self, key: str) -> bool:
        """Use one up; False if none is left."""
        now = self._clock.monotonic()
        taken = self._taken[key]
        while taken and now - taken[0] >= WINDOW.total_seconds():
            taken.popleft()
        if len(taken) >= self._limit:
            return False
        taken.append(now)
        return True


def _only(applied: Effective, paths: set[str]) -> Effective:
    units = (unit.name for unit in applied.units if not paths.isdisjoint(unit.written_paths()))
    return _parts(applied, paths, set(units))


def _parts(applied: Effective, paths: Collection[str], units: Collection[str]) -> Effective:
    """Return these files, and these units without what they use."""
    return Effective(
        files=tuple(file for file in applied.files if file.path in paths),
        units=tuple(unit.model_copy(update={"file_paths": ()}) for unit in applied.units if unit.name in units),
    )


def _users(applied: Effective) -> dict[str, frozenset[str]]:
    """Return what each unit uses, by its name."""
    used = {unit.name: frozenset(unit.file_paths) for unit in applied.units}
    used[CONTAINERD_UNIT] = used.get(CONTAINERD_UNIT, frozenset()) | {CONFIG_FILE}
    return used


def _by_unit(
    findings: Sequence[Finding], users: Mapping[str, frozenset[str]]
) -> Iterable[tuple[str, Sequence[Finding]]]:
    """Yield each unit with what was found of itself and of what it uses, unless that is nothing."""
    for name, paths in users.items():
        if about := [one for one in findings if one.unit == name or one.path in paths]:
            yield name, about


def _distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out what is another finding in other words: a mask hides the unit file, a missing file is missed by its units."""
    masked = {finding.unit for finding in findings if finding.reason == MASKED}
    missing = {finding.path for finding in findings if finding.reason == "FileMissing"}
    found: dict[str, Finding] = {}
    for finding in findings:
        hidden = finding.reason in _OF_UNIT_FILES and finding.unit in masked
        if not hidden and not (finding.reason == "DependencyMissing" and finding.path in missing):
            found.setdefault(_key(finding), finding)
    return list(found.values())


def _by_target(findings: Iterable[Finding]) -> Iterable[Sequence[Finding]]:
    """Group what is written again together: a file, or a unit with all that is its own."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.path or finding.unit or finding.registry or finding.message].append(finding)
    return groups.values()


def _can_be_put_right(finding: Finding, applied: Effective) -> bool:
    """Tell whether it would be written again; what a unit needs and no OSC brings is not."""
    if finding.path is not None:
        return finding.path == CONFIG_FILE or finding.path in applied.files_by_path()
    return finding.unit is not None or finding.registry is not None


def _key(finding: Finding) -> str:
    return f"{finding.reason} {finding.item}"
