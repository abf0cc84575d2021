"""Builds the objects of the commands that end by themselves, `bootstrap` and `reset`; `app.py` is for the one that stays.

Source: gardener cmd/gardener-node-agent/app (contract 1.2, 1.7, 8.2, 8.4).
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from random import SystemRandom

from agents.core.clock import SystemClock
from agents.core.logging import get_logger
from nodeagent import bootstrap as bootstrap_module
from nodeagent.config import NodeAgentConfiguration
from nodeagent.credentials import ClientFactory, bootstrap_access, read_bootstrap_token
from nodeagent.host import mounts
from nodeagent.host.block_devices import KernelBlockDevices
from nodeagent.host.ctr import Ctr, CtrSettings
from nodeagent.init_image import InitImages
from nodeagent.kubelet_volume import KubeletVolume, ProgramTools
from nodeagent.paths import Paths
from systemd.manager import SystemdUnitManager

log = get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPED = 1


async def bootstrap(config: NodeAgentConfiguration, environment: Mapping[str, str]) -> int:
    """Install and start our own unit; returns the exit code."""
    paths, clock = Paths(), SystemClock()
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
