"""What came out of container images, as it was then: so that a program that somebody changes is seen.

An OSC says of such a file in which image it is, not what it holds. Its SHA-256 is therefore remembered when it was copied, with
what tells cheaply that nobody touched it since: inode, size and times. Only where those differ is the content read again;
a hundred megabytes are not worth that every few minutes.

A file of which nothing is known, because an agent before this one copied it, is remembered as it is found.

An image that is named by a tag may be another one when it is extracted again, for example because somebody damaged a file: then the
repair brings another program than the one that ran, and whoever looks after the node is told.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from pydantic import BaseModel, ValidationError

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.core.yamlio import dump_json
from nodeagent.host.consistency import Finding
from nodeagent.host.image_extractor import Extraction, ImageExtractor
from osc.types import File

log = get_logger(__name__)

_MODE = 0o600
_PIECE_BYTES = 1024 * 1024


class _Known(BaseModel):
    path: str
    digest: str
    inode: int
    size: int
    modified: int
    changed: int
    image: str = ""
    """Reference of the image it came out of, as the OSC names it; empty if that is not known."""

    def is_same(self, found: os.stat_result) -> bool:
        """Tell whether nobody touched the file since."""
        return (self.inode, self.size, self.modified, self.changed) == _identity(found)


class _Record(BaseModel):
    files: list[_Known] = []


@dataclass(frozen=True, slots=True)
class MovedTag:
    """A file that was extracted again from the same reference, and is another one than before."""

    path: str
    image: str
    before: str
    """SHA-256 of the file as it came out of the image the last time."""
    now: str

    @property
    def note(self) -> str:
        """What happened, for an event."""
        return (
            f"file {self.path} came out of image {self.image} as another one than before, so the tag has moved: "
            f"SHA-256 was {self.before}, is {self.now}"
        )


class ExtractedFiles:
    """The record of one machine. Every method may block on the disk; they may be called from several threads.

    Args:
        record: where it is kept.
        root: where the machine's file system starts.
        read_only: never write the record, for somebody beside the agent who only looks.
    """

    def __init__(self, *, record: Path, root: Path, read_only: bool = False) -> None:
        self._record = record
        self._root = root
        self._read_only = read_only
        self._known: dict[str, _Known] | None = None
        self._seen: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def remember(self, image: str, paths: Iterable[str]) -> Sequence[MovedTag]:
        """Remember these files of an image as they are now; return those that came out of the same reference as others before.

        Raises:
            FileError: the record cannot be written.
        """
        moved = []
        with self._lock:
            known = dict(self._load())
            for path in paths:
                before = known.pop(path, None)
                self._seen.pop(path, None)
                if (now := self._look(path, before)) is None:
                    continue
                known[path] = now.model_copy(update={"image": image})
                if before is not None and before.image == image and before.digest != now.digest:
                    moved.append(MovedTag(path, image, before.digest, now.digest))
            self._save(known)
        return moved

    def changed(self, wanted: Iterable[File]) -> Iterator[Finding]:
        """Yield each file out of an image that is not as it was when it was copied; a missing one is not looked at."""
        with self._lock:
            known = dict(self._load())
            for file in wanted:
                if file.content.image_ref is None:
                    continue
                now = self._look(file.path, self._newest(file.path), known.get(file.path))
                if now is None:
                    continue
                before = known.setdefault(file.path, now)
                if now.digest == before.digest:
                    # What an older agent remembered without it came out of what the applied OSC names.
                    image = before.image or file.content.image_ref.image
                    known[file.path] = now.model_copy(update={"image": image})
                    continue
                # Where it is only reported, or put right too often already, it is not read again and again.
                self._seen[file.path] = now
                message = f"file {file.path} is not as it came out of its image: "
                digests = f"expected SHA-256 {before.digest}, found {now.digest or f'{now.size} bytes'}"
                yield Finding(
                    "FileMismatch", message + digests, path=file.path, changed_at=now.changed / 1e9, definition=True
                )
            self._try_save(known)

    def keep_only(self, paths: Collection[str]) -> None:
        """Forget all other files."""
        with self._lock:
            self._seen = {path: seen for path, seen in self._seen.items() if path in paths}
            self._try_save({path: known for path, known in self._load().items() if path in paths})

    def _newest(self, path: str) -> _Known | None:
        """Return what was read last of a file, also where it was not what it should be."""
        return self._seen.get(path) or self._load().get(path)

    def _look(self, path: str, before: _Known | None, copied: _Known | None = None) -> _Known | None:
        """Return what a file is now; its content is read only if it may be another one than before.

        A huge one that has not even the size of what was copied is not read: it has no digest.
        """
        place = self._root / path.lstrip("/")
        try:
            with files.walk(place) as (directory, name):
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor, not a path
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    return None
                if before is not None and before.is_same(found):
                    return before
                other = copied is not None and copied.size != found.st_size
                digest = "" if other and found.st_size > files.MOST_READ_BYTES else _digest(file)
        except (OSError, AgentError) as error:
            log.debug("File out of an image not read", path=path, error=str(error))
            return None
        inode, size, modified, changed = _identity(found)
        return _Known(path=path, digest=digest, inode=inode, size=size, modified=modified, changed=changed)

    def _load(self) -> Mapping[str, _Known]:
        if self._known is None:
            try:
                content = files.read_optional(self._record)
                record = _Record.model_validate_json(content) if content else _Record()
            except (AgentError, ValidationError) as error:
                log.error("Record of files out of images unreadable", path=str(self._record), error=str(error)[:200])
                record = _Record()
            self._known = {known.path: known for known in record.files}
        return self._known

    def _save(self, known: dict[str, _Known]) -> None:
        if known != self._known and not self._read_only:
            document = {"files": [item.model_dump() for _path, item in sorted(known.items())]}
            files.write_atomic(self._record, dump_json(document), mode=_MODE)
            self._known = known

    def _try_save(self, known: dict[str, _Known]) -> None:
        try:
            self._save(known)
        except AgentError as error:
            # Only looked at again the next time.
            log.debug("Record of files out of images not written", error=error)


class RememberingExtractor:
    """An ImageExtractor that remembers what it has copied.

    Args:
        images: does the work.
        extracted: the record.
        moved: told about each file that is another one than before, though its image has the same name.
    """

    def __init__(self, *, images: ImageExtractor, extracted: ExtractedFiles, moved: Callable[[MovedTag], None]) -> None:
        self._images = images
        self._extracted = extracted
        self._moved = moved

    async def extract(self, image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        """See ImageExtractor."""
        results = await self._images.extract(image, wanted)
        copied = [target for target, result in results.items() if not isinstance(result, AgentError)]
        try:
            moved = await run_to_end(self._extracted.remember, image, copied)
        except AgentError as error:
            return {**results, **dict.fromkeys(copied, error)}
        for one in moved:
            log.info("Tag of an image has moved", path=one.path, image=one.image, before=one.before, now=one.now)
            self._moved(one)
        return results

    async def clean(self) -> None:
        """See ImageExtractor."""
        await self._images.clean()


def _digest(file: FileIO) -> str:
    """Return the SHA-256 of a file that is not to stay in the kernel's memory for this."""
    digest, offset = hashlib.sha256(), 0
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
        os.posix_fadvise(file.fileno(), offset, len(piece), os.POSIX_FADV_DONTNEED)
        offset += len(piece)
    return digest.hexdigest()


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
