"""The real machine behind `probes.Machine` and `plan`: read, never changed.

Drift is found by the agent's own `Drift`, told to report only, with a record of extracted files that it cannot write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from agents.core.clock import Clock
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.drift import Drift
from nodeagent.host.consistency import Finding
from nodeagent.host.containerd import Containerd
from nodeagent.host.ctr import CtrSettings
from nodeagent.host.extracted_files import ExtractedFiles
from nodeagent.host.hostname import read_hostname
from nodeagent.host.kubelet import HEALTHZ, Kubelet
from nodeagent.host.originals import Originals
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.inspection.probes import DEADLINE, metrics_url, read_lease_age
from nodeagent.inspection.state import State
from nodeagent.paths import Paths
from osc.containerd import CONFIG_FILE
from osc.merge import Effective, effective
from osc.pending import Pending
from systemd.bus import SYSTEM_BUS
from systemd.manager import SystemdUnitManager
from systemd.states import UnitState


class RealMachine:
    """One machine at one moment; an asynchronous context manager.

    Args:
        paths: where its files are.
        state: what the agent left on the disk.
        clock: for the limits that `Drift` wants.
        environment: says where containerd listens.
        bus: D-Bus address of the system bus.
        kubelet: where the kubelet says whether it is healthy.
    """

    def __init__(
        self,
        *,
        paths: Paths,
        state: State,
        clock: Clock,
        environment: Mapping[str, str],
        bus: str = SYSTEM_BUS,
        kubelet: str = HEALTHZ,
    ) -> None:
        self._paths = paths
        self._state = state
        self._clock = clock
        self.units = SystemdUnitManager(address=bus, call_deadline=DEADLINE.total_seconds())
        self.containerd = Containerd(CtrSettings.from_environment(environment), deadline=DEADLINE)
        self.containerd_files = ContainerdFiles(
            containerd=self.containerd,
            originals=Originals(folder=paths.originals, root=paths.root),
            root=paths.root,
        )
        self._kubelet = Kubelet(url=kubelet, deadline=DEADLINE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.units.close()

    async def unit(self, name: str) -> UnitState:
        """Return the state of a unit."""
        return await self.units.unit(name)

    async def lease_age(self) -> float | None:
        """Return the age of the heartbeat in seconds as the running agent says, None before the first one."""
        return await read_lease_age(metrics_url(self._state.config))

    async def containerd_version(self) -> str:
        """Return containerd's version."""
        return await self.containerd.version()

    async def kubelet_healthy(self) -> None:
        """Raise unless the kubelet says that it is healthy."""
        await self._kubelet.healthy()

    async def failed_units(self) -> Sequence[UnitState]:
        """Return the units of the applied OSC that have failed, also those whose job had ended well."""
        if self._state.applied is None:
            return ()
        applied = effective(self._state.applied.decoded.config, hostname=read_hostname())
        states = await self.units.states([unit.name for unit in applied.units])
        return [state for state in states.values() if state.active_state == "failed"]

    async def drift(self) -> Sequence[Finding]:
        """Return what differs from what was applied, but for what an unfinished apply is changing."""
        if self._state.applied is None:
            return ()
        found: list[Finding] = []
        pending = self._state.pending
        drift = Drift(
            repair=False,
            units=self.units,
            containerd=self.containerd_files,
            extracted=ExtractedFiles(record=self._paths.extracted, root=self._paths.root, read_only=True),
            secret_digests=lambda: pending.secret_digests if pending is not None else {},
            report=lambda finding, _action: found.append(finding),
            clock=self._clock,
            budget=RestartBudget(path=self._paths.restarts, clock=self._clock, boot_id=""),
            root=self._paths.root,
        )
        applied = effective(self._state.applied.decoded.config, hostname=read_hostname())
        await drift.look(_settled(applied, pending))
        left = pending is not None and pending.unfinished and pending.changes.containerd_config
        return [finding for finding in found if not (left and finding.path == CONFIG_FILE)]


def _settled(applied: Effective, pending: Pending | None) -> Effective:
    """Return what of last-applied no unfinished apply has touched or is about to."""
    if pending is None or not pending.unfinished:
        return applied
    touched = pending.touched | pending.changes.touched()
    paths = touched.all_paths()
    runtime = applied.runtime
    if runtime is not None:
        registries = tuple(item for item in runtime.registries if item.upstream not in touched.registries)
        runtime = replace(runtime, registries=registries)
    return Effective(
        tuple(file for file in applied.files if file.path not in paths),
        tuple(unit for unit in applied.units if unit.name not in touched.units),
        runtime,
    )
