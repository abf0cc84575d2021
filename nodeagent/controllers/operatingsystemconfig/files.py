"""Write and remove the OSC's files: many at a time, each failing alone.

Source: gardener pkg/nodeagent/controller/operatingsystemconfig/reconciler.go (contract 6.5).
"""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from agents.core import files
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.models import SECRETS
from nodeagent.host.originals import Originals
from osc.codec import InvalidContent, decode_file_content
from osc.types import File, SecretRef

log = get_logger(__name__)

NAMESPACE = "kube-system"
FILES_AT_ONCE = 128
"""Each staged file holds one descriptor; systemd's default limit is 1024."""


class ContentUnavailable(RetriableError):
    """The bytes of a file cannot be had: a Secret or its key is missing."""


@dataclass(frozen=True, slots=True)
class Write:
    """One file to be written."""

    key: str
    """What it belongs to: id of the step."""
    path: Path
    content: bytes = field(repr=False)
    mode: int


@dataclass(slots=True)
class Written:
    """What became of a number of writes, by key; a mode that was set is no change of bytes."""

    changed: set[str] = field(default_factory=set)
    failed: dict[str, AgentError] = field(default_factory=dict)


def write(writes: Sequence[Write]) -> Written:
    """Write files with shared passes of fsyncs; blocking, run it in a thread. A key fails if one of its files does."""
    written = Written()
    for chunk in _chunks(writes, FILES_AT_ONCE):
        _write_chunk(chunk, written)
    return written


def _write_chunk(chunk: Sequence[Write], written: Written) -> None:
    staged: dict[Path, Write] = {}
    with files.Batch() as batch:
        for item in chunk:
            try:
                change = batch.stage(item.path, item.content, mode=item.mode)
                if change is files.Change.CONTENT:
                    staged[item.path] = item
                elif change:
                    log.info("File mode set", path=str(item.path), mode=f"{item.mode:04o}")
            except AgentError as error:
                written.failed.setdefault(item.key, error)
        failed = batch.commit()
    for path, item in staged.items():
        # Also where it failed: the rename may have happened before, and the next attempt would find equal bytes.
        written.changed.add(item.key)
        if path in failed:
            written.failed.setdefault(item.key, failed[path])
        else:
            log.info("File written", path=str(path))


def _chunks(writes: Sequence[Write], size: int) -> Iterator[Sequence[Write]]:
    iterator = iter(writes)
    while chunk := tuple(islice(iterator, size)):
        yield chunk


def take_back(originals: Originals, path: Path) -> None:
    """Remove a file, or put back what was there before it."""
    if originals.take_back(path):
        log.info("File removed", path=str(path))


class Contents:
    """Resolves what a file holds: from the OSC itself, or from a Secret that is read past the cache."""

    def __init__(self, *, client: Client) -> None:
        self._client = client

    async def resolve(self, wanted: Iterable[File]) -> Mapping[str, bytes | AgentError]:
        """Return the bytes of each path, or why they cannot be had. Each Secret is read once, images are left out."""
        wanted = tuple(wanted)
        secrets = await self._read({file.content.secret_ref.name for file in wanted if file.content.secret_ref})
        return await asyncio.to_thread(
            lambda: {file.path: self._content(file, secrets) for file in wanted if file.content.image_ref is None}
        )

    async def _read(self, names: set[str]) -> Mapping[str, Mapping[str, bytes] | AgentError]:
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(self._read_one(name)) for name in sorted(names)}
        return {name: task.result() for name, task in tasks.items()}

    async def _read_one(self, name: str) -> Mapping[str, bytes] | AgentError:
        try:
            return (await self._client.get(SECRETS, name, namespace=NAMESPACE)).data
        except AgentError as error:
            return error

    def _content(self, file: File, secrets: Mapping[str, Mapping[str, bytes] | AgentError]) -> bytes | AgentError:
        if file.content.secret_ref is not None:
            return self._from_secret(file.content.secret_ref, secrets[file.content.secret_ref.name])
        if file.content.inline is None:
            return ContentUnavailable("file has no content", path=file.path)
        try:
            return decode_file_content(file.content.inline)
        except InvalidContent as error:
            return ContentUnavailable("content cannot be decoded", path=file.path, problem=str(error))

    def _from_secret(self, reference: SecretRef, data: Mapping[str, bytes] | AgentError) -> bytes | AgentError:
        if isinstance(data, AgentError):
            return data
        if reference.data_key not in data:
            return ContentUnavailable("secret has no such key", secret=reference.name, key=reference.data_key)
        return data[reference.data_key]


def digest(content: bytes) -> str:
    """Return how a Secret's content is remembered: by its SHA-256, never by itself."""
    return hashlib.sha256(content).hexdigest()
