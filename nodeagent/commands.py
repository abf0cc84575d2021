"""Builds the objects of the commands that end by themselves, `bootstrap` and `reset`; `app.py` is for the one that stays.

Source: gardener cmd/gardener-node-agent/app (contract 1.2, 1.7, 8.2, 8.4).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import SystemRandom

from agents.core.clock import SystemClock
from agents.core.errors import AgentError
from agents.core.generations import Generations
from agents.core.logging import get_logger
from agents.kube.server_clock import ServerClock
from nodeagent import bootstrap as bootstrap_module
from nodeagent.config import NodeAgentConfiguration
from nodeagent.credentials import ClientFactory, bootstrap_access, read_bootstrap_token
from nodeagent.host import mounts
from nodeagent.host.block_devices import KernelBlockDevices
from nodeagent.host.ctr import Ctr, CtrSettings
from nodeagent.host.hostname import read_hostname
from nodeagent.host.originals import Originals
from nodeagent.init_image import InitImages
from nodeagent.kubelet_volume import KubeletVolume, ProgramTools
from nodeagent.paths import Paths
from nodeagent.remains import find_remains
from nodeagent.reset import SUCCESS, Dependencies, Reset, remove_program
from nodeagent.reset_folders import NodeFolders
from osc.journal import Journal
from systemd.manager import SystemdUnitManager

log = get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPED = 1


async def bootstrap(config: NodeAgentConfiguration, environment: Mapping[str, str]) -> int:
    """Install and start our own unit; returns the exit code."""
    paths, clock = Paths(), ServerClock(clock=SystemClock(), name="shoot")
    clients = ClientFactory(clock=clock, rng=SystemRandom(), observe=lambda _method, _code, _seconds: None)

    async def get_version() -> bytes:
        token = await asyncio.to_thread(read_bootstrap_token, paths)
        client = clients.client(bootstrap_access(config, paths, token))
        try:
            return await client.get_raw("/version")
        finally:
            await client.close()

    units = SystemdUnitManager()
    images = InitImages(images=Ctr(CtrSettings.from_environment(environment)), unmount=mounts.unmount)
    size = config.bootstrap.kubelet_data_volume_size
    volume = KubeletVolume(paths=paths, devices=KernelBlockDevices(), tools=ProgramTools())
    try:
        return await _until_signalled(
            lambda: bootstrap_module.bootstrap(
                paths=paths,
                units=units,
                get_version=get_version,
                clean_init_images=images.clean,
                data_volume=None if size is None else bootstrap_module.DataVolume(size_bytes=size, volume=volume),
            )
        )
    finally:
        await units.close()


async def reset(config: NodeAgentConfiguration, config_file: Path) -> int:
    """Remove what the agent brought; returns the exit code."""
    from nodeagent.host.cri import CriPodSandboxes  # brings libraries that nothing else needs

    paths, clock = Paths(), SystemClock()
    journal = Journal(
        pending_path=paths.pending_changes,
        last_applied_path=paths.last_applied,
        generations=Generations(paths.generations),
        clock=clock,
    )
    originals = Originals(folder=paths.originals, root=paths.root)
    units = SystemdUnitManager()
    try:
        async with CriPodSandboxes() as sandboxes:
            work = Reset(
                Dependencies(
                    paths=paths,
                    config_file=config_file,
                    tokens=tuple(Path(sync.path) for sync in config.controllers.token.sync_configs),
                    units=units,
                    sandboxes=sandboxes,
                    folders=NodeFolders(paths=paths, devices=KernelBlockDevices()),
                    originals=originals,
                    find_remains=lambda: find_remains(
                        journal=journal,
                        originals=originals,
                        desired=paths.desired,
                        hostname=read_hostname(),
                        root=paths.root,
                    ),
                    report=_report,
                )
            )
            code = await _until_signalled(work.run)
    finally:
        await units.close()
    if code == 0:
        print(SUCCESS, flush=True)
    return code


def nothing_to_reset(paths: Paths) -> bool:
    """Tell that a reset was completed already, but perhaps for the agent's program, which goes after the configuration."""
    return not paths.base.is_dir() or {*paths.base.iterdir()} <= {paths.reset_end, *paths.unpacked}


def already_reset(paths: Paths) -> int:
    """Say so, and remove the program if that is what is left; returns the exit code."""
    try:
        removed = remove_program(paths)
    except AgentError as error:
        _report(f"Removing the agent's program: failed: {error}")
        return _STOPPED
    if not removed:
        _report("Nothing to do: there is nothing of gardener-node-agent on this machine")
    print(SUCCESS, flush=True)
    return 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _until_signalled(work: Callable[[], Awaitable[None]]) -> int:
    """Run to the end, or until SIGTERM or SIGINT, which let the work clear up behind itself; returns the exit code.

    A second signal ends the process at once (contract 1.7).
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:  # pragma: no cover - we are in one
        raise RuntimeError("not in a task")
    received: list[str] = []

    def stop(number: signal.Signals) -> None:
        if received:
            os._exit(_STOPPED)
        received.append(number.name)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await work()
    except asyncio.CancelledError:
        if not received:
            raise
        task.uncancel()
        log.error("Stopped by a signal", signal=received[0])
        return _STOPPED
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return 0
