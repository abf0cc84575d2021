"""Files that matter, kept with a digest and the generation before, so that a damaged or an older one is recognised.

The files belong to others as well: their format is not ours to extend, and somebody else may write them. What we know of them
therefore lies in a folder of our own, for each file by its name: a record with digests, and copies of the two newest contents. A
copy counts only if it has a digest from the record.

Whoever reads the file decides by its own rules whether it can be understood. What can be is believed, whoever wrote it:

- its digest is the newest in the record, or announced there: it is *ours*.
- its digest is in the record, but older: an *older* one was written back, by user data that ran again for example.
- its digest is not known: somebody else wrote it, *foreign*.

What cannot be understood is damaged; `kept` then has what it was before.

A file that has a digest of its own, and is replaced too often for all this, is held instead: at moments that its owner chooses it
gets a second name, and nothing is written for it. What replaces it without a sync may be torn by a power cut, and what is held is not.

Order of the writes, so that each may be the last one: the new content's digest is announced in the record (on the disk), the file is
replaced (on the disk), a copy is made, the record says that the announced one is the newest. Until the file is replaced it is what
the record calls the newest; from then on it is what the record has announced. Copy and last record may be lost in a power cut: the
digest tells a torn copy, and an announced content is as good as a written one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ValidationError

from agents.core import files
from agents.core.aside import keep_aside
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.yamlio import dump_json

log = get_logger(__name__)

MODE = 0o600
FOLDER_MODE = 0o700
COPIES = 2
MOST_DIGESTS = 8
"""So many contents are remembered, and the very first one."""


class Writer(Protocol):
    """`agents.core.files.write_atomic`, or something around it."""

    def __call__(self, path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        """Replace the file; with `sync` it survives a power cut from then on."""
        ...


class Origin(Enum):
    """Who wrote what is in a file."""

    OURS = "ours"
    OLDER = "older"
    FOREIGN = "foreign"


class Keeper(Protocol):
    """`Generations`, or something that keeps less."""

    def write(self, path: Path, content: bytes, *, mode: int) -> bool:
        """Replace a file; returns whether its content changed."""
        ...

    def adopt(self, path: Path, content: bytes) -> None:
        """Take what a file holds, and was found usable, as its newest generation."""
        ...

    def origin(self, path: Path, content: bytes) -> Origin:
        """Return who wrote what a file holds."""
        ...

    def kept(self, path: Path) -> Iterator[bytes]:
        """Yield what a file held, the newest first."""
        ...

    def hold(self, path: Path) -> None:
        """Keep what a file holds now under a second name."""
        ...

    def held(self, path: Path) -> bytes | None:
        """Return what a file held when it was held last."""
        ...


class _Record(BaseModel):
    first: str = ""
    digests: tuple[str, ...] = ()
    """Newest first."""
    announced: str = ""

    def with_newest(self, digest: str) -> "_Record":
        """Return the record of a file that holds this content now."""
        others = [known for known in self.digests if known != digest]
        return _Record(first=self.first or digest, digests=(digest, *others)[:MOST_DIGESTS])


@dataclass(frozen=True, slots=True)
class Generations:
    """What is known of some files, by their names. Blocks; one owner for each file.

    Attributes:
        folder: ours alone, 0700.
        write_file: how files are replaced.
    """

    folder: Path
    write_file: Writer = files.write_atomic

    def write(self, path: Path, content: bytes, *, mode: int) -> bool:
        """Replace a file; returns whether its content changed.

        Raises:
            FileError: it was not replaced, or nobody would know that it was.
        """
        digest, record = _digest(content), self._record(path)
        files.ensure_directory(self.folder, mode=FOLDER_MODE)
        if record.digests[:1] != (digest,):
            record = record.model_copy(update={"announced": digest})
            self._save(path, record, sync=True)
        changed = self.write_file(path, content, mode=mode)
        if changed or record.announced:
            self.adopt(path, content)
        return changed

    def adopt(self, path: Path, content: bytes) -> None:
        """Take what a file holds and what was found usable as its newest generation, whoever wrote it."""
        try:
            files.ensure_directory(self.folder, mode=FOLDER_MODE)
            self._become(path, content, self._record(path))
        except AgentError as error:
            # Only a worse day later on: nothing that works now is to end for it.
            log.error("Generation of a file not kept", path=str(path), error=error)

    def origin(self, path: Path, content: bytes) -> Origin:
        """Return who wrote what a file holds."""
        record, digest = self._record(path), _digest(content)
        if digest in (*record.digests[:1], record.announced):
            return Origin.OURS
        return Origin.OLDER if digest in (*record.digests, record.first) else Origin.FOREIGN

    def kept(self, path: Path) -> Iterator[bytes]:
        """Yield what a file held, the newest first; only what is whole."""
        record = self._record(path)
        for digest in (record.announced, *record.digests):
            try:
                content = files.read_optional(self._copy(path, digest)) if digest else None
            except AgentError as error:
                log.debug("Generation of a file not read", path=str(path), error=error)
                continue
            if content is not None and _digest(content) == digest:
                yield content

    def hold(self, path: Path) -> None:
        """Keep what a file holds now under a second name, without a copy and without a sync; instead of what was held before."""
        try:
            files.ensure_directory(self.folder, mode=FOLDER_MODE)
            keep_aside(path, self._held(path))
        except AgentError as error:
            log.error("Generation of a file not kept", path=str(path), error=error)

    def held(self, path: Path) -> bytes | None:
        """Return what a file held when it was held last; whether that is whole its digest has to tell."""
        try:
            return files.read_optional(self._held(path))
        except AgentError as error:
            log.debug("Generation of a file not read", path=str(path), error=error)
            return None

    def _become(self, path: Path, content: bytes, record: _Record) -> None:
        digest = _digest(content)
        # Not synced: whatever a power cut takes is recognised.
        self.write_file(self._copy(path, digest), content, mode=MODE, sync=False)
        record = record.with_newest(digest)
        self._save(path, record, sync=False)
        keep = {self._copy(path, known).name for known in record.digests[:COPIES]}
        keep |= {self._record_path(path).name, self._held(path).name}
        for found in self.folder.iterdir():
            if found.name.removeprefix(".").startswith(f"{path.name}.") and found.name not in keep:
                files.remove(found)

    def _record(self, path: Path) -> _Record:
        try:
            content = files.read_optional(self._record_path(path))
            return _Record() if content is None else _Record.model_validate_json(content)
        except (AgentError, ValidationError) as error:
            log.debug("Record of a file's generations not usable", path=str(path), error=error)
            return _Record()

    def _save(self, path: Path, record: _Record, *, sync: bool) -> None:
        self.write_file(self._record_path(path), dump_json(record.model_dump()), mode=MODE, sync=sync)

    def _record_path(self, path: Path) -> Path:
        return self.folder / f"{path.name}.json"

    def _held(self, path: Path) -> Path:
        return self.folder / f"{path.name}.before"

    def _copy(self, path: Path, digest: str) -> Path:
        return self.folder / f"{path.name}.{digest[:16]}"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
