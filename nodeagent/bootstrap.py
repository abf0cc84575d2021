"""`gardener-node-agent bootstrap`: data volume, our own unit installed and started, and can the API server be reached?

Source: gardener pkg/nodeagent/bootstrap/bootstrap.go (contract 8.2, Appendix D). Every step can be repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from nodeagent.kubelet_volume import KubeletVolume
from nodeagent.paths import Paths
from systemd.errors import BusUnavailable
from systemd.jobs import JobOutcome, JobReport
from systemd.manager import UnitManager

log = get_logger(__name__)

OWN_UNIT = "gardener-node-agent.service"
INIT_UNIT = "gardener-node-init.service"
OWN_UNIT_MODE = 0o644
CONNECTIVITY_SECONDS = 10

OWN_UNIT_CONTENT = """\
[Unit]
Description=Gardener Node Agent
After=network-online.target

[Service]
LimitMEMLOCK=infinity
ExecStart=/opt/bin/gardener-node-agent --config-dir=/var/lib/gardener-node-agent
Restart=always
RestartSec=5
StandardOutput=journal+console
StandardError=journal

[Install]
WantedBy=multi-user.target"""
"""Byte for byte what gardenlet renders; a difference would cost a restart."""


class BootstrapFailed(AgentError):
    """The own unit could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVolume:
    """The kubelet's data volume, where the configuration asks for one: its size in bytes, and what makes it."""

    size_bytes: int
    volume: KubeletVolume


async def bootstrap(
    *,
    paths: Paths,
    units: UnitManager,
    get_version: Callable[[], Awaitable[object]],
    clean_init_images: Callable[[], Awaitable[None]],
    data_volume: DataVolume | None,
) -> None:
    """Run all steps.

    Args:
        paths: where things are.
        units: systemd.
        get_version: GET `/version` with the bootstrap token; its failure is only reported.
        clean_init_images: clears up behind the init script; never fails.
        data_volume: None if the kubelet's directory stays where it is.

    Raises:
        AgentError: the volume cannot be had, or the unit was not written or not started; systemd repeats the whole
            command.
    """
    await asyncio.to_thread(files.ensure_directory, paths.temporary, mode=0o700)
    # Before anything that can fail: each failed run of the script leaves one more.
    await clean_init_images()
    if data_volume is not None:
        await data_volume.volume.prepare(data_volume.size_bytes)
    await asyncio.to_thread(files.write_atomic, paths.own_unit, OWN_UNIT_CONTENT.encode(), mode=OWN_UNIT_MODE)
    log.info("Own unit written", path=str(paths.own_unit))
    await units.reload()
    await units.enable([OWN_UNIT])
    report = await units.start(OWN_UNIT)
    if not accepted(report):
        raise BootstrapFailed(
            "own unit did not start", unit=OWN_UNIT, result=report.outcome.value, reason=report.reason
        )
    log.info("Own unit started", unit=OWN_UNIT)
    await _disable_init(units)
    try:
        async with asyncio.timeout(CONNECTIVITY_SECONDS):
            await get_version()
        log.info("API server reached")
    except (AgentError, OSError) as error:  # TimeoutError is an OSError
        log.error("API server not reached", error=error)
        print(f"WARNING: the API server cannot be reached: {str(error) or 'no answer in 10 s'}", flush=True)


def accepted(report: JobReport) -> bool:
    """Tell whether a job counts as started: done, or still at it after the time that we wait (contract 6.7)."""
    return report.outcome in (JobOutcome.DONE, JobOutcome.PENDING)


async def _disable_init(units: UnitManager) -> None:
    """Disable the unit that runs us, without stopping it; machines that were prepared differently have none.

    Raises:
        BusUnavailable: it may still be enabled, and would run user data again at the next boot.
    """
    try:
        await units.disable([INIT_UNIT])
    except BusUnavailable:
        raise
    except AgentError as error:
        log.info("Init unit not disabled", unit=INIT_UNIT, error=error)
