"""What the next process has to know about jobs of systemd: those that have not ended, and units under watch.

A process that ends while a unit of its apply starts leaves the start going on, and the command in the journal as not done. Without
this record the next process would start the unit a second time. The record lies in /run: a reboot starts all units anew anyway.
It is written at once, a few bytes on a tmpfs. If it cannot be, or is damaged, the worst is a second start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from osc.diff import CommandName

log = get_logger(__name__)

STATE_MODE = 0o600


class BegunJob(BaseModel):
    """A job that was begun.

    Attributes:
        command: what the OSC asked for.
        job: systemd's name for it.
        since: seconds of the monotonic clock, which begins with the boot.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    command: CommandName
    job: str
    since: float


class _Document(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="ignore", strict=True)

    checksum: str = ""
    jobs: dict[str, BegunJob] = {}
    watched: list[str] = []


@dataclass(slots=True)
class JobRecord:
    """The file, as this process has left it.

    Attributes:
        path: of the file.
        checksum: of the OSC for which the jobs were begun.
        jobs: by unit.
        watched: units that were taken as started while they were still activating.
    """

    path: Path
    checksum: str = ""
    jobs: Mapping[str, BegunJob] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()

    @staticmethod
    def load(path: Path) -> "JobRecord":
        """Read the file; one that cannot be used counts as none."""
        try:
            found = _Document.model_validate_json(files.read_optional(path) or b"{}")
        except (AgentError, ValidationError):
            log.error("Record of unit jobs not usable", path=str(path))
            return JobRecord(path)
        return JobRecord(path, found.checksum, found.jobs, frozenset(found.watched))

    def begin(self, name: str, job: BegunJob) -> None:
        """Note that a job was begun."""
        self.jobs = {**self.jobs, name: job}
        self._save()

    def end(self, name: str) -> None:
        """Note that a job has ended, or is of no interest any more."""
        if name in self.jobs:
            self.jobs = {other: job for other, job in self.jobs.items() if other != name}
            self._save()

    def watch(self, name: str, *, until_it_ends: bool) -> None:
        """Begin or end to watch a unit."""
        changed = self.watched | {name} if until_it_ends else self.watched - {name}
        if changed != self.watched:
            self.watched = changed
            self._save()

    def turn_to(self, checksum: str) -> None:
        """Note which OSC is applied now; jobs of another one are of no interest any more."""
        if checksum != self.checksum:
            forget = bool(self.jobs)
            self.checksum, self.jobs = checksum, {}
            if forget:
                self._save()

    def _save(self) -> None:
        document = _Document(checksum=self.checksum, jobs=dict(self.jobs), watched=sorted(self.watched))
        try:
            files.write_atomic(self.path, document.model_dump_json().encode(), mode=STATE_MODE, sync=False)
        except files.FileError as error:
            log.error("Record of unit jobs not written", error=error)
