"""`gardener-node-agent reset`: take everything off this machine that the agent and its OSCs brought.

Four steps, each repeatable; one that fails keeps the next ones from running, and the state files that say what is ours go
only after all that they tell of is gone. The configuration file and, if an OSC brought it, the agent's own program are the
very last: without them no reset can be started. So a reset that was killed or failed anywhere is completed by the next one, and
one that completed leaves nothing to do. That the program is to go, and does not belong to whoever set the machine up, a file
in the agent's folder says meanwhile, since what told it goes before.

Differences from Gardener's agent (W41): units of the operating system keep running, unit files and drop-ins go or are as
they were before, systemd reads again, mounts are undone from the deepest up, files of other hosts stay, a container runtime that does not answer
holds nothing up (what still runs in Pods' cgroups is then stopped by systemd), and a data volume is emptied before it is
unmounted, so that a new join does not meet the old kubelet's credentials.

Source: gardener pkg/nodeagent/reset/reset.go (contract 8.4).
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from agents.core import files, trees
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from nodeagent.host.cri import CriRefused, CriUnavailable, PodSandbox, PodSandboxes
from nodeagent.host.former_units import FormerUnits
from nodeagent.host.originals import Originals
from nodeagent.paths import UNPACKED, Paths
from nodeagent.remains import Remains, UnitRemains
from osc.containerd import CERTS_DIRECTORY, CONFIG_FILE, CONTAINERD_UNIT, HOSTS_FILE, hosts_file, hosts_toml
from osc.types import OWN_UNIT, UNIT_DIRECTORY, Registry
from systemd.errors import BusUnavailable, SystemdError, UnitMasked, UnitNotFound
from systemd.jobs import JobOutcome
from systemd.manager import UnitManager
from systemd.unitfiles import UnitFiles

log = get_logger(__name__)

KUBELET_UNIT = "kubelet.service"
PODS_SLICE = "kubepods.slice"
MOUNT_UNIT = "var-lib-kubelet.mount"
SUCCESS = "Everything that gardener-node-agent had brought to this machine is gone; it can join again."

STOP_PATIENCE = timedelta(minutes=3)
"""How long a unit may take to stop; systemd itself kills most after 90 s."""
LOOK_AGAIN = timedelta(seconds=1)
SANDBOX_ATTEMPTS = 5  # contract 8.4
SANDBOXES_AT_ONCE = 8
SANDBOXES_DEADLINE = timedelta(minutes=5)
_MARKER = hosts_toml(Registry()).splitlines()[0].encode()


class ResetFailed(RetriableError):
    """Something could not be done; `problems` names each thing. The same command can be run again."""

    def __init__(self, message: str, problems: Collection[str]) -> None:
        super().__init__(message, problems="; ".join(problems))


class Folders(Protocol):
    """The two folders that are emptied, and what is mounted in them."""

    async def empty_kubelet(self) -> None:
        """Unmount what is below the kubelet's folder and empty it, on the data volume if there is one."""
        ...

    async def leave_kubelet(self) -> None:
        """As `empty_kubelet`, and unmount the data volume as well."""
        ...

    async def empty_own(self, *, keep: Collection[Path]) -> None:
        """Empty the agent's folders but for some files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a reset works with.

    Attributes:
        paths: where things are.
        config_file: the configuration that was read.
        tokens: files that the token controller writes.
        units: systemd.
        sandboxes: of Pods.
        folders: of the agent and of the kubelet.
        originals: what was there before us.
        find_remains: tells what is left of all OSCs; blocks.
        report: gets each line of progress.
    """

    paths: Paths
    config_file: Path
    tokens: tuple[Path, ...]
    units: UnitManager
    sandboxes: PodSandboxes
    folders: Folders
    originals: Originals
    find_remains: Callable[[], Remains]
    report: Callable[[str], None]


class Reset:
    """One reset."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._with = dependencies
        self._units = dependencies.units
        self._former = FormerUnits(
            originals=dependencies.originals, units=dependencies.units, root=dependencies.paths.root
        )
        self._unit_files = UnitFiles(root=dependencies.paths.root, take_back=dependencies.originals.take_back)

    async def run(self) -> None:
        """Do all steps.

        Raises:
            AgentError: a step failed; those that need it were not begun.
        """
        folders = self._with.folders
        await self._step("Stopping agent, kubelet and containers", self._stop_everything)
        await self._step("Removing units and files", self._remove_configuration)
        await self._side_by_side(
            {
                "Emptying the agent's folder": lambda: folders.empty_own(
                    keep=(self._with.config_file, self._with.paths.reset_end, *self._with.paths.unpacked)
                ),
                "Emptying the kubelet's folder": folders.leave_kubelet,
            }
        )
        await self._step("Removing the configuration file", self._remove_configuration_file)
        await asyncio.to_thread(remove_program, self._with.paths)

    async def _side_by_side(self, steps: dict[str, Callable[[], Awaitable[None]]]) -> None:
        """Run steps that do not need each other; one that fails does not end the others."""
        failed: list[str] = []

        async def attempt(name: str, act: Callable[[], Awaitable[None]]) -> None:
            try:
                await self._step(name, act)
            except AgentError as error:
                failed.append(str(error))

        async with asyncio.TaskGroup() as group:
            for name, act in steps.items():
                group.create_task(attempt(name, act))
        if failed:
            raise ResetFailed("reset not completed", failed)

    async def _step(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        self._with.report(f"{name} ...")
        try:
            await act()
        except AgentError:
            self._with.report(f"{name}: failed")
            raise
        self._with.report(f"{name}: done")

    # Step 1: nothing runs any more.

    async def _stop_everything(self) -> None:
        for unit in (OWN_UNIT, KUBELET_UNIT):
            await self._stop(unit)
        try:
            async with asyncio.timeout(SANDBOXES_DEADLINE.total_seconds()):
                await self._remove_sandboxes()
        except (CriUnavailable, TimeoutError) as error:
            self._with.report("The container runtime does not answer; going on without it")
            log.error("Pod sandboxes not removed", error=error)
        # With systemd's cgroups, what is still in there are containers that nobody else will stop.
        await self._stop(PODS_SLICE)

    async def _remove_sandboxes(self) -> None:
        found = await self._with.sandboxes.list()
        gate, failed = asyncio.Semaphore(SANDBOXES_AT_ONCE), list[str]()
        async with asyncio.TaskGroup() as group:
            for sandbox in found:
                group.create_task(self._remove_sandbox(sandbox, gate, failed))
        if failed:
            raise ResetFailed("pods not removed", failed)

    async def _remove_sandbox(self, sandbox: PodSandbox, gate: asyncio.Semaphore, failed: list[str]) -> None:
        async with gate:
            for attempt in range(1, SANDBOX_ATTEMPTS + 1):
                try:
                    await self._with.sandboxes.stop(sandbox)
                    await self._with.sandboxes.remove(sandbox)
                    log.info("Pod sandbox removed", sandbox=sandbox.id, pod=sandbox.name)
                    return
                except CriUnavailable as error:
                    log.error("Pod sandbox left to systemd", sandbox=sandbox.id, pod=sandbox.name, error=error)
                    return
                except CriRefused as error:
                    log.info("Pod sandbox not removed", sandbox=sandbox.id, attempt=attempt, error=error)
                    problem = f"pod {sandbox.name} ({sandbox.id[:12]}): {error}"
            failed.append(problem)

    async def _stop(self, name: str) -> None:
        """Stop a unit and wait until it has stopped; one that is not there is fine.

        Raises:
            AgentError: systemd cannot be asked, or the unit still runs.
        """
        try:
            report = await self._units.stop(name)
            async with asyncio.timeout(STOP_PATIENCE.total_seconds()):
                while report.outcome is JobOutcome.PENDING:
                    await asyncio.sleep(LOOK_AGAIN.total_seconds())
                    report = await self._units.look(report)
        except UnitNotFound:
            return
        except TimeoutError as error:
            raise ResetFailed("unit does not stop", [f"{name} is still stopping"]) from error
        state = await self._units.unit(name)
        if state.active_state not in ("inactive", "failed"):
            raise ResetFailed("unit does not stop", [f"{name} is {state.description}"])
        log.info("Unit stopped", unit=name)

    # Step 2: nothing of any OSC is left.

    async def _remove_configuration(self) -> None:
        remains = await asyncio.to_thread(self._with.find_remains)
        for path in remains.unproven:
            log.error("File left: nothing shows that it is ours", path=path)
            self._with.report(
                f"Left: {path} (an OSC may have been about to write it, and it does not have that content)"
            )
        problems: list[str] = []
        if any(unit.name == MOUNT_UNIT and unit.created for unit in remains.units):
            await self._attempt(problems, "data volume", self._with.folders.empty_kubelet())
        for unit in remains.units:
            await self._attempt(problems, unit.name, self._remove_unit(unit))
        program = f"/{self._with.paths.own_program.relative_to(self._with.paths.root)}"
        later = set() if await asyncio.to_thread(self._with.originals.has, program) else {program} & set(remains.files)
        for path in (*remains.files, *map(str, self._with.tokens)):
            if path in later:
                continue
            await self._attempt(problems, path, self._remove_file(path))
        for upstream in remains.registries:
            await self._attempt(problems, f"registry {upstream}", self._remove_registry(upstream))
        await self._units.reload()
        for unit in remains.units:
            await self._attempt(problems, unit.name, self._settle(unit))
        restarted = {unit.name for unit in remains.units if unit.drop_ins and not unit.created}
        if CONFIG_FILE in remains.files and CONTAINERD_UNIT not in restarted:
            await self._attempt(problems, CONTAINERD_UNIT, self._restart(CONTAINERD_UNIT))
        if problems:
            raise ResetFailed("units and files not removed", problems)
        if later:
            await asyncio.to_thread(files.write_atomic, self._with.paths.reset_end, b"", mode=0o600)
        # Before the originals go: without them these files, and what is kept of them, would have the next reset delete what was put back.
        await asyncio.to_thread(trees.remove, self._with.paths.generations)
        for state in (self._with.paths.desired, self._with.paths.pending_changes, self._with.paths.last_applied):
            await asyncio.to_thread(files.remove, state)
        # Before what it names: a ledger without its originals says that there was nothing to put back.
        await asyncio.to_thread(self._with.originals.forget)

    async def _attempt(self, problems: list[str], what: str, act: Awaitable[None]) -> None:
        """Do one thing whatever became of the others."""
        try:
            await act
        except AgentError as error:
            log.error("Not removed", what=what, error=error)
            problems.append(f"{what}: {error}")

    async def _remove_unit(self, unit: UnitRemains) -> None:
        """Stop and disable a unit that is ours, and remove what is ours of it."""
        ours = unit.created and await asyncio.to_thread(self._unit_files.exists, unit.name)
        if ours:
            await self._disable(unit.name)
        if unit.created and await self._runs_from_us(unit.name):
            await self._stop(unit.name)
        removed = await asyncio.to_thread(self._unit_files.remove, unit.name, unit_file=ours, drop_ins=unit.drop_ins)
        if removed:
            log.info("Unit file or drop-ins removed", unit=unit.name)

    async def _runs_from_us(self, name: str) -> bool:
        """Tell whether a unit is loaded from our file, or from one that is gone, and not from the operating system's."""
        state = await self._units.unit(name)
        own = f"{UNIT_DIRECTORY}/{name}"
        return state.active_state != "inactive" and state.fragment_path in ("", own)

    async def _disable(self, name: str) -> None:
        try:
            await self._units.disable([name])
        except (UnitNotFound, UnitMasked) as error:
            log.debug("Unit not disabled", unit=name, error=error)

    async def _remove_file(self, path: str) -> None:
        place = self._with.paths.root / path.lstrip("/")
        if place != self._with.config_file and await asyncio.to_thread(self._with.originals.take_back, place):
            log.info("File removed or as before", path=path)

    async def _remove_registry(self, upstream: str) -> None:
        """Remove a registry's `hosts.toml` if it is ours, and its folder if nothing else is in it.

        A folder that was there before us stays, and its `hosts.toml` is as it was then.
        """
        hosts, originals = hosts_file(upstream), self._with.originals
        if await asyncio.to_thread(lambda: hosts in originals.paths or originals.has(hosts)):
            await self._remove_file(hosts)
            return
        folder = self._with.paths.root / CERTS_DIRECTORY.lstrip("/") / upstream
        content = await asyncio.to_thread(files.read_optional, folder / HOSTS_FILE)
        if content is not None and content.startswith(_MARKER):
            await asyncio.to_thread(files.remove, folder / HOSTS_FILE)
            log.info("Registry removed", upstream=upstream)
        await asyncio.to_thread(files.remove_directory_if_empty, folder)

    async def _settle(self, unit: UnitRemains) -> None:
        """Let systemd forget a unit that is gone; run one of the operating system as before us.

        Also where a reset before this one has removed the drop-ins: it may have ended before the restart.
        """
        if unit.created:
            await self._units.forget_failure(unit.name)
            await self._former.restore(unit.name)
        elif unit.drop_ins:
            await self._restart(unit.name)

    async def _restart(self, name: str) -> None:
        """Restart a unit of the operating system that runs, so that it runs as before us; that systemd refuses it is said, and no failure."""
        if (await self._units.unit(name)).active_state != "active":
            return
        try:
            report = await self._units.restart(name)
        except BusUnavailable:
            raise
        except SystemdError as error:
            log.error("Unit not restarted, it runs with our settings", unit=name, error=error)
            self._with.report(
                f"Not restarted: {name}, which runs with the agent's settings until somebody does ({error.message})"
            )
            return
        log.info("Unit restarted without our settings", unit=name, result=report.outcome.value)

    # Step 4: what a new reset would need.

    async def _remove_configuration_file(self) -> None:
        if self._with.paths.base in self._with.config_file.parents:
            await asyncio.to_thread(files.remove, self._with.config_file)


def remove_program(paths: Paths) -> bool:
    """Remove the agent's program if a reset was about to: the last act of all. Blocks. Returns whether it was.

    Into what it unpacked itself goes in any case, and first: that comes again with each start, the program does not.

    Raises:
        FileError: it is still there.
    """
    running_from = Path(sys.prefix).parent
    for folder in {*paths.unpacked, *([running_from] if running_from.name == UNPACKED else [])}:
        trees.remove_content(folder)
        files.remove_directory_if_empty(folder)
    if not paths.reset_end.exists():
        return False
    files.remove(paths.reset_end)
    if files.remove(paths.own_program):
        log.info("Program removed", path=str(paths.own_program))
    return True
