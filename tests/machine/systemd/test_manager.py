"""The unit manager against a real systemd: what the fake does as well, and what only the real one can."""

import asyncio

import pytest

from systemd.jobs import JobOutcome
from tests.machine.systemd.conftest import RealHost
from tests.support.systemd_behaviour import SIMPLE, SystemdBehaviour, connected, gate, settled, wait_active

pytestmark = pytest.mark.machine


class TestWithRealSystemd(SystemdBehaviour):
    """The same claims as with the fake."""


async def test_reexecution_of_systemd_during_a_job_does_not_hang(host: RealHost) -> None:
    """Contract 6.7: systemd re-executing itself in the middle of a job changes nothing for who waits for it."""
    host.write_unit("reexecuted.service", gate("reexecuted"))
    async with connected(host) as manager, asyncio.TaskGroup() as group:
        await manager.reload()
        job = group.create_task(manager.restart("reexecuted.service"))
        async with connected(host) as other:
            await wait_active(other, "reexecuted.service", "activating")
        await host.run("systemctl", "daemon-reexec")
        await host.open_gate("reexecuted")
        assert (await job).outcome is JobOutcome.DONE


async def test_pending_job_survives_a_reexecution(host: RealHost) -> None:
    """Contract 6.7, W26: a pending job is found again after systemd re-executed itself."""
    host.write_unit("kept.service", gate("kept", code=1))
    async with connected(host, job_timeout=0.3) as manager:
        await manager.reload()
        report = await manager.restart("kept.service")
        assert report.outcome is JobOutcome.PENDING
        await host.run("systemctl", "daemon-reexec")
        assert (await manager.look(report)).outcome is JobOutcome.PENDING
        await host.open_gate("kept")
        assert (await settled(manager, report)).outcome is JobOutcome.FAILED


async def test_file_that_changed_on_disk_needs_a_reload(host: RealHost) -> None:
    """Contract 6.2 step 18: systemd itself says that a unit file changed since it was loaded."""
    host.write_unit("stale.service", SIMPLE)
    async with connected(host) as manager:
        await manager.reload()
        await manager.restart("stale.service")
        host.write_unit("stale.service", SIMPLE.replace("test", "changed"))
        host.machine.run(["touch", "-d", "+1 minute", "/etc/systemd/system/stale.service"])
        assert (await manager.unit("stale.service")).needs_reload
        await manager.reload()
        assert not (await manager.unit("stale.service")).needs_reload
        await manager.stop("stale.service")


async def test_unit_of_the_operating_system_has_its_fragment(host: RealHost) -> None:
    """Contract 9 W17: where a unit's file lies is systemd's answer, also for units outside of /etc/systemd/system."""
    async with connected(host) as manager:
        state = await manager.unit("dbus.service")
        assert state.fragment_path.endswith("/lib/systemd/system/dbus.service")
        assert (await manager.unit("multi-user.target")).result == ""


async def test_what_triggers_a_unit_is_told(host: RealHost) -> None:
    """Contract 7.8: a unit knows the timer that starts it."""
    host.write_unit("hourly.service", "[Service]\nType=simple\nExecStart=/bin/true\n")
    host.write_unit("hourly.timer", "[Timer]\nOnActiveSec=1h\n")
    async with connected(host) as manager:
        await manager.reload()
        await manager.start("hourly.timer")
        assert list(await manager.triggered_by("hourly.service")) == ["hourly.timer"]
        await manager.stop("hourly.timer")
