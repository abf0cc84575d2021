"""Carry out a plan: each item fails alone, and what does not depend on a failed one is done all the same.

The order is the plan's. Neighbours of one kind run together: files share passes of fsyncs, units are enabled in one call,
unit commands run in parallel. An item is marked in the journal after it was done, never before.

Files out of images take as long as a registry pleases, so they are fetched beside everything else; what needs an image's files
follows as soon as that image's are there.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby, takewhile
from pathlib import Path
from typing import ClassVar

from agents.core import files as core_files
from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.core.together import first_of
from nodeagent.controllers.operatingsystemconfig import files, units
from nodeagent.controllers.operatingsystemconfig.apply_pass import ApplyTooSlow, Outcome, Pass
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles, RegistryNotReady
from nodeagent.controllers.operatingsystemconfig.units import UnitJobs
from nodeagent.host.former_units import FormerUnits
from nodeagent.host.image_extractor import Extraction, ImageExtractor
from nodeagent.host.originals import Originals
from osc.containerd import CONTAINERD_UNIT
from osc.journal import Journal
from osc.plan import (
    KUBELET_UNIT,
    ConfigureContainerd,
    DisableUnit,
    EnableUnit,
    ExtractFile,
    Plan,
    ProbeRegistry,
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
from systemd.manager import UnitManager
from systemd.unitfiles import UnitFiles

log = get_logger(__name__)


class Applier:
    """Carries out plans on this machine."""

    def __init__(
        self,
        *,
        unit_manager: UnitManager,
        jobs: UnitJobs,
        journal: Journal,
        containerd: ContainerdFiles,
        images: ImageExtractor,
        originals: Originals,
        file_removed: Callable[[str], None],
        check: Callable[[], None],
        clock: Clock,
        root: Path,
    ) -> None:
        self._units = unit_manager
        self._containerd = containerd
        self._images = images
        self._check = check
        self._clock = clock
        self._jobs = jobs
        self._journal = journal
        self._file_removed = file_removed
        self._root = root
        self._originals = originals
        self._former = FormerUnits(originals=originals, units=unit_manager, root=root)
        self._unit_files = UnitFiles(root=root, take_back=originals.take_back)
        self._restart_owed = False
        self._journal_lock = asyncio.Lock()
        """Files out of images arrive while other steps are carried out, and the journal is not safe for threads."""

    async def apply(self, plan: Plan, contents: Mapping[str, bytes | AgentError], *, seconds: float) -> Outcome:
        """Carry out all that can be.

        Args:
            plan: what is left.
            contents: bytes of each file by path, or why they cannot be had.
            seconds: how long it may take; what failed until then is told all the same.
        """
        run = Pass(plan=plan, contents=contents, restart=self._restart_owed)
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                await self._carry_out(run)
        except TimeoutError as error:
            if not scope.expired():
                raise
            run.stopped = ApplyTooSlow("apply took too long, going on with what is left", seconds=seconds)
            run.stopped.__cause__ = error
        except core_files.FileError as error:
            run.stopped, run.restart = error, False  # a restart is owed until the journal is on the disk
        return run.outcome()

    async def tidy(self) -> None:
        """Remove what files out of images needed and what could not be removed then."""
        await self._images.clean()

    async def _carry_out(self, run: Pass) -> None:
        try:
            steps = run.plan.steps
            extractions = run.take_extractions()
            await self._round(run, list(takewhile(lambda step: not isinstance(step, ExtractFile), steps)))
            if extractions:
                await self._while_fetching(extractions, run)
            await self._round(run, steps)
            self._restart_owed = run.restart
            await self._flush(sync=run.restart)
        except BaseExceptionGroup as group:
            raise first_of(group) from group

    async def _while_fetching(self, extractions: Sequence[ExtractFile], run: Pass) -> None:
        """Fetch files out of images, and go on with what each image brought as soon as it did."""
        run.held = _held_while_fetching(run.plan.steps)
        arrived = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(self._extract(extractions, run, arrived), name="files out of images")
            fetching.add_done_callback(lambda _task: arrived.set())
            while True:
                arrived.clear()
                await self._round(run, run.plan.steps)
                if run.restart:
                    fetching.cancel()  # the next process goes on with it, perhaps as another version
                if run.restart or fetching.done():
                    break
                await arrived.wait()
        run.held = frozenset()

    async def _round(self, run: Pass, steps: Sequence[Step]) -> None:
        """Carry out what can be and was not yet."""
        for kind, group in groupby(steps, key=_group):
            if run.restart:
                break
            todo = run.take(group)
            if todo:
                self._check()
                started = self._clock.monotonic()
                await self._handlers[kind](self, todo, run)
                run.took(kind.verb, self._clock.monotonic() - started)

    async def _extract(self, steps: Sequence[ExtractFile], run: Pass, arrived: asyncio.Event) -> None:
        """Fetch files out of images, each image once and all images at the same time."""
        by_image: dict[str, list[ExtractFile]] = defaultdict(list)
        for step in steps:
            if step.file.content.image_ref is not None:
                by_image[step.file.content.image_ref.image].append(step)
        async with asyncio.TaskGroup() as group:
            for image, wanted in by_image.items():
                group.create_task(self._extract_from(image, wanted, run, arrived))

    async def _extract_from(self, image: str, steps: Sequence[ExtractFile], run: Pass, arrived: asyncio.Event) -> None:
        wanted = [
            Extraction(step.file.content.image_ref.file_path_in_image, step.name, step.file.mode)
            for step in steps
            if step.file.content.image_ref is not None
        ]
        started = self._clock.monotonic()
        async with self._own_replacements(steps, run):
            results = await self._images.extract(image, wanted)
        run.took(ExtractFile.verb, self._clock.monotonic() - started)
        done = []
        for step in steps:
            result = results[step.name]
            if isinstance(result, AgentError):
                run.fail(step, result)
            else:
                done.append(step)
        await self._done(done)
        for step in steps:
            del run.unfinished[step.id]
        arrived.set()

    @asynccontextmanager
    async def _own_replacements(self, steps: Iterable[Step], run: Pass) -> AsyncIterator[None]:
        """Record which own files were replaced meanwhile.

        Looked at and not asked for: the answer is lost where the pass is stopped, or where something fails after the rename, and the
        next attempt would find equal bytes.
        """
        own = {step.id: self._at(step.name) for step in steps if step.id in run.own_watched}
        before = await run_to_end(_identities, own)
        try:
            yield
        finally:
            after = await run_to_end(_identities, own)
            run.changed |= {key for key in own if before[key] != after[key]}
            async with self._journal_lock:
                await run_to_end(self._note_own_change, run)

    async def _configure_containerd(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            if isinstance(step, ConfigureContainerd):
                try:
                    # A restart that is under way was begun for what the file said before.
                    await self._containerd.configure(step.runtime, changes=lambda: self._jobs.forget([CONTAINERD_UNIT]))
                    await self._done([step])
                except AgentError as error:
                    run.fail(step, error)

    async def _write_registries(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            if isinstance(step, WriteRegistry):
                try:
                    await run_to_end(self._containerd.write_registry, step.registry)
                    await self._done([step])
                except AgentError as error:
                    run.fail(step, error)

    async def _probe_registries(self, steps: Sequence[Step], run: Pass) -> None:
        """Write what answers; what does not is asked again later and holds nothing else back."""
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(self._probe_registry(step, run), name=step.id)

    async def _probe_registry(self, step: Step, run: Pass) -> None:
        if not isinstance(step, ProbeRegistry):
            return
        try:
            await self._containerd.probe(step.registry)
            await self._write_registries([step], run)
        except RegistryNotReady as error:
            run.unfinished[step.id] = (step, str(error))

    async def _remove_registries(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            if isinstance(step, RemoveRegistry):
                try:
                    await run_to_end(self._containerd.remove_registry, step.name, keep=step.keep)
                    await self._done([step])
                except AgentError as error:
                    run.fail(step, error)

    async def _write_files(self, steps: Sequence[Step], run: Pass) -> None:
        writes = []
        for step in steps:
            if not isinstance(step, WriteFile):
                continue
            content = run.contents.get(step.name, b"")
            if isinstance(content, AgentError):
                run.fail(step, content)
            else:
                writes.append(files.Write(step.id, self._at(step.name), content, step.file.mode))
        await self._write(steps, writes, run)

    async def _write_units(self, steps: Sequence[Step], run: Pass) -> None:
        """Write unit files and drop-ins of all, then enable or disable those that were written."""
        writing = await self._note_former_units([step for step in steps if isinstance(step, WriteUnit)], run)
        self._jobs.forget(step.name for step in writing)
        await self._write(writing, [write for step in writing for write in units.writes(step, self._unit_files)], run)
        enable = [step for step in steps if isinstance(step, EnableUnit) and not run.is_blocked(step)]
        for step in enable:
            if not step.explicit:
                log.debug("Unit enabled although the OSC leaves that open", unit=step.name)
        await self._switch(enable, self._units.enable, run)
        disable = [step for step in steps if isinstance(step, DisableUnit) and not run.is_blocked(step)]
        await self._switch(disable, self._units.disable, run)

    async def _note_former_units(self, steps: Sequence[WriteUnit], run: Pass) -> list[WriteUnit]:
        """Note what units of the operating system are before they change; returns those that may."""
        noted = []
        for step in steps:
            try:
                if step.unit.content is not None:
                    await self._former.note(step.name)
                noted.append(step)
            except AgentError as error:
                run.fail(step, error)
        return noted

    async def _write(self, steps: Sequence[Step], writes: Sequence[files.Write], run: Pass) -> None:
        """Write, remove drop-ins that are gone, and mark what was done."""
        todo = [step for step in steps if step.id not in run.failed]
        async with self._journal_lock:
            await run_to_end(self._write_blocking, todo, writes, run)

    def _write_blocking(self, steps: Sequence[Step], writes: Sequence[files.Write], run: Pass) -> None:
        by_step = {step.id: step for step in steps}
        for chunk in _by_key(writes, files.FILES_AT_ONCE):
            written = files.write(chunk)
            for key, error in written.failed.items():
                run.fail(by_step[key], error)
            run.changed |= written.changed
            self._note_own_change(run)
            keys = {write.key for write in chunk}
            self._journal.done(*self._leftovers_removed([by_step[key] for key in by_step if key in keys], run))
        keys = {write.key for write in writes}
        self._journal.done(*self._leftovers_removed([step for step in steps if step.id not in keys], run))

    def _leftovers_removed(self, steps: Iterable[Step], run: Pass) -> list[Step]:
        done: list[Step] = []
        for step in steps:
            if step.id in run.failed:
                continue
            try:
                if isinstance(step, WriteUnit) and units.remove_leftovers(step, self._unit_files):
                    run.changed.add(step.id)
                    self._note_own_change(run)
                done.append(step)
            except AgentError as error:
                run.fail(step, error)
        return done

    def _note_own_change(self, run: Pass) -> None:
        """Record at once that our own bytes changed: a kill before the restart must not forget it."""
        if run.own_watched & run.changed:
            self._journal.own_bytes_changed()

    async def _switch(self, steps: Sequence[Step], call: Callable[[Sequence[str]], Awaitable[None]], run: Pass) -> None:
        """Enable or disable all at once; if that fails one by one, so that only the bad one fails."""
        if not steps:
            return
        try:
            await call([step.name for step in steps])
            await self._done(steps)
        except AgentError as error:
            if len(steps) == 1:
                run.fail(steps[0], error)
                return
            for step in steps:
                await self._switch([step], call, run)

    async def _remove_units(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            if isinstance(step, RemoveUnit):
                try:
                    if await self._remove_unit(step):
                        await self._done([step])
                    else:
                        run.unfinished[step.id] = (step, "")
                except AgentError as error:
                    run.fail(step, error)

    async def _remove_unit(self, step: RemoveUnit) -> bool:
        """Stop a unit that was ours and remove what we brought; False while it is still stopping."""
        ours = step.created and await asyncio.to_thread(self._unit_files.exists, step.name)
        if ours:
            await self._units.disable([step.name])
            if not await self._jobs.stop(step.name):
                return False
        # Somebody removed our file: what was there before us comes back all the same.
        back = ours or (step.created and await asyncio.to_thread(self._unit_files.is_missing, step.name))
        if await run_to_end(self._unit_files.remove, step.name, unit_file=back, drop_ins=step.drop_ins):
            log.info("Unit removed", unit=step.name)
        if back:
            await self._former.is_back(step.name)
        return True

    async def _reload(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            try:
                await self._units.reload()
                await self._former.restore_owed()
                await self._done([step])
            except AgentError as error:
                run.fail(step, error)

    async def _restart_agent(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            if isinstance(step, RestartAgent):
                run.restart = step.required or bool(step.watched & run.changed)
                # Marked as done before the process ends; should the journal not get onto the disk, it is still owed.
                self._restart_owed = run.restart
                await self._done([step])

    async def _run_commands(self, steps: Sequence[Step], run: Pass) -> None:
        if not steps:
            return
        await self._flush()
        async with asyncio.TaskGroup() as group:
            for step in steps:
                if isinstance(step, RunUnitCommand):
                    group.create_task(self._run_command(step, run), name=step.id)

    async def _run_command(self, step: RunUnitCommand, run: Pass) -> None:
        try:
            if await self._jobs.run(step):
                await self._done([step])
            else:
                run.unfinished[step.id] = (step, "")
        except AgentError as error:
            run.fail(step, error)

    async def _remove_files(self, steps: Sequence[Step], run: Pass) -> None:
        async with self._journal_lock:
            await run_to_end(self._remove_files_blocking, steps, run)

    def _remove_files_blocking(self, steps: Sequence[Step], run: Pass) -> None:
        for step in steps:
            try:
                files.take_back(self._originals, self._at(step.name))
                self._journal.done(step)
                self._file_removed(step.name)
            except AgentError as error:
                run.fail(step, error)

    async def _done(self, steps: Iterable[Step]) -> None:
        async with self._journal_lock:
            await run_to_end(self._journal.done, *steps)

    async def _flush(self, *, sync: bool = False) -> None:
        async with self._journal_lock:
            await run_to_end(self._journal.flush, sync=sync)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    _handlers: ClassVar[Mapping[type[Step], "_Handler"]] = {
        WriteFile: _write_files,
        WriteUnit: _write_units,
        RemoveUnit: _remove_units,
        RemoveFile: _remove_files,
        ReloadDaemon: _reload,
        RestartAgent: _restart_agent,
        RunUnitCommand: _run_commands,
        ConfigureContainerd: _configure_containerd,
        WriteRegistry: _write_registries,
        ProbeRegistry: _probe_registries,
        RemoveRegistry: _remove_registries,
    }


_Handler = Callable[[Applier, Sequence[Step], Pass], Awaitable[None]]


def _held_while_fetching(steps: Iterable[Step]) -> frozenset[str]:
    """Return the commands that wait for all images.

    A restart of containerd would cut off our own pulls. The kubelet goes with it: started before, it would lose its container
    runtime at once; asked for together, systemd has them in their order.
    """
    restart, kubelet = (f"{RunUnitCommand.verb}:{unit}" for unit in (CONTAINERD_UNIT, KUBELET_UNIT))
    return frozenset({restart, kubelet}) if any(step.id == restart for step in steps) else frozenset()


def _group(step: Step) -> type[Step]:
    """Steps of one group are carried out together."""
    return WriteUnit if isinstance(step, EnableUnit | DisableUnit) else type(step)


def _identities(places: Mapping[str, Path]) -> Mapping[str, tuple[int, int] | None]:
    """Return what tells a file from the one that replaces it, by the same keys; None if there is none."""
    found: dict[str, tuple[int, int] | None] = {}
    for key, place in places.items():
        try:
            status = place.lstat()
        except OSError:
            found[key] = None
        else:
            found[key] = status.st_dev, status.st_ino
    return found


def _by_key(writes: Sequence[files.Write], size: int) -> Iterable[Sequence[files.Write]]:
    """Cut into chunks of about this size, never through the files of one key."""
    chunk: list[files.Write] = []
    for _key, group in groupby(writes, key=lambda write: write.key):
        chunk.extend(group)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
