"""What each step of a plan would change on this machine: its files are compared with those that are there."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from nodeagent.controllers.operatingsystemconfig import units
from nodeagent.controllers.operatingsystemconfig.containerd import CONFIG_MODE
from nodeagent.host.originals import Originals
from nodeagent.inspection import content
from nodeagent.inspection.content import Version
from nodeagent.inspection.plan import Disruption, Effects, Item, UnitCommand
from nodeagent.inspection.reasons import of_unit, reasons
from osc.codec import decode_file_content
from osc.containerd import CERTS_DIRECTORY, CONFIG_FILE, HOSTS_FILE, hosts_file, hosts_toml
from osc.diff import Changes
from osc.merge import Effective
from osc.plan import (
    ConfigureContainerd,
    DisableUnit,
    EnableUnit,
    Plan,
    ReloadDaemon,
    RemoveFile,
    RemoveRegistry,
    RemoveUnit,
    RestartAgent,
    RunUnitCommand,
    Step,
    WriteFile,
    WriteRegistry,
    WriteUnit,
)
from osc.types import OWN_UNIT
from systemd.unitfiles import UnitFiles
from systemd.units import drop_in_path, unit_path

_ON = frozenset({"enabled", "enabled-runtime"})
_MASKED = frozenset({"masked", "masked-runtime"})


class Steps:
    """Looks at the steps of one plan; blocking, changes nothing.

    Args:
        changes: from which the plan was made.
        old: what was applied last.
        disruptions: of each file, see `reasons.of_files`.
        enablement: of each unit that is to be enabled or disabled, as far as systemd says.
        containerd: text of containerd's configuration, before and after; None if it is not known.
        root: where the machine's file system starts.
        originals: what was there before us.
    """

    def __init__(
        self,
        *,
        changes: Changes,
        old: Effective,
        disruptions: Mapping[str, Disruption],
        enablement: Mapping[str, str],
        containerd: tuple[str, str] | None,
        root: Path,
        originals: Originals,
    ) -> None:
        self._changes = changes
        self._old = old
        self._enablement = enablement
        self._containerd = containerd
        self._root = root
        self._originals = originals
        self._unit_files = UnitFiles(root=root)
        self._effects = Effects(disruptions=disruptions)

    def look(self, plan: Plan) -> Effects:
        """Return what the steps come to."""
        for step in plan.steps:
            for kind, handler in self._handlers.items():
                if isinstance(step, kind):
                    handler(self, step)
                    break
        return self._effects

    def _write_file(self, step: Step) -> None:
        if not isinstance(step, WriteFile):
            return
        file, path = step.file, self._at(step.name)
        if file.content.inline is not None:
            after = content.wanted(path, self._root, decode_file_content(file.content.inline), file.mode)
            self._compare("file", step.name, path, after, step.id)
            return
        before = content.current(path, self._root)
        image, secret = file.content.image_ref, file.content.secret_ref
        where = f"image {image.image}" if image else f"Secret kube-system/{secret.name}" if secret else "nowhere"
        self._effects.changed.add(step.id)
        note = f"content comes from {where} and is not known here; mode {file.mode:04o}"
        self._add("file", step.name, "fetch", before=before, note=note)

    def _write_registry(self, step: Step) -> None:
        if isinstance(step, WriteRegistry):
            path = self._at(hosts_file(step.name))
            after = content.wanted(path, self._root, hosts_toml(step.registry).encode(), CONFIG_MODE)
            self._compare("registry", step.name, path, after, step.id)

    def _remove_registry(self, step: Step) -> None:
        if not isinstance(step, RemoveRegistry) or hosts_file(step.name) in step.keep:
            return
        path = self._at(f"{CERTS_DIRECTORY}/{step.name}")
        if step.keep or self._originals.may_have_folder(hosts_file(step.name)):
            self._remove("registry", path / HOSTS_FILE, step.id)
        elif path.exists() or path.is_symlink():
            self._add("registry", step.name, "remove", before=content.current(path / HOSTS_FILE, self._root))

    def _configure_containerd(self, step: Step) -> None:
        path = self._at(CONFIG_FILE)
        before = content.current(path, self._root)
        if self._containerd is None:
            note = "containerd does not say what it has, so the agent may write it"
            self._add("containerdConfig", CONFIG_FILE, "update", before=before, note=note)
            return
        # The file is written anew as a whole; what it says is compared, not how it was written.
        said, wanted = self._containerd
        now = Version(said.encode(), before.mode, public=before.public, problem=before.problem)
        after = content.wanted(path, self._root, wanted.encode(), CONFIG_MODE)
        shown = content.difference(CONFIG_FILE, now, after) if before.content is not None else None
        action = "create" if before.content is None else "update"
        note = "values are compared; comments and order of the file are not kept" if before.content is not None else ""
        self._add("containerdConfig", CONFIG_FILE, action, before=before, after=after, diff=shown, note=note)

    def _write_unit(self, step: Step) -> None:
        if not isinstance(step, WriteUnit):
            return
        unit_file = unit_path(step.name, root=self._root)
        for write in units.writes(step, self._unit_files):
            kind = "unitFile" if write.path == unit_file else "dropIn"
            after = content.wanted(write.path, self._root, write.content, write.mode)
            self._compare(kind, self._name(write.path), write.path, after, step.id)
        if step.remove_file:
            self._remove("unitFile", unit_file, step.id)
        for name in step.remove_drop_ins:
            self._remove("dropIn", drop_in_path(step.name, name, root=self._root), step.id)

    def _enable(self, step: Step) -> None:
        state = self._enablement.get(step.name, "")
        if state not in _ON and (state == "disabled" or state in _MASKED or self._is_new(step.name)):
            self._add("unit", step.name, "enable", note="is masked" if state in _MASKED else "")

    def _disable(self, step: Step) -> None:
        if self._enablement.get(step.name, "") in _ON:
            self._add("unit", step.name, "disable")

    def _remove_unit(self, step: Step) -> None:
        if not isinstance(step, RemoveUnit):
            return
        if step.created and self._unit_files.exists(step.name):
            self._command(step.name, "stop")
            self._remove("unitFile", unit_path(step.name, root=self._root), step.id)
        for name in step.drop_ins:
            self._remove("dropIn", drop_in_path(step.name, name, root=self._root), step.id)

    def _reload(self, _step: Step) -> None:
        note = "systemd reads all unit files again"
        self._add("systemd", "daemon-reload", "reload", disruption=Disruption.RELOAD, note=note)

    def _restart_agent(self, step: Step) -> None:
        if isinstance(step, RestartAgent) and (step.required or step.watched & self._effects.changed):
            self._command(OWN_UNIT, "restart")

    def _run_command(self, step: Step) -> None:
        if isinstance(step, RunUnitCommand):
            self._command(step.name, step.command)

    def _remove_file(self, step: Step) -> None:
        self._remove("file", self._at(step.name), step.id)

    def _command(self, unit: str, command: str) -> None:
        why = reasons(unit, self._changes, self._old)
        self._effects.commands.append(UnitCommand(unit=unit, command=command, disruption=of_unit(unit), reasons=why))

    def _compare(self, kind: str, name: str, path: Path, after: Version, step: str) -> None:
        before = content.current(path, self._root)
        if before.content == after.content:
            if before.mode == after.mode:
                self._effects.unchanged += 1
                return
            self._add(kind, name, "setMode", before=before, after=after)
            return
        self._effects.changed.add(step)
        shown = content.difference(name, before, after)
        exists = before.content is not None or before.problem
        self._add(kind, name, "update" if exists else "create", before=before, after=after, diff=shown)

    def _remove(self, kind: str, path: Path, step: str) -> None:
        before, name = content.current(path, self._root), self._name(path)
        if before.content is None and not before.problem:
            return
        self._effects.changed.add(step)
        if self._originals.has(name):
            note = "what was there before the first OperatingSystemConfig is put back"
            self._add(kind, name, "restore", before=before, note=note)
            return
        self._add(kind, name, "remove", before=before, diff=content.difference(name, before, content.ABSENT))

    def _add(
        self,
        kind: str,
        name: str,
        action: str,
        *,
        before: Version = content.ABSENT,
        after: Version = content.ABSENT,
        diff: str | None = None,
        note: str = "",
        disruption: Disruption | None = None,
    ) -> None:
        problem = f"what is there now cannot be read: {before.problem}" if before.problem else ""
        self._effects.items.append(
            Item(
                kind=kind,
                name=name,
                action=action,
                disruption=disruption or self._effects.disruptions.get(name, Disruption.NONE),
                before=before.describe(),
                after=after.describe(),
                diff=diff or None,
                note="; ".join(part for part in (note, problem) if part),
            )
        )

    def _is_new(self, unit: str) -> bool:
        return unit not in self._old.units_by_name()

    def _name(self, path: Path) -> str:
        return f"/{path.relative_to(self._root)}"

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    _handlers: ClassVar[Mapping[type[Step], "_Handler"]] = {
        WriteFile: _write_file,
        WriteRegistry: _write_registry,
        RemoveRegistry: _remove_registry,
        ConfigureContainerd: _configure_containerd,
        WriteUnit: _write_unit,
        EnableUnit: _enable,
        DisableUnit: _disable,
        RemoveUnit: _remove_unit,
        ReloadDaemon: _reload,
        RestartAgent: _restart_agent,
        RunUnitCommand: _run_command,
        RemoveFile: _remove_file,
    }


_Handler = Callable[[Steps, Step], None]


def in_place_items(changes: Changes) -> Iterator[Item]:
    """Yield the parts of an update in place; all of them wait until the node was drained."""
    for part in changes.in_place.names:
        disruption = Disruption.REBOOT if part == "operating_system" else Disruption.PODS_DELETED
        note = "waits until the node is drained"
        yield Item(kind="inPlaceUpdate", name=part, action="update", disruption=disruption, note=note)
