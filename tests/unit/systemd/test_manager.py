"""The unit manager against the fake systemd, which the machine tests compare with the real one."""

import asyncio

import pytest

from systemd.errors import BusUnavailable, InvalidUnit
from systemd.jobs import JobOutcome, JobReport
from systemd.manager import SystemdUnitManager
from tests.support.fake_systemd import FakeSystemd
from tests.support.systemd_behaviour import SIMPLE, SystemdBehaviour, connected, gate, settled, wait_active


class TestWithFake(SystemdBehaviour):
    """All behaviour that is the same with a real systemd."""


async def test_signal_before_the_reply_is_not_lost(host: FakeSystemd) -> None:
    """Contract 6.7: systemd can finish a job before it answers the call; that signal is buffered."""
    host.signals_before_reply = True
    host.write_unit("quick.service", SIMPLE)
    host.write_unit("broken.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    loop = asyncio.get_running_loop()
    async with connected(host) as manager:
        before = loop.time()
        assert (await manager.restart("quick.service")).outcome is JobOutcome.DONE
        assert (await manager.restart("broken.service")).outcome is JobOutcome.FAILED
        assert loop.time() == before


async def test_signal_ends_the_wait_at_once(host: FakeSystemd) -> None:
    """Contract 6.7: JobRemoved wakes who waits; nobody waits for the poll interval."""
    host.write_unit("woken.service", gate("woken"))
    loop = asyncio.get_running_loop()
    async with connected(host, poll=2) as manager, asyncio.TaskGroup() as group:
        job = group.create_task(manager.restart("woken.service"))
        async with connected(host) as other:
            await wait_active(other, "woken.service", "activating")
        before = loop.time()
        await host.open_gate("woken")
        assert (await job).outcome is JobOutcome.DONE
        assert loop.time() == before


async def test_match_rule_is_installed_before_the_first_job(host: FakeSystemd) -> None:
    """Contract 6.7: AddMatch and Subscribe come before the first method call."""
    host.write_unit("first.service", SIMPLE)
    async with connected(host) as manager:
        await manager.start("first.service")
    assert host.received[:4] == ["Hello", "AddMatch", "Subscribe", "StartUnit"]


@pytest.mark.parametrize(("code", "outcome"), [(0, JobOutcome.DONE), (1, JobOutcome.FAILED)])
async def test_lost_signal_is_replaced_by_reading_the_unit(host: FakeSystemd, code: int, outcome: JobOutcome) -> None:
    """Contract 6.7: without JobRemoved the end of a job is seen within the poll interval."""
    host.drop_signals = True
    host.write_unit("silent.service", gate("silent", code=code))
    host.write_unit("plain.service", SIMPLE)
    loop = asyncio.get_running_loop()
    async with connected(host, poll=2) as manager, asyncio.TaskGroup() as group:
        before = loop.time()
        job = group.create_task(manager.restart("silent.service"))
        async with connected(host) as other:
            await wait_active(other, "silent.service", "activating")
            assert (await other.restart("plain.service")).outcome is JobOutcome.DONE
            assert (await other.stop("plain.service")).outcome is JobOutcome.DONE
        await host.open_gate("silent")
        report = await job
        assert report.outcome is outcome
        assert report.reason == ("failed/failed, result exit-code" if code else "")
        assert loop.time() - before <= 4.1


async def test_lost_cancellation_is_recognised_by_the_other_job(host: FakeSystemd) -> None:
    """Contract 6.7: a job in whose place another one runs was canceled, though nobody said so."""
    host.drop_signals = True
    host.write_unit("taken.service", gate("taken"))
    async with connected(host, job_timeout=0.1) as manager:
        first = await manager.restart("taken.service")
        second = await manager.restart("taken.service")
        ended = await manager.look(first)
        assert (ended.outcome, ended.reason) == (
            JobOutcome.CANCELED,
            "another job took its place, activating/start",
        )
        assert (await manager.look(second)).outcome is JobOutcome.PENDING


async def test_stop_whose_signal_was_lost_is_judged_by_the_state(host: FakeSystemd) -> None:
    """Contract 6.7: a stop whose unit still runs has failed."""
    host.write_unit("stubborn.service", SIMPLE)
    async with connected(host) as manager:
        await manager.start("stubborn.service")
        report = JobReport("stubborn.service", "stop", JobOutcome.PENDING, job="/org/freedesktop/systemd1/job/999")
        ended = await manager.look(report)
        assert (ended.outcome, ended.reason) == (JobOutcome.FAILED, "active/running")


async def test_job_is_pending_while_the_bus_is_away(host: FakeSystemd) -> None:
    """Contract 6.7: a bus that goes away never hangs; the job is pending until the bus is back."""
    host.write_unit("away.service", gate("away"))
    loop = asyncio.get_running_loop()
    async with connected(host, job_timeout=10, poll=2) as manager, asyncio.TaskGroup() as group:
        before = loop.time()
        job = group.create_task(manager.restart("away.service"))
        await host.wait_called("RestartUnit")
        await host.stop_bus()
        report = await job
        assert report.outcome is JobOutcome.PENDING
        assert report.reason.startswith("state unknown: system bus not reached")
        assert loop.time() - before == pytest.approx(10, abs=0.1)
        with pytest.raises(BusUnavailable):
            await manager.look(report)
        await host.start()
        await host.open_gate("away")
        assert (await settled(manager, report)).outcome is JobOutcome.DONE


async def test_systemd_that_does_not_answer_makes_the_job_pending(host: FakeSystemd) -> None:
    """Contract 9 W25: reading the unit has a deadline as well, so the wait is not longer than asked for."""
    host.write_unit("mute.service", gate("mute"))
    loop = asyncio.get_running_loop()
    async with connected(host, job_timeout=10, poll=2) as manager:
        host.silent = {"GetAll"}
        before = loop.time()
        report = await manager.restart("mute.service")
        assert (report.outcome, report.reason) == (JobOutcome.PENDING, "state unknown: no answer")
        assert loop.time() - before == pytest.approx(12, abs=0.1)


async def test_done_is_done_though_the_state_cannot_be_read(host: FakeSystemd) -> None:
    """Contract 6.7: the job's result decides; looking at the unit after it is a courtesy."""
    host.write_unit("fine.service", SIMPLE)
    async with connected(host, call_deadline=1) as manager:
        host.silent = {"Get"}
        assert (await manager.restart("fine.service")).outcome is JobOutcome.DONE


async def test_results_of_strangers_are_forgotten(host: FakeSystemd) -> None:
    """Results of jobs that nobody asks for do not pile up; an old pending job is then judged by its unit."""
    host.write_unit("stranger.service", SIMPLE)
    host.write_unit("patient.service", gate("patient", code=1))
    async with connected(host, job_timeout=0.1) as manager, connected(host) as other:
        report = await manager.restart("patient.service")
        await host.open_gate("patient")
        await wait_active(manager, "patient.service", "failed")
        for _ in range(520):
            await other.restart("stranger.service")
        await manager.reload()
        assert len(manager._results) == 512
        assert (await manager.look(report)).outcome is JobOutcome.FAILED


async def test_bad_names_are_never_sent(host: FakeSystemd) -> None:
    """Contract 5.4: what cannot be part of a path is refused before there is even a connection."""
    async with connected(host) as manager:
        for name in ("a/b.service", "nul\0.service"):
            with pytest.raises(InvalidUnit):
                await manager.restart(name)
            with pytest.raises(InvalidUnit):
                await manager.unit(name)
            with pytest.raises(InvalidUnit):
                await manager.disable([name])
    assert host.received == []


async def test_other_signals_are_ignored(host: FakeSystemd) -> None:
    """Signals that are no JobRemoved of the known form change nothing."""
    manager = SystemdUnitManager(address=host.address)
    manager._received("UnitNew", ["x", "/y"])
    manager._received("JobRemoved", [1])
    assert not manager._results
    await manager.close()


async def test_one_bad_name_of_one_is_not_tried_twice(host: FakeSystemd) -> None:
    """Contract 6.7: a single unit that cannot be enabled is one call."""
    async with connected(host) as manager:
        with pytest.raises(InvalidUnit):
            await manager.enable(["bad"])
        assert host.received.count("EnableUnitFiles") == 1


async def test_batch_that_failed_for_a_moment_succeeds_one_by_one(host: FakeSystemd) -> None:
    """Contract 6.7: if the single calls succeed after the batch failed, nothing is wrong."""
    host.write_unit("a.service", SIMPLE)
    host.write_unit("b.service", SIMPLE)
    host.refuse_next = 1
    async with connected(host) as manager:
        await manager.enable(["a.service", "b.service"])
        assert host.is_enabled("a.service")
        assert host.is_enabled("b.service")


async def test_states_are_not_mixed_up_when_systemd_leaves_one_out(host: FakeSystemd) -> None:
    """Contract 7.8: an answer with fewer units than were asked for is not taken for one with all of them."""
    host.write_unit("one.service", SIMPLE)
    host.write_unit("two.service", SIMPLE)
    async with connected(host) as manager:
        await manager.start("two.service")
        found = await manager.states(["left-out.swap", "one.service", "two.service"])
        assert {name: state.active_state for name, state in found.items()} == {
            "one.service": "inactive",
            "two.service": "active",
        }
        await host.stop_bus()
        with pytest.raises(BusUnavailable):
            await manager.states(["one.service"])
