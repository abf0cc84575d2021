"""Why a unit gets a command, in words: the units of two OperatingSystemConfigs side by side."""

from collections.abc import Iterator, Mapping

from nodeagent.controllers.operatingsystemconfig.staticpods import MANIFESTS
from nodeagent.inspection.plan import Disruption
from osc.containerd import CONFIG_FILE, CONTAINERD_UNIT
from osc.diff import Changes, OwnRestart, UnitChange
from osc.merge import Effective
from osc.plan import KUBELET_UNIT
from osc.types import OWN_UNIT, Unit


def reasons(name: str, changes: Changes, old: Effective) -> tuple[str, ...]:
    """Return why a unit is restarted or stopped.

    Args:
        name: of the unit.
        changes: all that is to be done.
        old: what was applied last.
    """
    found: list[str] = []
    change = next((change for change in changes.units_changed if change.unit.name == name), None)
    if change is not None:
        found += _of_change(change, old.units_by_name().get(name), {file.path for file in changes.files_changed})
    if any(unit.name == name for unit in changes.units_deleted):
        found.append("leaves the OperatingSystemConfig")
    if name == CONTAINERD_UNIT and changes.containerd_config:
        found.append("containerd's configuration changes")
    return tuple(found) or ("left of an apply that was begun before",)


def _of_change(change: UnitChange, old: Unit | None, changed_files: set[str]) -> Iterator[str]:
    unit = change.unit
    if old is None:
        yield "new in the OperatingSystemConfig"
    elif old.content != unit.content:
        yield "its unit file changes"
    known = {drop_in.name for drop_in in old.drop_ins} if old is not None else set[str]()
    for drop_in in change.drop_ins_changed:
        if old is not None:
            yield f"drop-in {drop_in.name} {'changes' if drop_in.name in known else 'is new'}"
    for drop_in in change.drop_ins_deleted:
        yield f"drop-in {drop_in.name} goes"
    for path in dict.fromkeys(unit.file_paths):
        if path in changed_files:
            yield f"file {path} changes"
    if old is not None and (old.enable, old.command) != (unit.enable, unit.command):
        yield "its enablement or command changes"
    if old is not None and old.file_paths != unit.file_paths:
        yield "the files that it uses are others"


def of_unit(name: str) -> Disruption:
    """Return what a restart or stop of a unit interrupts."""
    return Disruption.KUBELET_RESTART if name == KUBELET_UNIT else Disruption.SERVICE_RESTART


def of_files(changes: Changes, wanted: Effective, old: Effective) -> Mapping[str, Disruption]:
    """Return what the change of each file interrupts, by the units with a command that use it.

    A static pod is replaced by the kubelet as soon as its manifest is another one.
    """
    commanded = {command.name for command in changes.commands}
    if changes.own_restart is not OwnRestart.NONE:
        commanded.add(OWN_UNIT)
    found: dict[str, Disruption] = {}
    for unit in (*old.units, *wanted.units):
        if unit.name in commanded:
            for path in (*unit.written_paths(), *unit.file_paths):
                if found.get(path) != Disruption.KUBELET_RESTART:
                    found[path] = of_unit(unit.name)
    if changes.containerd_config:
        found[CONFIG_FILE] = of_unit(CONTAINERD_UNIT)
    for file in (*changes.files_changed, *changes.files_deleted):
        if file.path.startswith(MANIFESTS):
            found[file.path] = Disruption.PODS_DELETED
    return found
