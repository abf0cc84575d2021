"""Makes a plan for an OperatingSystemConfig: gathers what the agent would start from, and lets the agent's own code compute."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.core.errors import AgentError, TerminalError
from agents.core.generations import Generations, Origin
from agents.core.yamlio import YamlError, load_yaml
from agents.inspection import validation
from nodeagent.controllers.operatingsystemconfig import desired as desired_module
from nodeagent.controllers.operatingsystemconfig.desired import Desired
from nodeagent.controllers.operatingsystemconfig.preparation import (
    dirty_of,
    resumed_changes,
    was_applied,
    with_real_kubelet_config,
)
from nodeagent.host.consistency import inspect
from nodeagent.host.originals import Originals
from nodeagent.host.os_release import read_version
from nodeagent.inspection import source as source_module
from nodeagent.inspection.machine import RealMachine
from nodeagent.inspection.plan import Plan, worst
from nodeagent.inspection.reasons import of_files
from nodeagent.inspection.source import Source
from nodeagent.inspection.state import State
from nodeagent.inspection.steps import Steps, in_place_items
from nodeagent.paths import Paths
from osc import codec
from osc.codec import Decoded, decode_document, load_state
from osc.containerd import CONTAINERD_UNIT, ENVIRONMENT_DROP_IN, RUNTIMES_DIRECTORY, same, with_environment
from osc.diff import Changes, Dirty, Touched, diff
from osc.inplace import InPlaceChanges, in_place_changes
from osc.merge import Effective, effective
from osc.pending import Pending
from osc.plan import DisableUnit, EnableUnit, Step
from osc.plan import plan as order

SYSTEMD_SECONDS = 15.0
"""For the enablement of all units together."""
CONTAINERD_SECONDS = 35.0
"""For its version and, where it has no configuration file, its default one."""
_WAITS = "an update in place waits until the node is drained; this is the OperatingSystemConfig before it, name the one that waits with --osc"
_PATH = re.compile(rf'"PATH={RUNTIMES_DIRECTORY}:([^"\n]*)"')


class NothingDesired(TerminalError):
    """No OperatingSystemConfig was ever asked for on this machine, and none is given."""


class NotPermitted(TerminalError):
    """Without the agent's state nothing can be compared."""


@dataclass(frozen=True, slots=True)
class _Base:
    """What the agent would start from.

    Attributes:
        old: last-applied; None if there is none that can be trusted.
        dirty: what differs on the disk, where the state files do not tell.
    """

    old: Effective | None
    touched: Touched
    dirty: Dirty
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Known:
    """What containerd and systemd said."""

    containerd: tuple[str, str] | None = None
    other_config: bool = False
    enablement: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_desired(
    file: Path | None, *, state: State, paths: Paths, hostname: str, environment: Mapping[str, str]
) -> tuple[str, Desired]:
    """Return where the OperatingSystemConfig comes from, and what it says for this host; blocking.

    Args:
        file: given by the operator; None for the one that was asked for last.
        state: of the disk.
        paths: the agent's own files.
        hostname: ours.
        environment: has a search path, for a machine where the agent never ran.

    Raises:
        Unreadable, InvalidOSC, NothingDesired, NotPermitted: with the reason.
    """
    if state.denied:
        raise NotPermitted("the agent's state cannot be read, root can", problems=dict(state.problems))
    if file is None:
        if state.desired is None:
            problem = state.problems.get(str(paths.desired), "there is none")
            raise NothingDesired("no OperatingSystemConfig is desired here yet; name one with --osc", problem=problem)
        checksum = state.pending.checksum if state.pending is not None else ""
        checked = desired_module.check(state.desired.decoded, checksum=checksum, hostname=hostname, paths=Paths())
        return str(paths.desired), checked
    found = _source(validation.read_bytes(file))
    decoded = with_environment(codec.decode(found.content), search_path(state, environment))
    return str(file), desired_module.check(decoded, checksum=found.checksum, hostname=hostname, paths=Paths())


async def gather(
    source: str, desired: Desired, *, state: State, machine: RealMachine, paths: Paths, hostname: str
) -> Plan:
    """Return the plan.

    Args:
        source: where the OperatingSystemConfig comes from.
        desired: what it says.
        state: of the disk.
        machine: asked for containerd's configuration and for the enablement of units.
        paths: where the machine's files are.
        hostname: ours.

    Raises:
        AgentError: an update in place cannot be computed.
    """
    base = await asyncio.to_thread(_base, desired, state, paths, hostname)
    known = _Known(notes=list(base.notes))
    await _ask_containerd(desired, machine, known)
    pending = state.pending
    resumed = pending is not None and pending.checksum == desired.checksum and _goes_on(pending, base)
    changes = _changes(desired, pending if resumed else None, base, known, state=state, paths=paths)
    steps = order(changes, desired.effective)
    await _ask_systemd(steps.steps, machine, known)
    old = base.old or Effective()
    looked = await asyncio.to_thread(
        Steps(
            changes=changes,
            old=old,
            disruptions=of_files(changes, desired.effective, old),
            enablement=known.enablement,
            containerd=known.containerd,
            root=paths.root,
            originals=Originals(folder=paths.originals, root=paths.root),
        ).look,
        steps,
    )
    items = (*in_place_items(changes), *looked.items)
    notes = (*known.notes, *_notes(changes, desired))
    if source == str(paths.desired) and not changes.in_place and _waits_for_drain(state):
        notes += (_WAITS,)
    disruption = worst([*(item.disruption for item in items), *(command.disruption for command in looked.commands)])
    return Plan(
        source=source,
        checksum=desired.checksum,
        resumed=resumed,
        disruption=disruption,
        items=items,
        commands=tuple(looked.commands),
        unchanged=looked.unchanged,
        notes=notes,
    )


def _source(content: bytes) -> Source:
    try:
        document = load_yaml(content)
    except YamlError:
        return source_module.of_content(content)  # decoding it says what is wrong
    if source_module.is_secret(document) and isinstance(document, Mapping):
        return source_module.of_secret(document)
    return source_module.of_content(content)


def search_path(state: State, environment: Mapping[str, str]) -> str:
    """Return the PATH that the agent put into containerd's drop-in; it has its own, not ours."""
    for stored in (state.desired, state.applied):
        if stored is None:
            continue
        unit = effective(stored.decoded.config, hostname="").units_by_name().get(CONTAINERD_UNIT)
        for drop_in in unit.drop_ins if unit is not None else ():
            if drop_in.name == ENVIRONMENT_DROP_IN and (found := _PATH.search(drop_in.content)):
                return found[1]
    return environment.get("PATH", "")


def _goes_on(pending: Pending, base: _Base) -> bool:
    """As `Preparation`: a journal that ended is only worth something beside what it ended with."""
    return pending.unfinished or base.old is not None


def _base(desired: Desired, state: State, paths: Paths, hostname: str) -> _Base:
    """Return what the agent would start from; see `Preparation.prepare`."""
    pending, applied = state.pending, state.applied
    touched = pending.touched if pending is not None else Touched()
    older = _is_older(state)
    broken = {str(paths.last_applied), str(paths.pending_changes)} & state.problems.keys()
    old = effective(applied.decoded.config, hostname=hostname) if applied is not None else None
    lost = applied is None and _newest_kept(paths) is not None
    if not (broken or older or lost or (pending is not None and pending.foreign and pending.unfinished)):
        return _Base(old, touched, Dirty())
    if state.desired is not None:
        touched |= Touched.of(effective(state.desired.decoded.config, hostname=hostname))
    if older or lost or str(paths.last_applied) in broken:
        kept = _newest_kept(paths)
        touched |= Touched() if kept is None else Touched.of(effective(kept.config, hostname=hostname))
    dirty = dirty_of(inspect(desired.effective, loaded_units=None, root=paths.root))
    note = "state files do not tell what is on the machine, so everything was compared with it"
    return _Base(old, touched, dirty, (note,))


def _last_known(state: State, paths: Paths) -> Decoded | None:
    """Return what was applied last as far as the disk tells."""
    if state.applied is not None and not _is_older(state):
        return state.applied.decoded
    return _newest_kept(paths)


def _is_older(state: State) -> bool:
    return state.applied is not None and state.applied.origin is Origin.OLDER


def _newest_kept(paths: Paths) -> Decoded | None:
    for content in Generations(paths.generations).kept(paths.last_applied):
        try:
            return decode_document(load_state(content))
        except TerminalError:
            continue  # the one before may be readable
    return None


def _changes(
    desired: Desired, pending: Pending | None, base: _Base, known: _Known, *, state: State, paths: Paths
) -> Changes:
    if pending is not None:
        return resumed_changes(pending, desired.effective, base.dirty, other_config=known.other_config)
    return diff(
        desired.effective,
        old=base.old,
        touched=base.touched,
        dirty=base.dirty,
        containerd_config=known.other_config,
        in_place=_due_in_place(desired, state, base.touched, paths),
    )


def _due_in_place(desired: Desired, state: State, touched: Touched, paths: Paths) -> InPlaceChanges:
    last = _last_known(state, paths)
    if desired.decoded.config.spec.in_place_updates is None or last is None:
        return InPlaceChanges()
    if (state.applied is None or _is_older(state)) and was_applied(desired, state.pending, last):
        return InPlaceChanges()
    before = with_real_kubelet_config(last.config, touched, root=paths.root)
    return in_place_changes(desired.decoded.config, before, read_version(paths.os_release))


async def _ask_containerd(desired: Desired, machine: RealMachine, known: _Known) -> None:
    settings = desired.effective.runtime
    if settings is None:
        return
    try:
        async with asyncio.timeout(CONTAINERD_SECONDS):
            before, after = await machine.containerd_files.tables(settings)
    except (AgentError, TimeoutError) as error:
        known.other_config = True
        known.notes.append(f"containerd's configuration was not looked at: {str(error) or 'no answer in time'}")
        return
    known.other_config = not same(before, after)
    import tomli_w  # rarely needed

    known.containerd = tomli_w.dumps(before or {}), tomli_w.dumps(after)


async def _ask_systemd(steps: Sequence[Step], machine: RealMachine, known: _Known) -> None:
    """Ask which units are enabled; the first that is not answered ends it."""
    names = [step.name for step in steps if isinstance(step, EnableUnit | DisableUnit)]
    try:
        async with asyncio.timeout(SYSTEMD_SECONDS):
            for name in names:
                known.enablement[name] = await machine.units.unit_file_state(name)
    except (AgentError, TimeoutError) as error:
        known.notes.append(f"which units are enabled is not known: {str(error) or 'no answer in time'}")


def _waits_for_drain(state: State) -> bool:
    return state.board is not None and state.board.phase == "waitingForDrain"


def _notes(changes: Changes, desired: Desired) -> Iterator[str]:
    if changes.in_place:
        yield "an update in place is due: nothing changes until the node is drained"
    probed = sorted(changes.registries_to_probe)
    if probed:
        yield f"written once their hosts answer: registries {', '.join(probed)}"
    if desired.effective.secret_files():
        yield "whether a Secret holds something else by now is not known here"
