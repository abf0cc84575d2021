"""The pending-changes file as text: GNA's schema plus one private key.

Both node agents can go on from each other's file (contract 6.4). `x-journal` is ignored by the Go agent and lost when it
rewrites the file; then the file counts as foreign: its lists are used as they are, entries with empty names ignored
(W1), and what an earlier, superseded apply touched is unknown.

A digest over everything else makes a cut-off file recognisable, which in this schema can be valid YAML that says "all
units done" (W4).

Source: gardener pkg/nodeagent/controller/operatingsystemconfig/osc_changes.go.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field, ValidationError

from agents.core.errors import TerminalError
from agents.core.yamlio import YamlError
from osc.codec import dump_state, load_state
from osc.diff import (
    Changes,
    OwnRestart,
    Touched,
    TouchedUnit,
    UnitChange,
    UnitCommand,
    with_containerd_config,
)
from osc.inplace import InPlaceChanges
from osc.types import OWN_UNIT, DropIn, File, Registry, Unit, WireModel

PRIVATE_KEY = "x-journal"
_VERSION = 1
_COMMANDS = ("restart", "stop")


class TornPending(TerminalError):
    """The file is cut off, damaged or of a form that we do not know; it counts as none."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An apply that was begun, and what is left of it.

    Attributes:
        checksum: of the OSC that is being applied.
        changes: what is left; empty after a complete apply.
        touched: what may differ from last-applied; empty after a complete apply.
        secret_digests: by path, of the secretRef contents that are being or were written.
        foreign: another node agent wrote the file.
        sequence: differs in each file, so that a write that must reach the disk is never taken for unnecessary.
        applied: checksum of the OSC that was applied before; empty if that is not known.
    """

    checksum: str
    changes: Changes = field(default_factory=Changes)
    touched: Touched = field(default_factory=Touched)
    secret_digests: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False
    sequence: int = 0
    applied: str = ""

    @property
    def unfinished(self) -> bool:
        """Whether the machine may differ from last-applied, so that not even an applied checksum can be trusted."""
        return bool(self.changes or self.touched)

    @property
    def superseding(self) -> bool:
        """Whether something else than the OSC that was applied before is being applied, or this one as an update in place."""
        return self.unfinished and (self.checksum != self.applied or bool(self.changes.in_place))


def encode_pending(pending: Pending) -> bytes:
    """Write the file."""
    changes = pending.changes
    document = {
        "operatingSystemConfigChecksum": pending.checksum,
        "mustRestartNodeAgent": changes.own_restart is not OwnRestart.NONE,
        "files": _lists(
            changed=[file.to_wire() for file in changes.files_changed],
            deleted=[file.to_wire() for file in changes.files_deleted],
        ),
        "units": _lists(
            changed=[_unit_to_wire(change) for change in changes.units_changed],
            deleted=[unit.to_wire() for unit in changes.units_deleted],
            commands=[{"name": command.name, "command": command.command} for command in changes.commands],
        ),
        "containerd": {
            "configFileChanged": changes.containerd_config,
            "registries": _lists(
                upstreamsToProbe=sorted(changes.registries_to_probe),
                desired=[registry.to_wire() for registry in changes.registries_desired],
                deleted=[Registry(upstream=upstream).to_wire() for upstream in changes.registries_deleted],
            ),
        },
        "inPlaceUpdates": _in_place_to_wire(changes.in_place),
        PRIVATE_KEY: {"digest": "", **_private(pending)},
    }
    text = dump_state(document)
    empty = f'"{PRIVATE_KEY}":{{"digest":"'.encode()
    place = text.rindex(empty) + len(empty)
    return text[:place] + hashlib.sha256(text).hexdigest().encode() + text[place:]


def decode_pending(content: bytes) -> Pending:
    """Read the file.

    Raises:
        TornPending: with the reason.
    """
    try:
        document = load_state(content)
        found = _PendingFile.model_validate(document)
    except YamlError as error:
        raise TornPending("pending changes are not readable") from error
    except ValidationError:
        raise TornPending("pending changes have an unknown form") from None  # the cause would carry contents
    if not isinstance(document, dict) or not document:
        raise TornPending("pending changes are empty")
    private = found.x_journal
    if private is not None:
        _check_private(document, private)
    unknown = [command.command for command in found.units.commands if command.command not in ("", *_COMMANDS)]
    if unknown:
        raise TornPending("pending changes have an unknown command", commands=unknown)
    if private is None:
        left = found.changes(_Private())
        return Pending(found.checksum, replace(left, reload=bool(left)), foreign=True)
    return Pending(
        found.checksum,
        found.changes(private),
        touched=private.touched.value(),
        secret_digests={item.path: item.digest for item in private.secret_digests},
        sequence=private.sequence,
        applied=private.last_applied_checksum,
    )


def _check_private(document: dict[str, object], private: "_Private") -> None:
    if private.version != _VERSION:
        raise TornPending("pending changes are of an unknown version", version=private.version)
    raw = document.get(PRIVATE_KEY)
    rest = {**document, PRIVATE_KEY: {**raw, "digest": ""} if isinstance(raw, dict) else raw}
    if hashlib.sha256(dump_state(rest)).hexdigest() != private.digest:
        raise TornPending("pending changes do not match their digest")


def _in_place_to_wire(changes: InPlaceChanges) -> dict[str, object]:
    return {
        "operatingSystem": changes.operating_system,
        "kubelet": {
            "minorVersion": changes.kubelet_minor_version,
            "config": changes.kubelet_config,
            "cpuManagerPolicy": changes.kubelet_cpu_manager_policy,
        },
        "certificateAuthoritiesRotation": {
            "kubelet": changes.kubelet_certificate_authorities,
            "nodeAgent": changes.own_certificate_authorities,
        },
        "serviceAccountKeyRotation": changes.service_account_key,
    }


def _lists(**lists: Sequence[object]) -> dict[str, object]:
    return {key: items for key, items in lists.items() if items}


def _unit_to_wire(change: UnitChange) -> dict[str, object]:
    drop_ins = _lists(
        changed=[drop_in.to_wire() for drop_in in change.drop_ins_changed],
        deleted=[drop_in.to_wire() for drop_in in change.drop_ins_deleted],
    )
    return {**change.unit.to_wire(), "dropInsChanges": drop_ins}


def _private(pending: Pending) -> dict[str, object]:
    """The private part. Paths are values and not keys: YAML readers limit the length of a key."""
    changes, touched = pending.changes, pending.touched
    return {
        "version": _VERSION,
        "sequence": pending.sequence,
        "lastAppliedChecksum": pending.applied,
        "reload": changes.reload,
        "unitFilesRemoved": [change.unit.name for change in changes.units_changed if change.file_removed],
        "fileUsers": [{"path": path, "units": list(units)} for path, units in changes.file_users.items()],
        "touched": {
            "paths": sorted(touched.paths),
            "units": [
                {"name": name, "created": unit.created, "dropIns": sorted(unit.drop_ins)}
                for name, unit in sorted(touched.units.items())
            ],
            "registries": sorted(touched.registries),
        },
        "secretDigests": [{"path": path, "digest": digest} for path, digest in pending.secret_digests.items()],
    }


class _Files(WireModel):
    changed: tuple[File, ...] = ()
    deleted: tuple[File, ...] = ()


class _DropInsChanges(WireModel):
    changed: tuple[DropIn, ...] = ()
    deleted: tuple[DropIn, ...] = ()


class _ChangedUnit(Unit):
    drop_ins_changes: _DropInsChanges = _DropInsChanges()


class _Command(WireModel):
    name: str = ""
    command: str = ""


class _Units(WireModel):
    changed: tuple[_ChangedUnit, ...] = ()
    deleted: tuple[Unit, ...] = ()
    commands: tuple[_Command, ...] = ()


class _TouchedUnit(WireModel):
    name: str
    created: bool
    drop_ins: tuple[str, ...]


class _Touched(WireModel):
    paths: tuple[str, ...] = ()
    units: tuple[_TouchedUnit, ...] = ()
    registries: tuple[str, ...] = ()

    def value(self) -> Touched:
        units = {unit.name: TouchedUnit(unit.created, frozenset(unit.drop_ins)) for unit in self.units}
        return Touched(frozenset(self.paths), units, frozenset(self.registries))


class _Registries(WireModel):
    upstreams_to_probe: tuple[str, ...] = ()
    desired: tuple[Registry, ...] = ()
    deleted: tuple[Registry, ...] = ()


class _Containerd(WireModel):
    config_file_changed: bool = False
    registries: _Registries = _Registries()


class _Kubelet(WireModel):
    minor_version: bool = False
    config: bool = False
    cpu_manager_policy: bool = False


class _Authorities(WireModel):
    kubelet: bool = False
    node_agent: bool = False


class _InPlace(WireModel):
    operating_system: bool = False
    kubelet: _Kubelet = _Kubelet()
    certificate_authorities_rotation: _Authorities = _Authorities()
    service_account_key_rotation: bool = False

    def value(self) -> InPlaceChanges:
        return InPlaceChanges(
            operating_system=self.operating_system,
            kubelet_minor_version=self.kubelet.minor_version,
            kubelet_config=self.kubelet.config,
            kubelet_cpu_manager_policy=self.kubelet.cpu_manager_policy,
            kubelet_certificate_authorities=self.certificate_authorities_rotation.kubelet,
            own_certificate_authorities=self.certificate_authorities_rotation.node_agent,
            service_account_key=self.service_account_key_rotation,
        )


class _FileUsers(WireModel):
    path: str
    units: tuple[str, ...]


class _SecretDigest(WireModel):
    path: str
    digest: str


class _Private(WireModel):
    digest: str = ""
    version: int = 0
    sequence: int = 0
    last_applied_checksum: str = ""
    reload: bool = False
    unit_files_removed: tuple[str, ...] = ()
    file_users: tuple[_FileUsers, ...] = ()
    touched: _Touched = _Touched()
    secret_digests: tuple[_SecretDigest, ...] = ()


class _PendingFile(WireModel):
    operating_system_config_checksum: str = ""
    must_restart_node_agent: bool = False
    files: _Files = _Files()
    units: _Units = _Units()
    containerd: _Containerd = _Containerd()
    in_place_updates: _InPlace = _InPlace()
    x_journal: _Private | None = Field(default=None, alias=PRIVATE_KEY)

    @property
    def checksum(self) -> str:
        return self.operating_system_config_checksum

    def changes(self, private: _Private) -> Changes:
        """Return the lists without nameless entries.

        A restart of the agent "if bytes changed" becomes a required one: the process that knew has ended.
        """
        commands = {command.name: command for command in self.units.commands if command.name and command.command}
        must_restart = self.must_restart_node_agent or commands.pop(OWN_UNIT, None) is not None
        removed = private.unit_files_removed
        registries = self.containerd.registries
        changes = Changes(
            files_changed=tuple(file for file in self.files.changed if file.path),
            files_deleted=tuple(file for file in self.files.deleted if file.path),
            units_changed=tuple(_change(unit, removed) for unit in self.units.changed if unit.name),
            units_deleted=tuple(_named(unit) for unit in self.units.deleted if unit.name),
            commands=tuple(
                UnitCommand(command.name, "stop" if command.command == "stop" else "restart")
                for command in commands.values()
            ),
            registries_desired=tuple(registry for registry in registries.desired if registry.upstream),
            registries_to_probe=frozenset(registries.upstreams_to_probe),
            registries_deleted=tuple(registry.upstream for registry in registries.deleted if registry.upstream),
            in_place=self.in_place_updates.value(),
            file_users={item.path: item.units for item in private.file_users},
            reload=private.reload,
            own_restart=OwnRestart.REQUIRED if must_restart else OwnRestart.NONE,
        )
        # Ours lists the restart of containerd if there is to be one; another agent adds it when it comes to that.
        foreign = self.x_journal is None
        return with_containerd_config(changes, changed=self.containerd.config_file_changed, restart=foreign)


def _change(unit: _ChangedUnit, removed: Iterable[str]) -> UnitChange:
    plain = Unit.model_validate({name: getattr(unit, name) for name in Unit.model_fields})
    return UnitChange(
        _named(plain),
        _with_names(unit.drop_ins_changes.changed),
        _with_names(unit.drop_ins_changes.deleted),
        file_removed=unit.name in removed,
    )


def _named(unit: Unit) -> Unit:
    return unit.model_copy(update={"drop_ins": _with_names(unit.drop_ins)})


def _with_names(drop_ins: Iterable[DropIn]) -> tuple[DropIn, ...]:
    return tuple(drop_in for drop_in in drop_ins if drop_in.name)
