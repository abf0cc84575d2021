"""Files out of container images (contract 6.16), with `ctr`.

An image is pulled, mounted as a read-only view below `tmp/`, and the files are copied beside their targets and renamed.
Nothing stays: mount, snapshot, lease, directory and, unless it was there before, the image's record are removed after
success, failure and cancellation; what a kill leaves is removed by `clean` or before the next extraction.

An image that is named by its digest and that containerd still has is not pulled again: the machine needs no registry
for what is there (the node agent's own image, left by the init script). One that is named by a tag alone is resolved
each time it is extracted, and all files of one extraction are of the same image even if the tag moves meanwhile. Between
two extractions nobody looks whether the tag has moved: the files on the disk stay those of the image that was current
when the OperatingSystemConfig brought them. Gardener renders digests, so this is said in the log.

Source: gardener pkg/nodeagent/registry/containerd_extractor.go; deviations W8, W23 and W33 of contract section 9.
"""

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from agents.core import files
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.core.threads import Stop, run_to_end, run_until_stopped
from agents.core.together import both
from nodeagent.host import image_files
from nodeagent.host.ctr import Ctr, CtrError
from nodeagent.host.extraction_ledger import LABEL, ExtractionLedger
from nodeagent.paths import Paths

log = get_logger(__name__)

PULL_DEADLINE = timedelta(minutes=3)
"""What Gardener's agent allows a whole reconcile. Half of a layer does not outlive the pull's lease: it is not resumed."""
_DEFAULT_SOURCE = "/gardener-node-agent"
_OLD_SOURCE = "/ko-app/gardener-node-agent"
_REFERENCE = re.compile(r"[\w.:/@+\[\]-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Extraction:
    """One file to be copied out of an image.

    Attributes:
        source: path in the image, for example `/gardener-node-agent`.
        target: absolute path on the machine, for example `/opt/bin/gardener-node-agent`.
        mode: permission bits.
    """

    source: str
    target: str
    mode: int


class ImageExtractor(Protocol):
    """Copies files out of container images; calls for different images may run at the same time."""

    async def extract(self, image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        """Copy files out of one image, which is pulled once.

        Args:
            image: reference with registry; with a digest or a tag.
            wanted: what to copy; each target once.

        Returns:
            By target: whether bytes on disk changed, or why it failed. A pull that fails is the error of every target.
            Never raises but for cancellation.
        """
        ...

    async def clean(self) -> None:
        """Remove mounts, snapshots, leases, image records and temporary directories that a killed run left.

        To be called after a start, and now and then. Never raises but for cancellation: what cannot be removed now is removed
        by a later call, or before the next extraction. Costs nothing if nothing was left.
        """
        ...


class ImageError(RetriableError):
    """No file of an image can be had; fields: `image` and `problem`."""


class CtrImageExtractor:
    """An ImageExtractor that stands on containerd's client."""

    def __init__(self, *, paths: Paths, ctr: Ctr, pull_deadline: timedelta = PULL_DEADLINE) -> None:
        self._paths = paths
        self._ctr = ctr
        self._pull_deadline = pull_deadline
        self._ledger = ExtractionLedger(paths=paths, ctr=ctr)
        self._lock = asyncio.Lock()
        self._under_way = 0
        self._interrupted = False
        self._untidy = False
        self._by_image: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def extract(self, image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        """See ImageExtractor."""
        try:
            # Kept in the dictionary for as long as somebody holds or awaits it.
            lock = self._by_image.setdefault(image, asyncio.Lock())
            async with lock, self._recorded():
                return await self._extract(image, wanted)
        except AgentError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - one image's failure must not become its caller's
            log.error("Image extraction failed unexpectedly", image=image, error=error)
            failure = ImageError("image extraction failed", image=image, problem=repr(error))
        return {extraction.target: failure for extraction in wanted}

    async def clean(self) -> None:
        """See ImageExtractor."""
        async with self._lock:
            if self._under_way == 0:
                try:
                    await self._clean()
                except (AgentError, OSError) as error:
                    log.error("Leftovers of an interrupted image extraction not removed", error=error)

    async def _clean(self) -> None:
        if await self._ledger.has_leftovers():
            await self._ledger.clean()
            log.info("Leftovers of an interrupted image extraction removed")

    @contextlib.asynccontextmanager
    async def _recorded(self) -> AsyncIterator[None]:
        """Hold the ledger open; the first one in opens it, the last one out closes it."""
        async with self._lock:
            if self._under_way == 0:
                await self._clean()
                await self._ledger.open()
                self._interrupted = self._untidy = False
            self._under_way += 1
        try:
            yield
        except BaseException:
            self._interrupted = True
            raise
        finally:
            async with self._lock:
                self._under_way -= 1
                if self._under_way == 0:
                    if not self._untidy:
                        await self._quietly(self._ledger.close(interrupted=self._interrupted))
                    if self._untidy:
                        await self._quietly(self._clean())

    async def _quietly(self, removal: Awaitable[None]) -> None:
        """Remove something; a failure is logged and keeps the ledger open, so that `clean` tries it again."""
        try:
            await removal
        except AgentError as error:
            self._untidy = True
            log.error("Image extraction not cleaned up; tried again later", error=error)

    @contextlib.asynccontextmanager
    async def _mounted(self, image: str) -> AsyncIterator[Path]:
        """Have the image, mounted; afterwards as if it had never been here."""
        _check(image)
        async with self._image(image) as present:
            directory = Path(await run_to_end(self._make_directory))
            try:
                await self._mount(image, directory, present=present)
                yield directory
            finally:
                await self._quietly(self._ledger.unmount(directory))

    @contextlib.asynccontextmanager
    async def _image(self, image: str) -> AsyncIterator[bool]:
        """Remove the image's record afterwards, unless somebody else had brought it; yield whether it is there already."""
        # The client's version is asked for by the pull; here it takes no time of its own.
        found, _ = await both(lambda: self._ctr.images(f'name=="{image}"'), self._ctr.major_version)
        present = bool(found)
        ours = not present or bool(await self._ctr.images(f'name=="{image}",labels."{LABEL}"==true'))
        try:
            yield present
        finally:
            if ours:
                await self._quietly(self._ctr.remove_images(image))

    async def _mount(self, image: str, directory: Path, *, present: bool) -> None:
        pinned = "@" in image
        if present and pinned:
            try:
                await self._mount_anew(image, directory)
            except CtrError as error:
                log.debug("Image is there, but not complete", image=image, error=error)
            else:
                return
        await self._pull(image, label=None if present else LABEL)
        if not pinned:
            log.info("Image is named by a tag, not by a digest: it may be another one the next time", image=image)
        try:
            await self._mount_anew(image, directory)
        except CtrError as error:
            raise ImageError("image not mounted", image=image, problem=error.fields["problem"]) from error

    async def _mount_anew(self, image: str, directory: Path) -> None:
        """Mount an image, and have nothing in it that was unpacked before this extraction.

        containerd syncs what it pulls, and verifies it, but not what it unpacks: after a power cut a file of a snapshot may be empty, and
        nobody would notice. So what was there already is removed and unpacked again, unless somebody stands on it.
        """
        await self._ctr.mount(image, directory)
        before = self._ledger.unpacked_before
        if not before:
            return
        layers = _layers(str(directory), await self._ctr.snapshots())
        if before.isdisjoint(layers):
            return
        await self._ctr.unmount(directory)
        lowest = max(index for index, layer in enumerate(layers) if layer in before)
        for layer in layers[: lowest + 1]:
            try:
                await self._ctr.remove_snapshot(layer)
            except CtrError as error:
                log.info("Layer of an image is in use, it is taken as it is", image=image, layer=layer, error=error)
                break
            before.discard(layer)
        await self._ctr.mount(image, directory)

    async def _pull(self, image: str, *, label: str | None) -> None:
        try:
            await self._ctr.pull(image, label=label, deadline=self._pull_deadline)
        except CtrError as error:
            raise ImageError("image not pulled", image=image, problem=error.fields.get("problem")) from error

    async def _extract(self, image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        """Copy the files beside their targets; then remove the image; then sync and rename them.

        In this order, because what is unpacked for a moment need not reach the disk: a sync that comes before its removal
        takes it along.
        """
        with files.Batch() as batch:
            async with self._mounted(image) as mount:
                staged = {one.target: await self._stage(batch, mount, image, one) for one in wanted}
            failed = await run_to_end(batch.commit)
        answers: dict[str, bool | AgentError] = {}
        for one in wanted:
            change = staged[one.target]
            if not isinstance(change, AgentError):
                change = failed.get(self._at(one.target), change)
            answers[one.target] = change if isinstance(change, AgentError) else change is files.Change.CONTENT
            _say(one, image, change)
        return answers

    async def _stage(
        self, batch: files.Batch, mount: Path, image: str, wanted: Extraction
    ) -> files.Change | AgentError:
        try:
            return await run_until_stopped(lambda stop: self._stage_blocking(batch, mount, wanted, stop))
        except image_files.ImageFileError as error:
            error.fields["image"] = image
            return error
        except AgentError as error:
            return error

    def _stage_blocking(self, batch: files.Batch, mount: Path, wanted: Extraction, stop: Stop) -> files.Change:
        target = self._at(wanted.target)
        with _open_source(mount, wanted.source) as descriptor:
            content = files.OpenFile(descriptor, os.fstat(descriptor).st_size, proceed=stop)
            return batch.stage(target, content, mode=wanted.mode)

    def _at(self, path: str) -> Path:
        return self._paths.root / path.lstrip("/")

    def _make_directory(self) -> str:
        files.ensure_directory(self._paths.temporary, mode=0o700)
        prefix = Path(self._paths.image_mounts)
        try:
            return tempfile.mkdtemp(prefix=prefix.name, dir=prefix.parent)
        except OSError as error:
            raise files.FileError("directory not created", prefix.parent, error) from error


def _layers(key: str, parents: Mapping[str, str]) -> list[str]:
    """Return what a snapshot stands on, from the top down."""
    found = []
    while key := parents.get(key, ""):
        found.append(key)
    return found


@contextlib.contextmanager
def _open_source(mount: Path, source: str) -> Iterator[int]:
    """Open a file of the image; the agent itself may be where old images had it."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(image_files.open_file(mount, source))
        except image_files.NotInImage as error:
            if source != _DEFAULT_SOURCE:
                raise
            try:
                descriptor = stack.enter_context(image_files.open_file(mount, _OLD_SOURCE))
            except image_files.NotInImage:
                raise error from None
        yield descriptor


def _say(extraction: Extraction, image: str, change: files.Change | AgentError) -> None:
    if change is files.Change.CONTENT:
        log.info("File written", path=extraction.target, image=image, source=extraction.source)
    elif change is files.Change.MODE:
        log.info("File mode set", path=extraction.target, mode=f"{extraction.mode:04o}")


def _check(image: str) -> None:
    """Refuse what `ctr` could take for an option or a filter.

    Raises:
        ImageError: it is no image reference.
    """
    if not image or image.startswith("-") or not _REFERENCE.fullmatch(image):
        raise ImageError("image not pulled", image=image[:256], problem="not an image reference")
