"""A tiny machine in memory that carries out plans as the contract says, and can be killed before any of its acts.

Files and unit files share one tree, so that an OSC file in the place of a unit file behaves as on a disk. What systemd has
loaded is apart from what is on the disk, and what runs is apart from what is loaded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from agents.core.clock import Clock
from agents.core.generations import Origin, Writer
from osc.codec import decode_file_content
from osc.journal import Journal
from osc.plan import (
    DisableUnit,
    EnableUnit,
    ReloadDaemon,
    RemoveFile,
    RemoveUnit,
    RunUnitCommand,
    Step,
    WriteFile,
    WriteUnit,
)
from osc.types import OWN_UNIT, UNIT_DIRECTORY, Unit
from tests.support.osc_strategies import VENDOR_UNITS

UNIT_MODE = 0o600
PENDING = Path("/state/pending")
LAST_APPLIED = Path("/state/last-applied")


class NothingKept:
    """Stands in for kept generations where state lies in memory: what is written is written, and nothing is known of it."""

    def __init__(self, write: Writer) -> None:
        self._write = write

    def write(self, path: Path, content: bytes, *, mode: int) -> bool:
        """Replace a file."""
        return self._write(path, content, mode=mode)

    def adopt(self, path: Path, content: bytes) -> None:
        """Know nothing of it."""

    def origin(self, path: Path, content: bytes) -> Origin:
        """Return that somebody else wrote it."""
        return Origin.FOREIGN

    def kept(self, path: Path) -> Iterator[bytes]:
        """Yield nothing."""
        yield from ()

    def hold(self, path: Path) -> None:
        """Hold nothing."""

    def held(self, path: Path) -> None:
        """Return that nothing is held."""


class Killed(Exception):
    """The process was killed here."""


class StepFailed(Exception):
    """The machine refused the step."""


@dataclass(frozen=True)
class Running:
    """What a process was started with: all loaded definitions, and the files on the disk at that moment."""

    loaded: Mapping[str, bytes]
    files: Mapping[str, bytes]


@dataclass
class Machine:
    """Disk, systemd, and the agent's own process."""

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    enabled: set[str] = field(default_factory=set)
    loaded: dict[str, bytes] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    state: dict[Path, bytes] = field(default_factory=dict)
    synced: dict[Path, bytes] = field(default_factory=dict)
    acts_left: int | None = None
    acts: int = 0

    def act(self) -> None:
        """Count one act; the process may be killed instead."""
        if self.acts_left is not None:
            if self.acts_left == 0:
                raise Killed
            self.acts_left -= 1
        self.acts += 1

    def start_agent(self) -> None:
        """Start the agent's process, as systemd does after each end."""
        self.running[OWN_UNIT] = self._snapshot()

    def new_journal(self, clock: Clock) -> Journal:
        """A journal as a new process has it."""
        return Journal(
            pending_path=PENDING,
            last_applied_path=LAST_APPLIED,
            generations=NothingKept(self._write_state),
            clock=clock,
            write=self._write_state,
            read=self._read_state,
        )

    def cut_power(self, *, torn: bool) -> None:
        """Boot again: state that was not synced is as before or torn; enabled units are started."""
        for path, content in self.state.items():
            if self.synced.get(path) != content:
                self.state[path] = content[: len(content) // 2] if torn else self.synced.get(path, b"")
        self.loaded = self._on_disk()
        self.running = {name: self._snapshot() for name in self.enabled}

    def execute(self, step: Step) -> bool:
        """Carry out a step. Returns whether bytes on the disk changed."""
        before = dict(self.files)
        for kind, handler in self._handlers.items():
            if isinstance(step, kind):
                handler(self, step)
        return before != self.files

    def _read_state(self, path: Path) -> bytes | None:
        return self.state.get(path)

    def _write_state(self, path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        self.act()
        assert mode == 0o600
        changed = self.state.get(path) != content
        self.state[path] = content
        if sync and changed:
            self.synced[path] = content
        return changed

    def _write(self, path: str, content: bytes, mode: int) -> None:
        self.act()
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        if any(parent in self.files for parent in parents):
            raise StepFailed(f"{path} is below a file")
        if path in self.directories:
            raise StepFailed(f"{path} is a directory")
        self.directories.update(parents)
        self.files[path] = (content, mode)

    def _remove(self, path: str) -> None:
        self.act()
        self.files.pop(path, None)

    def _write_file(self, step: WriteFile) -> None:
        assert step.file.content.inline is not None
        self._write(step.name, decode_file_content(step.file.content.inline), step.file.mode)

    def _write_unit(self, step: WriteUnit) -> None:
        unit = step.unit
        if unit.content is not None:
            self._write(unit.path, unit.content.encode(), UNIT_MODE)
        elif step.remove_file:
            self._remove(unit.path)
        for drop_in in unit.drop_ins:
            self._write(f"{unit.drop_in_directory}/{drop_in.name}", drop_in.content.encode(), UNIT_MODE)
        self._remove_drop_ins(unit, step.remove_drop_ins)

    def _remove_drop_ins(self, unit: Unit, names: tuple[str, ...]) -> None:
        for name in names:
            self._remove(f"{unit.drop_in_directory}/{name}")
        if not any(path.startswith(f"{unit.drop_in_directory}/") for path in self.files):
            self.directories.discard(unit.drop_in_directory)

    def _exists(self, name: str) -> bool:
        return name in VENDOR_UNITS or f"{UNIT_DIRECTORY}/{name}" in self.files

    def _enable(self, step: EnableUnit) -> None:
        self.act()
        if not self._exists(step.name):
            raise StepFailed("no such unit")
        self.enabled.add(step.name)

    def _disable(self, step: DisableUnit) -> None:
        self.act()
        self.enabled.discard(step.name)

    def _remove_unit(self, step: RemoveUnit) -> None:
        unit = Unit(name=step.name)
        if step.created and unit.path in self.files:
            self.act()
            self.enabled.discard(step.name)
            self.act()
            self.running.pop(step.name, None)
            self._remove(unit.path)
        self._remove_drop_ins(unit, step.drop_ins)

    def _reload(self, _step: ReloadDaemon) -> None:
        self.act()
        self.loaded = self._on_disk()

    def _command(self, step: RunUnitCommand) -> None:
        self.act()
        exists = step.name in VENDOR_UNITS or f"{UNIT_DIRECTORY}/{step.name}" in self.loaded
        if step.only_if_exists and not exists:
            return
        if step.command == "stop":
            self.running.pop(step.name, None)
        elif not exists:
            raise StepFailed("no such unit")
        else:
            self.running[step.name] = self._snapshot()

    def _remove_file(self, step: RemoveFile) -> None:
        self._remove(step.name)

    def _on_disk(self) -> dict[str, bytes]:
        return {path: content for path, (content, _) in self.files.items() if path.startswith(f"{UNIT_DIRECTORY}/")}

    def _snapshot(self) -> Running:
        return Running(dict(self.loaded), {path: content for path, (content, _) in self.files.items()})

    _handlers: Mapping[type[Step], Callable[..., None]] = field(
        init=False,
        repr=False,
        default_factory=lambda: {
            WriteFile: Machine._write_file,
            WriteUnit: Machine._write_unit,
            EnableUnit: Machine._enable,
            DisableUnit: Machine._disable,
            RemoveUnit: Machine._remove_unit,
            ReloadDaemon: Machine._reload,
            RunUnitCommand: Machine._command,
            RemoveFile: Machine._remove_file,
        },
    )
