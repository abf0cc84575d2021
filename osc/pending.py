"""The pending-changes file as text: GNA's schema plus one private key.

Both node agents can go on from each other's file (contract 6.4). `x-journal` is ignored by the Go agent and lost when it
rewrites the file; then the file counts as foreign: its lists are used as they are, entries with empty names ignored
(W1), and what an earlier, superseded apply touched is unknown.

A digest over everything else makes a cut-off file recognisable, which in this schema can be valid YAML that says "all
units done" (W4).

Source: gardener pkg/nodeagent/controller/operatingsystemconfig/osc_changes.go.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import Field, ValidationError

from agents.core.errors import TerminalError
from agents.core.yamlio import YamlError
from osc.codec import dump_state, load_state
from osc.diff import Changes, OwnRestart, Touched, TouchedUnit, UnitChange, UnitCommand
from osc.types import OWN_UNIT, DropIn, File, Unit, WireModel

PRIVATE_KEY = "x-journal"
_VERSION = 1
_COMMANDS = ("restart", "stop")


class TornPending(TerminalError):
    """The file is cut off, damaged or of a form that we do not know; it counts as none."""


def _no_others() -> Mapping[str, object]:
    return {
        "containerd": {"configFileChanged": False, "registries": {}},
        "inPlaceUpdates": {
            "operatingSystem": False,
            "kubelet": {"minorVersion": False, "config": False, "cpuManagerPolicy": False},
            "certificateAuthoritiesRotation": {"kubelet": False, "nodeAgent": False},
            "serviceAccountKeyRotation": False,
        },
    }


@dataclass(frozen=True, slots=True)
class Pending:
    """An apply that was begun, and what is left of it.

    Attributes:
        checksum: of the OSC that is being applied.
        changes: what is left; empty after a complete apply.
        touched: what may differ from last-applied; empty after a complete apply.
        secret_digests: by path, of the secretRef contents that are being or were written.
        others: sections of the file that no part reads yet, kept as they are.
        foreign: another node agent wrote the file.
        sequence: differs in each file, so that a write that must reach the disk is never taken for unnecessary.
    """

    checksum: str
    changes: Changes = field(default_factory=Changes)
    touched: Touched = field(default_factory=Touched)
    secret_digests: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, object] = field(default_factory=_no_others)
    foreign: bool = False
    sequence: int = 0

    @property
    def unfinished(self) -> bool:
        """Whether the machine may differ from last-applied, so that not even an applied checksum can be trusted."""
        return bool(self.changes or self.touched)


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
        **pending.others,
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
    others = {key: document.get(key) or value for key, value in _no_others().items()}
    if private is None:
        left = found.changes(_Private())
        return Pending(found.checksum, replace(left, reload=bool(left)), others=others, foreign=True)
    return Pending(
        found.checksum,
        found.changes(private),
        touched=private.touched.value(),
        secret_digests={item.path: item.digest for item in private.secret_digests},
        others=others,
        sequence=private.sequence,
    )


def _check_private(document: dict[str, object], private: "_Private") -> None:
    if private.version != _VERSION:
        raise TornPending("pending changes are of an unknown version", version=private.version)
    raw = document.get(PRIVATE_KEY)
    rest = {**document, PRIVATE_KEY: {**raw, "digest": ""} if isinstance(raw, dict) else raw}
    if hashlib.sha256(dump_state(rest)).hexdigest() != private.digest:
        raise TornPending("pending changes do not match their digest")


def _lists(**lists: list[dict[str, object]]) -> dict[str, object]:
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
        "reload": changes.reload,
        "unitFilesRemoved": [change.unit.name for change in changes.units_changed if change.file_removed],
        "fileUsers": [{"path": path, "units": list(units)} for path, units in changes.file_users.items()],
        "touched": {
            "paths": sorted(touched.paths),
            "units": [
                {"name": name, "created": unit.created, "dropIns": sorted(unit.drop_ins)}
                for name, unit in sorted(touched.units.items())
            ],
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

    def value(self) -> Touched:
        units = {unit.name: TouchedUnit(unit.created, frozenset(unit.drop_ins)) for unit in self.units}
        return Touched(frozenset(self.paths), units)


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
        return Changes(
            files_changed=tuple(file for file in self.files.changed if file.path),
            files_deleted=tuple(file for file in self.files.deleted if file.path),
            units_changed=tuple(_change(unit, removed) for unit in self.units.changed if unit.name),
            units_deleted=tuple(_named(unit) for unit in self.units.deleted if unit.name),
            commands=tuple(
                UnitCommand(command.name, "stop" if command.command == "stop" else "restart")
                for command in commands.values()
            ),
            file_users={item.path: item.units for item in private.file_users},
            reload=private.reload,
            own_restart=OwnRestart.REQUIRED if must_restart else OwnRestart.NONE,
        )


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
