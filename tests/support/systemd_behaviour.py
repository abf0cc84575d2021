"""What the unit manager must do with a systemd, real or fake: the same tests run against both, so that the fake stays true.

A test module derives a class from `SystemdBehaviour` and provides the fixture `host`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

import pytest
from structlog.testing import capture_logs

from systemd.errors import CallFailed, InvalidUnit, SystemdError, UnitMasked, UnitNotFound
from systemd.jobs import JobOutcome, JobReport
from systemd.manager import SystemdUnitManager

SIMPLE = "[Unit]\nDescription=test\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


class Host(Protocol):
    """A machine with a systemd on a bus."""

    @property
    def address(self) -> str:
        """D-Bus address of the system bus."""
        ...

    def write_unit(self, name: str, text: str) -> None:
        """Place a unit file in /etc/systemd/system."""
        ...

    def mask(self, name: str) -> None:
        """Mask a unit."""
        ...

    def is_enabled(self, name: str, *, target: str = "multi-user.target") -> bool:
        """Tell whether the link exists that starts the unit at boot."""
        ...

    async def open_gate(self, name: str) -> None:
        """Let the command of `gate(name, ...)` end."""
        ...

    async def restart_bus(self) -> None:
        """Kill the bus daemon; it comes back, every client is cut off."""
        ...


def gate(name: str, *, code: int = 0, more: str = "") -> str:
    """Return a oneshot unit that ends with this exit code once its gate is open."""
    command = f'/bin/sh -c "until [ -e /run/gate-{name} ]; do sleep 0.05; done; exit {code}"'
    return f"[Unit]\nDescription=test\n{more}\n[Service]\nType=oneshot\nExecStart={command}\n"


@asynccontextmanager
async def connected(
    host: Host, *, job_timeout: float = 10, poll: float = 0.3, call_deadline: float = 25
) -> AsyncIterator[SystemdUnitManager]:
    """A manager that is closed at the end."""
    manager = SystemdUnitManager(
        address=host.address,
        job_timeout=timedelta(seconds=job_timeout),
        poll=timedelta(seconds=poll),
        call_deadline=call_deadline,
    )
    try:
        yield manager
    finally:
        await manager.close()


def _said(lines: Sequence[Mapping[str, object]]) -> list[tuple[object, object]]:
    return [(line["event"], line["unit"]) for line in lines if line["log_level"] == "info"]


async def settled(manager: SystemdUnitManager, report: JobReport) -> JobReport:
    """Look at a pending job until it has ended."""
    async with asyncio.timeout(20):
        while report.outcome is JobOutcome.PENDING:
            await asyncio.sleep(0.05)
            report = await manager.look(report)
    return report


async def wait_active(manager: SystemdUnitManager, name: str, state: str) -> None:
    """Wait until a unit is in this active state."""
    async with asyncio.timeout(20):
        while (await manager.unit(name)).active_state != state:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.02)


class SystemdBehaviour:
    """Tests for any systemd; each uses unit names of its own."""

    async def test_start_stop_restart_of_a_service(self, host: Host) -> None:
        """Contract 6.7: job result `done` is a success, and the unit's state says so."""
        host.write_unit("plain.service", SIMPLE)
        async with connected(host) as manager:
            await manager.reload()
            for run in (manager.start, manager.restart):
                report = await run("plain.service")
                assert (report.outcome, report.reason) == (JobOutcome.DONE, "")
                state = await manager.unit("plain.service")
                assert (state.load_state, state.active_state, state.sub_state) == ("loaded", "active", "running")
                assert state.fragment_path == "/etc/systemd/system/plain.service"
                assert (state.result, state.job) == ("success", None)
                assert state.state_changed is not None
                assert state.invocation_id
                assert state.description == "active/running"
            listed = {unit.name: unit for unit in await manager.list_units()}
            assert listed["plain.service"].active_state == "active"
            report = await manager.stop("plain.service")
            assert report.outcome is JobOutcome.DONE
            assert (await manager.unit("plain.service")).active_state == "inactive"

    async def test_the_environment_of_a_service(self, host: Host) -> None:
        """What systemd has for all services, and on top what the unit says; one that does not exist adds nothing."""
        unit = SIMPLE.replace("[Install]", 'Environment=PATH=/opt/own "ONE=with blank"\n[Install]')
        host.write_unit("surrounded.service", unit)
        async with connected(host) as manager:
            await manager.reload()
            general = await manager.environment("no-such.service")
            assert general["PATH"].startswith("/")
            own = {"PATH": "/opt/own", "ONE": "with blank"}
            assert await manager.environment("surrounded.service") == {**general, **own}

    async def test_enable_creates_links_and_disable_removes_them(self, host: Host) -> None:
        """Contract 6.7: enable and disable work on unit files, several in one call; a file without [Install] is fine."""
        host.write_unit("linked.service", SIMPLE)
        host.write_unit("static.service", "[Service]\nExecStart=/bin/sleep infinity\n")
        host.write_unit("many@.service", SIMPLE)
        async with connected(host) as manager:
            await manager.enable(["linked.service", "static.service", "many@one.service"])
            assert host.is_enabled("linked.service")
            assert host.is_enabled("many@one.service")
            await manager.enable(["linked.service"])
            await manager.disable(["linked.service", "static.service", "many@one.service"])
            assert not host.is_enabled("linked.service")
            assert not host.is_enabled("many@one.service")
            await manager.disable([])

    async def test_what_was_enabled_or_disabled_is_said_and_nothing_else(self, host: Host) -> None:
        """Ours: one line for each unit whose links were made or removed, in one call or one by one; none if they were as they should be."""
        host.write_unit("said.service", SIMPLE + "Alias=said-alias.service\n")
        host.write_unit("other.service", SIMPLE)
        host.write_unit("static.service", "[Service]\nExecStart=/bin/sleep infinity\n")
        async with connected(host) as manager:
            with capture_logs() as lines:
                await manager.enable(["said.service", "static.service"])
                with pytest.raises(UnitNotFound):
                    await manager.enable(["said.service", "other.service", "missing.service"])
            assert _said(lines) == [("Unit enabled", "said.service"), ("Unit enabled", "other.service")]
            with capture_logs() as lines:
                await manager.disable(["other.service", "static.service"])
                await manager.disable(["other.service"])
            assert _said(lines) == [("Unit disabled", "other.service")]
            await manager.disable(["said.service"])

    async def test_enable_of_an_alias_replaces_what_is_in_the_way(self, host: Host) -> None:
        """Contract 6.7: enable is called with force, so an alias that points elsewhere is replaced."""
        host.write_unit("first.service", SIMPLE + "Alias=alias.service\n")
        host.write_unit("second.service", SIMPLE + "Alias=alias.service\n")
        async with connected(host) as manager:
            await manager.enable(["first.service"])
            await manager.enable(["second.service"])
            await manager.reload()
            assert (await manager.unit("second.service")).load_state == "loaded"
            await manager.disable(["second.service"])

    async def test_enable_names_the_bad_unit_and_enables_the_others(self, host: Host) -> None:
        """Contract 6.7: when one of many cannot be enabled, the error names it and the others are enabled."""
        host.write_unit("good.service", SIMPLE)
        async with connected(host) as manager:
            with pytest.raises(UnitNotFound) as caught:
                await manager.enable(["missing-1.service", "good.service", "missing-2.service"])
            assert caught.value.fields["unit"] == "missing-1.service"
            assert caught.value.fields["units"] == ["missing-1.service", "missing-2.service"]
            assert host.is_enabled("good.service")
            with pytest.raises(UnitNotFound) as caught:
                await manager.disable(["missing-1.service"])
            assert caught.value.fields["unit"] == "missing-1.service"

    async def test_failing_oneshot_reports_failed_with_the_reason(self, host: Host) -> None:
        """Contract 6.7: any job result but `done` is a failure; the unit's result says why."""
        host.write_unit("broken.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
        async with connected(host) as manager:
            await manager.reload()
            report = await manager.restart("broken.service")
            assert report.outcome is JobOutcome.FAILED
            assert report.reason == "failed/failed, result exit-code"

    async def test_simple_service_that_cannot_run_is_done(self, host: Host) -> None:
        """Contract 6.7: the job's result decides, also where the unit is failed right after it."""
        host.write_unit("nothing.service", "[Service]\nExecStart=/nonexistent/program\n")
        async with connected(host) as manager:
            await manager.reload()
            report = await manager.restart("nothing.service")
            assert report.outcome is JobOutcome.DONE
            await wait_active(manager, "nothing.service", "failed")

    async def test_results_of_systemd_are_told_apart(self, host: Host) -> None:
        """Contract 6.7: `dependency` is a failure of its own, an unknown result is a failure that quotes it."""
        host.write_unit("needed.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
        host.write_unit("needing.service", "[Unit]\nRequires=needed.service\nAfter=needed.service\n" + SIMPLE)
        host.write_unit("conditional.service", "[Unit]\nConditionPathExists=/nonexistent\n" + SIMPLE)
        host.write_unit("asserting.service", "[Unit]\nAssertPathExists=/nonexistent\n" + SIMPLE)
        async with connected(host) as manager:
            await manager.reload()
            assert (await manager.restart("needing.service")).outcome is JobOutcome.DEPENDENCY
            assert (await manager.restart("conditional.service")).outcome is JobOutcome.DONE
            report = await manager.restart("asserting.service")
            assert (report.outcome, report.reason) == (JobOutcome.FAILED, "job result assert, inactive/dead")

    @pytest.mark.parametrize(("code", "outcome"), [(0, JobOutcome.DONE), (3, JobOutcome.FAILED)])
    async def test_long_job_is_pending_and_its_end_is_seen_later(
        self, host: Host, code: int, outcome: JobOutcome
    ) -> None:
        """Contract 6.7, W26: a job that takes longer than we wait is pending; a late failure is a failure."""
        host.write_unit(f"long-{code}.service", gate(f"long{code}", code=code))
        async with connected(host, job_timeout=0.5) as manager:
            await manager.reload()
            report = await manager.restart(f"long-{code}.service")
            assert (report.outcome, report.reason) == (JobOutcome.PENDING, "activating/start")
            assert (await manager.look(report)).outcome is JobOutcome.PENDING
            await host.open_gate(f"long{code}")
            ended = await settled(manager, report)
            assert ended.outcome is outcome
            assert ended.reason == ("failed/failed, result exit-code" if code else "")
            assert await manager.look(ended) is ended

    async def test_job_with_a_time_limit_reports_timeout(self, host: Host) -> None:
        """Contract 6.7: the result `timeout` is reported as such."""
        host.write_unit("limited.service", gate("never", more="JobTimeoutSec=1"))
        async with connected(host) as manager:
            await manager.reload()
            assert (await manager.restart("limited.service")).outcome is JobOutcome.TIMEOUT

    async def test_job_that_another_one_replaces_is_canceled(self, host: Host) -> None:
        """Contract 6.7: mode `replace` cancels the job before it, and its owner hears of that."""
        host.write_unit("replaced.service", gate("replaced"))
        async with connected(host) as manager, connected(host) as other, asyncio.TaskGroup() as group:
            await manager.reload()
            first = group.create_task(manager.restart("replaced.service"))
            await wait_active(other, "replaced.service", "activating")
            await other.stop("replaced.service")
            assert (await first).outcome is JobOutcome.CANCELED

    async def test_masked_unknown_and_broken_units_are_clear_errors(self, host: Host) -> None:
        """Contract 6.7: a masked, an unknown and an unreadable unit are three different errors that name it."""
        host.mask("masked.service")
        host.write_unit("garbled.service", "[Service\nExecStart=\n")
        async with connected(host) as manager:
            await manager.reload()
            for call in (manager.start, manager.restart):
                with pytest.raises(UnitMasked, match=r"masked\.service"):
                    await call("masked.service")
                with pytest.raises(UnitNotFound, match=r"unknown\.service"):
                    await call("unknown.service")
                with pytest.raises(InvalidUnit, match=r"garbled\.service"):
                    await call("garbled.service")
                with pytest.raises(InvalidUnit, match="no-type"):
                    await call("no-type")
            with pytest.raises(UnitMasked):
                await manager.enable(["masked.service"])
            state = await manager.unit("unknown.service")
            assert (state.load_state, state.fragment_path) == ("not-found", "")
            assert state.description == "inactive/dead, load state not-found"
            with pytest.raises(InvalidUnit):
                await manager.unit("no-type")

    async def test_bus_restart_during_a_job_does_not_hang(self, host: Host) -> None:
        """Contract 6.7: a job goes on when the bus daemon dies; its end is read from the unit after the reconnect."""
        host.write_unit("survivor.service", gate("survivor"))
        async with connected(host) as manager, asyncio.TaskGroup() as group:
            await manager.reload()
            job = group.create_task(manager.restart("survivor.service"))
            async with connected(host) as other:
                await wait_active(other, "survivor.service", "activating")
            await host.restart_bus()
            await host.open_gate("survivor")
            assert (await job).outcome is JobOutcome.DONE
            await manager.stop("survivor.service")

    async def test_pending_job_is_judged_after_a_lost_signal(self, host: Host) -> None:
        """Contract 6.7: the end of a pending job that nobody told us of is judged by the unit's state."""
        host.write_unit("unheard.service", gate("unheard", code=1))
        async with connected(host, job_timeout=0.2) as manager:
            await manager.reload()
            report = await manager.restart("unheard.service")
            await manager.close()
            await host.open_gate("unheard")
            ended = await settled(manager, report)
            assert (ended.outcome, ended.reason) == (JobOutcome.FAILED, "failed/failed, result exit-code")

    async def test_many_restarts_in_parallel(self, host: Host) -> None:
        """Contract 6.6: unit commands run all at once, each with its own result."""
        names = [f"parallel-{number}.service" for number in range(20)]
        for name in names:
            host.write_unit(name, SIMPLE)
        async with connected(host) as manager:
            await manager.reload()
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(manager.restart(name)) for name in names]
            assert {(job.result().unit, job.result().outcome) for job in jobs} == {
                (name, JobOutcome.DONE) for name in names
            }
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(manager.stop(name))

    async def test_the_state_of_a_unit_file_is_read_anew(self, host: Host) -> None:
        """Ours: enabled, disabled, masked, static, none; as the disk has it, also without a reload."""
        host.write_unit("state.service", SIMPLE)
        host.write_unit("plain.service", "[Service]\nExecStart=/bin/sleep infinity\n")
        host.mask("masked-state.service")
        async with connected(host) as manager:
            assert await manager.unit_file_state("state.service") == "disabled"
            await manager.enable(["state.service"])
            assert await manager.unit_file_state("state.service") == "enabled"
            await manager.disable(["state.service"])
            assert await manager.unit_file_state("state.service") == "disabled"
            assert await manager.unit_file_state("plain.service") == "static"
            assert await manager.unit_file_state("masked-state.service") == "masked"
            assert await manager.unit_file_state("none-state.service") == ""

    async def test_commands_for_one_unit_wait_for_each_other(self, host: Host) -> None:
        """Contract 6.7, 7.9: a per-unit lock; two callers that restart one unit do not cancel each other's job."""
        host.write_unit("shared.service", gate("shared"))
        async with connected(host) as manager, asyncio.TaskGroup() as group:
            await manager.reload()
            first = group.create_task(manager.restart("shared.service"))
            async with connected(host) as other:
                await wait_active(other, "shared.service", "activating")
            second = group.create_task(manager.restart("shared.service"))
            await asyncio.sleep(0)
            await manager.list_units()
            await host.open_gate("shared")
            assert (await first).outcome is JobOutcome.DONE
            assert (await second).outcome is JobOutcome.DONE
            assert first.result().job != second.result().job

    async def test_names_that_are_no_part_of_a_path_never_reach_the_bus(self, host: Host) -> None:
        """Contract 5.4: a name with a slash or a NUL byte is refused by us; sent, it would end the connection."""
        async with connected(host) as manager:
            for name in ("a/b.service", "nul\0.service", "", "x" * 300):
                for call in (manager.start, manager.unit):
                    with pytest.raises(InvalidUnit):
                        await call(name)
                with pytest.raises(InvalidUnit):
                    await manager.enable([name])
            await manager.reload()

    async def test_states_of_many_units_come_in_one_call(self, host: Host) -> None:
        """Contract 7.8: states by the names that were asked for: an unknown unit is `not-found`, an alias has its unit's state."""
        host.write_unit("seen.service", SIMPLE + "Alias=seen-alias.service\n")
        host.write_unit("seen-broken.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
        host.write_unit("seen@.service", SIMPLE)
        host.mask("seen-masked.service")
        async with connected(host) as manager:
            await manager.enable(["seen.service"])
            await manager.reload()
            await manager.start("seen.service")
            await manager.restart("seen-broken.service")
            names = ["seen-nowhere.service", "seen.service", "seen-alias.service", "seen-broken.service"]
            found = await manager.states([*names, "seen-masked.service", "seen.service"])
            assert {name: (state.name, state.load_state, state.active_state) for name, state in found.items()} == {
                "seen-nowhere.service": ("seen-nowhere.service", "not-found", "inactive"),
                "seen.service": ("seen.service", "loaded", "active"),
                "seen-alias.service": ("seen-alias.service", "loaded", "active"),
                "seen-broken.service": ("seen-broken.service", "loaded", "failed"),
                "seen-masked.service": ("seen-masked.service", "masked", "inactive"),
            }
            odd = ["seen@.service", "@seen.service", "no-type", "a b.service", "../up.service", ".service", ""]
            assert list(await manager.states([*odd, "seen@one.service"])) == ["seen@one.service"]
            assert await manager.states([]) == {}
            await manager.stop("seen.service")
            await manager.disable(["seen.service"])

    async def test_a_failure_is_forgotten_when_asked(self, host: Host) -> None:
        """Contract 8.4: a unit that failed becomes inactive; for one that runs or is not there, nothing happens."""
        host.write_unit("forgotten.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
        host.write_unit("remembered.service", SIMPLE)
        async with connected(host) as manager:
            await manager.reload()
            await manager.restart("forgotten.service")
            await manager.restart("remembered.service")
            assert (await manager.unit("forgotten.service")).active_state == "failed"
            for name in ("forgotten.service", "remembered.service", "never-heard-of.service"):
                await manager.forget_failure(name)
            assert (await manager.unit("forgotten.service")).active_state == "inactive"
            assert (await manager.unit("remembered.service")).active_state == "active"
            await manager.stop("remembered.service")

    async def test_time_of_the_last_change_is_monotonic(self, host: Host) -> None:
        """Contract 7.8, 9 W42: when a unit's state changed is told on the clock that nobody sets; never, if it never did."""
        host.write_unit("timed.service", SIMPLE)
        now = asyncio.get_running_loop().time
        async with connected(host) as manager:
            await manager.reload()
            assert await manager.last_change("timed.service") is None
            before = now()
            await manager.start("timed.service")
            changed = await manager.last_change("timed.service")
            assert changed is not None
            assert before <= changed <= now()
            assert (await manager.unit("timed.service")).changed_monotonic == changed
            await manager.stop("timed.service")

    async def test_only_services_have_a_type(self, host: Host) -> None:
        """Contract 9 W40: a service's type is told; asked of a timer it is an error of that call alone."""
        host.write_unit("typed.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n")
        host.write_unit("typed.timer", "[Timer]\nOnActiveSec=1h\n")
        async with connected(host) as manager:
            await manager.reload()
            assert await manager.service_type("typed.service") == "oneshot"
            with pytest.raises(SystemdError):
                await manager.service_type("typed.timer")
            assert list(await manager.triggered_by("typed.timer")) == []

    async def test_reload_of_a_changed_file_takes_effect(self, host: Host) -> None:
        """Contract 6.2 step 18: only after a reload does systemd use what was written."""
        host.write_unit("changing.service", SIMPLE)
        async with connected(host) as manager:
            await manager.reload()
            await manager.restart("changing.service")
            host.write_unit("changing.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
            await manager.reload()
            assert (await manager.restart("changing.service")).outcome is JobOutcome.FAILED

    def test_errors_have_one_kind(self) -> None:
        """Every error of the room is one of systemd's and retriable."""
        assert all(issubclass(kind, SystemdError) for kind in (CallFailed, InvalidUnit, UnitMasked, UnitNotFound))
