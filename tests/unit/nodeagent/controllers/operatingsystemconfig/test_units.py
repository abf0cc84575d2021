"""Jobs of units: done, failed, slow, endless; and what is said of them."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agents.core.errors import RetriableError
from agents.runtime.reconcile import Result
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from nodeagent.controllers.operatingsystemconfig.units import UnitJobs
from nodeagent.host.units_in_use import UnitsInUse
from osc.plan import Plan, RunUnitCommand
from systemd.jobs import JobOutcome, JobReport, Queued
from systemd.manager import SystemdUnitManager
from systemd.states import UnitState
from tests.support.clock import FakeClock
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import SLEEP, OscAgent, containerd, from_secret, inline
from tests.support.systemd_behaviour import gate

RESTART = RunUnitCommand(name="slow.service", command="restart")


class Notes:
    """Collects what is told of jobs."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str | None]] = []

    def __call__(self, operation: str, unit: str, error: str | None) -> None:
        """Note it."""
        self.told.append((operation, unit, error))


async def test_a_job_of_more_than_10_s_is_waited_for_in_later_passes(node: OscAgent) -> None:
    """Contract 6.7, 9 W26: after 10 s other items are done, no annotation, a look every 5 s, and no second job."""
    checksum = node.publish(
        files=[inline("/etc/a", "one")],
        units=[
            {"name": "slow.service", "content": gate("slow")},
            {"name": "b.service", "content": SLEEP},
        ],
    )
    loop = asyncio.get_running_loop()
    async with node.connected():
        before = loop.time()
        assert await node.reconcile() == Result(requeue_after=timedelta(seconds=5))
        assert 10 <= loop.time() - before <= 11
        assert node.host.units["b.service"].active_state == "active"
        assert node.applied() is None
        assert "slow.service" in node.paths.pending_changes.read_text()
        assert [item["name"] for item in node.status_document()["items"]] == ["unit slow.service"]
        assert await node.reconcile() == Result(requeue_after=timedelta(seconds=5))
        await node.host.open_gate("slow")
        await node.reconcile()
        assert node.applied() == checksum
        assert node.status_document()["items"] == []
    assert node.calls("RestartUnit") == 2


async def test_a_late_failure_is_a_failure_of_that_unit(node: OscAgent) -> None:
    """Contract 6.7, 9 W26: a job that fails after 12 s is a Warning event and no annotation; then it is run again."""
    node.publish(units=[{"name": "slow.service", "content": gate("slow", code=3)}])
    async with node.connected():
        await node.reconcile()
        await node.host.open_gate("slow")
        with pytest.raises(ApplyFailed) as raised:
            await node.reconcile()
        assert raised.value.fields["items"] == ["unit slow.service"]
        assert node.applied() is None
        await asyncio.sleep(5)
        (event,) = node.events("SystemDUnitRestart")
        assert event["type"] == "Warning"
        assert event["note"].startswith("processed restart of unit slow.service failed with error failed: ")
        with pytest.raises(ApplyFailed):
            await node.reconcile()
    assert node.calls("RestartUnit") == 2


async def test_a_job_of_3_minutes_counts_as_done_and_its_unit_is_watched(node: OscAgent) -> None:
    """Contract 6.7: after 3 min of activating: annotation, a Warning event with unit and state; a later failure is told."""
    checksum = node.publish(units=[{"name": "slow.service", "content": gate("slow", code=1)}])
    async with node.controlling():
        await asyncio.sleep(178)
        assert node.applied() is None
        await asyncio.sleep(15)
        assert node.applied() == checksum
        (event,) = node.events("SystemDUnitRestart")
        assert event["type"] == "Warning"
        assert "slow.service" in event["note"]
        assert "activating" in event["note"]
        await node.host.open_gate("slow")
        await asyncio.sleep(60)
        notes = [found["note"] for found in node.events("SystemDUnitRestart")]
        assert len(notes) == 2
        assert "slow.service" in notes[1]
        assert "failed" in notes[1]
    assert node.calls("RestartUnit") == 1


async def test_a_watched_unit_that_ends_well_is_let_go(node: OscAgent) -> None:
    """Contract 6.7: a unit under watch that becomes active or ends well is no event, and is looked at no more."""
    node.publish(units=[{"name": "slow.service", "content": gate("slow")}])
    async with node.controlling():
        await asyncio.sleep(195)
        assert node.jobs.watched == {"slow.service"}
        await node.host.open_gate("slow")
        await asyncio.sleep(60)
        assert node.jobs.watched == frozenset()
        assert len(node.events("SystemDUnitRestart")) == 1


async def test_a_slow_job_is_looked_at_every_5_s_beside_a_failing_item(node: OscAgent) -> None:
    """Contract 6.7: what else fails in the OSC does not hold back the look at a job that has not ended."""
    node.publish(files=[from_secret("/etc/a", "missing")], units=[{"name": "slow.service", "content": gate("slow")}])
    async with node.controlling():
        await asyncio.sleep(150)
        assert "unit slow.service" in [item["name"] for item in node.status_document()["items"]]
        await node.host.open_gate("slow")
        await asyncio.sleep(6)
        assert [item["name"] for item in node.status_document()["items"]] == ["file /etc/a"]


async def test_a_bus_that_goes_away_during_a_slow_job_does_not_run_it_twice(
    host: FakeSystemd, clock: FakeClock, tmp_path: Path
) -> None:
    """Contract 6.7: a job that could not be looked at is looked at later; it is not started a second time."""
    host.write_unit("slow.service", gate("slow"))
    units = SystemdUnitManager(address=host.address)
    jobs = UnitJobs(units=units, clock=clock, notify=Notes(), record=tmp_path / "jobs", in_use=UnitsInUse())
    assert await jobs.run(RESTART) is False
    await host.stop_bus()
    with suppress(RetriableError):
        await jobs.run(RESTART)
    await host.start()
    await jobs.run(RESTART)
    await units.close()
    assert host.received.count("RestartUnit") == 1


class Endless:
    """A unit whose job never ends, in a state of the test's choice."""

    def __init__(self, state: str) -> None:
        self.state = UnitState("slow.service", "loaded", state, state)
        self.started: list[str] = []

    async def reload(self) -> None:
        """Do nothing."""

    async def enable(self, names: list[str]) -> None:
        """Do nothing."""

    async def disable(self, names: list[str]) -> None:
        """Do nothing."""

    async def start(self, name: str) -> JobReport:
        """Start a job that never ends."""
        return self._run(name, "start")

    async def stop(self, name: str, *, queued: Queued | None = None) -> JobReport:
        """Start a job that never ends."""
        return self._run(name, "stop", queued)

    async def restart(self, name: str, *, queued: Queued | None = None) -> JobReport:
        """Start a job that never ends."""
        return self._run(name, "restart", queued)

    def _run(self, name: str, command: str, queued: Queued | None = None) -> JobReport:
        self.started.append(command)
        if queued is not None:
            queued("/job/1")
        return JobReport(name, command, JobOutcome.PENDING, reason=self.state.description, job="/job/1")  # type: ignore[arg-type]

    async def look(self, report: JobReport) -> JobReport:
        """Still at it."""
        return replace(report, reason=self.state.description)

    async def unit(self, name: str) -> UnitState:
        """Return the state."""
        return self.state

    async def list_units(self) -> list[UnitState]:
        """Return the one unit."""
        return [self.state]


@pytest.mark.parametrize(
    ("command", "state"),
    [("restart", "activating"), ("restart", "deactivating"), ("restart", "inactive"), ("stop", "deactivating")],
)
async def test_only_activating_counts_as_done_after_3_minutes(
    command: str, state: str, clock: FakeClock, tmp_path: Path
) -> None:
    """Contract 6.7: only a job that is still activating is taken as done; a unit that does not stop is not stopped."""
    units, notes = Endless(state), Notes()
    jobs = UnitJobs(units=units, clock=clock, notify=notes, record=tmp_path / "jobs", in_use=UnitsInUse())  # type: ignore[arg-type]
    step = RunUnitCommand(name="slow.service", command=command)  # type: ignore[arg-type]
    assert await jobs.run(step) is False
    clock.advance(179)
    assert await jobs.run(step) is False
    clock.advance(2)
    assert await jobs.run(step) is (state == "activating")
    assert units.started == [command]


async def test_the_watch_survives_a_restart_of_the_agent(node: OscAgent) -> None:
    """Contract 6.7: a unit under watch stays so in the next process, and its late failure is reported there."""
    node.publish(units=[{"name": "slow.service", "content": gate("slow")}])
    async with node.controlling():
        await asyncio.sleep(200)
        assert node.jobs.watched == {"slow.service"}
    node.start_process()
    assert node.jobs.watched == {"slow.service"}
    node.paths.unit_jobs.write_text("[")
    node.start_process()
    assert node.jobs.watched == frozenset()


@pytest.mark.parametrize("ended", [False, True], ids=["while it goes on", "after its end"])
async def test_the_next_process_goes_on_with_a_job(node: OscAgent, ended: bool) -> None:
    """Contract 6.7, 9 W26: an agent that is restarted while a unit of its apply starts does not start it a second time."""
    checksum = node.publish(units=[{"name": "slow.service", "content": gate("slow")}])
    async with node.connected():
        await node.reconcile()
        if ended:
            await node.host.open_gate("slow")
        node.start_process()
        await node.reconcile()
        if not ended:
            assert node.applied() is None
            assert node.jobs.pending
            await node.host.open_gate("slow")
            await node.reconcile()
        assert node.applied() == checksum
        assert json.loads(node.paths.unit_jobs.read_text())["jobs"] == {}
    assert node.calls("RestartUnit") == 1


async def test_the_next_process_runs_a_job_again_that_failed(node: OscAgent) -> None:
    """Contract 6.7: how a job ended that nobody waited for, its unit tells; a failure is said, and the unit started again."""
    node.publish(units=[{"name": "slow.service", "content": gate("slow", code=3)}])
    async with node.connected():
        await node.reconcile()
        await node.host.open_gate("slow")
        node.start_process()
        with pytest.raises(ApplyFailed) as raised:
            await node.reconcile()
        assert raised.value.fields["items"] == ["unit slow.service"]
        assert node.calls("RestartUnit") == 1
        with pytest.raises(ApplyFailed):
            await node.reconcile()
    assert node.calls("RestartUnit") == 2


async def test_the_next_process_runs_its_own_job_for_another_definition(node: OscAgent) -> None:
    """Contract 6.4 b: what was begun for an OSC counts for that one only; one that was forgotten is no use to a third process."""
    first = [{"name": "slow.service", "content": gate("slow")}]
    node.publish(units=first)
    async with node.connected():
        await node.reconcile()
        node.start_process()
        node.publish(files=[from_secret("/etc/a", "missing")], units=first)
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        assert node.calls("RestartUnit") == 2
        node.start_process()
        node.publish(units=[])
        await node.reconcile()
        assert node.calls("StopUnit") == 1


async def test_a_job_that_nobody_asks_for_is_of_no_interest(clock: FakeClock, tmp_path: Path) -> None:
    """Contract 6.4 b: not for another OSC, as the files that a unit reads may be others by now; not if it was done meanwhile."""
    units = Endless("activating")

    async def process(checksum: str, *steps: RunUnitCommand) -> int:
        in_use = UnitsInUse()
        jobs = UnitJobs(units=units, clock=clock, notify=Notes(), record=tmp_path / "jobs", in_use=in_use)  # type: ignore[arg-type]
        with jobs.handling(Plan(steps), checksum=checksum):
            for step in steps:
                assert await jobs.run(step) is False
        assert (in_use.user("slow.service") is not None) is bool(steps)
        return len(units.started)

    assert [await process("a", RESTART) for _ in range(3)] == [1, 1, 1]
    for other in ("a", "b"):
        before = await process(other)
        assert await process("a", RESTART) == before + 1
    assert await process("b", RESTART) == before + 2


async def test_a_changed_definition_gets_a_new_job(node: OscAgent) -> None:
    """Contract 6.6, 6.7: a unit that is written again while its job runs is restarted with what it says now."""
    node.publish(units=[{"name": "slow.service", "content": gate("slow")}])
    async with node.connected():
        await node.reconcile()
        assert node.jobs.pending
        checksum = node.publish(units=[{"name": "slow.service", "content": SLEEP}])
        await node.reconcile()
        assert node.applied() == checksum
        assert node.host.units["slow.service"].active_state == "active"
        assert not node.jobs.pending
    assert node.calls("RestartUnit") == 2


async def test_a_containerd_that_starts_slowly_is_restarted_once(node: OscAgent) -> None:
    """Contract 6.7, 6.14: while it starts it cannot be asked whether its file is right; that is no reason for another restart."""
    node.host.write_unit("containerd.service", gate("slow"))
    checksum = node.publish(criConfig=containerd())
    async with node.connected():
        await node.reconcile()
        node.containerd.error = RetriableError("containerd does not answer")
        for _ in range(2):
            with suppress(RetriableError):
                await node.reconcile()
        await node.host.open_gate("slow")
        node.containerd.error = None
        await node.reconcile()
        assert node.applied() == checksum
    assert node.calls("RestartUnit") == 1


async def test_commands_run_in_parallel(node: OscAgent) -> None:
    """Contract 6.6: unit commands run at once: five slow units delay the pass by one waiting time."""
    names = [f"slow{number}.service" for number in range(5)]
    node.publish(units=[{"name": name, "content": gate(name.removesuffix(".service"))} for name in names])
    loop = asyncio.get_running_loop()
    async with node.connected():
        before = loop.time()
        await node.reconcile()
        assert loop.time() - before < 12
        assert sorted(node.jobs.pending) == [f"unit {name}" for name in names]


async def test_every_job_is_an_event_on_the_node(node: OscAgent) -> None:
    """Contract 6.8, 9 W27: Normal or Warning, reason, action, and the note as plain text, a percent sign too."""
    node.publish(units=[{"name": "a.service", "content": SLEEP}, {"name": "100%d.service", "enable": True}])
    async with node.connected():
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        await asyncio.sleep(5)
        found = {event["type"]: event for event in node.events("SystemDUnitRestart")}
        assert found["Normal"]["note"] == "processed restart of unit a.service"
        assert found["Normal"]["action"] == "restart"
        assert found["Normal"]["reportingController"] == "operatingsystemconfig"
        assert found["Normal"]["regarding"]["kind"] == "Node"
        assert "100%d.service" in node.events("OSCFailed")[0]["note"]


async def test_w38_unset_enable_enables_and_own_unit_is_never_stopped(node: OscAgent) -> None:
    """Contract 6.6, 9 W38: unset means enable, also for an OS unit with a drop-in, and is logged; our own unit stays enabled anyway."""
    node.host.write_unit("vendor.service", SLEEP)
    drop_in = {"name": "10-test.conf", "content": "[Service]\n"}
    node.publish(
        units=[
            {"name": "vendor.service", "dropIns": [drop_in]},
            {"name": "gardener-node-agent.service", "enable": False, "content": SLEEP},
            {"name": "off.service", "enable": False, "content": SLEEP},
            {"name": "stopped.service", "command": "stop", "content": SLEEP},
        ]
    )
    async with node.connected():
        with capture_logs() as lines:
            await node.reconcile()
        assert node.restart_reason() is not None
        node.start_process()
        await node.reconcile()
    logged = [line["unit"] for line in lines if line["event"].startswith("Unit enabled although")]
    assert logged == ["vendor.service", "stopped.service"]
    names = ("vendor.service", "gardener-node-agent.service", "off.service", "stopped.service")
    assert [node.host.is_enabled(name) for name in names] == [True, True, False, True]
    assert node.host.units["vendor.service"].active_state == "active"
    assert node.host.units["stopped.service"].active_state == "inactive"
    assert node.read("/etc/systemd/system/vendor.service.d/10-test.conf") == "[Service]\n"
    assert node.read("/etc/systemd/system/vendor.service") == SLEEP


async def test_foreign_drop_ins_survive(node: OscAgent) -> None:
    """Contract 9 W37: only drop-ins of the old OSC go; the folder goes when it is empty."""
    folder = node.root / "etc/systemd/system/a.service.d"
    ours = {"name": "10-ours.conf", "content": "[Service]\n"}
    node.publish(units=[{"name": "a.service", "content": SLEEP, "dropIns": [ours]}])
    async with node.connected():
        await node.reconcile()
        (folder / "99-admin.conf").write_text("[Service]\n")
        node.publish(units=[{"name": "a.service", "content": SLEEP}])
        await node.reconcile()
        assert sorted(path.name for path in folder.iterdir()) == ["99-admin.conf"]
        (folder / "99-admin.conf").unlink()
        node.publish(units=[{"name": "a.service", "content": SLEEP, "dropIns": [ours]}])
        await node.reconcile()
        node.publish(units=[{"name": "a.service", "content": SLEEP}])
        await node.reconcile()
        assert not folder.exists()


async def test_a_removed_unit_is_disabled_stopped_and_gone(node: OscAgent) -> None:
    """Contract 6.6: a unit with content that left the OSC: disabled, stopped, file and drop-ins removed, then the reload."""
    drop_in = {"name": "10-test.conf", "content": "[Service]\n"}
    node.publish(units=[{"name": "a.service", "content": SLEEP, "dropIns": [drop_in]}])
    async with node.connected():
        await node.reconcile()
        checksum = node.publish(units=[])
        await node.reconcile()
        assert node.applied() == checksum
    assert node.host.units["a.service"].active_state == "inactive"
    assert not node.host.is_enabled("a.service")
    assert node.read("/etc/systemd/system/a.service") is None
    assert not (node.root / "etc/systemd/system/a.service.d").exists()
    assert node.host.received[-1] == "Reload"


async def test_an_os_unit_that_left_the_osc_is_restarted_after_the_reload(node: OscAgent) -> None:
    """Contract 6.6, 9 W17: its drop-in goes, its file stays, and it is restarted with its old definition after the reload."""
    node.host.write_unit("vendor.service", SLEEP)
    node.publish(units=[{"name": "vendor.service", "dropIns": [{"name": "10-a.conf", "content": "[Service]\n"}]}])
    async with node.connected():
        await node.reconcile()
        node.publish(units=[])
        await node.reconcile()
    members = [member for member in node.host.received if member in ("Reload", "RestartUnit")]
    assert members[-2:] == ["Reload", "RestartUnit"]
    assert node.read("/etc/systemd/system/vendor.service") == SLEEP


async def test_one_reload_per_apply(node: OscAgent) -> None:
    """Contract 6.2: one daemon-reload for an apply that writes, removes and drops in; none for one without changes."""
    node.publish(units=[{"name": "a.service", "content": SLEEP}, {"name": "b.service", "content": SLEEP}])
    async with node.connected():
        await node.reconcile()
        assert node.calls("Reload") == 1
        node.publish(units=[{"name": "a.service", "content": SLEEP + "#\n", "filePaths": []}])
        await node.reconcile()
        assert node.calls("Reload") == 2
        await node.reconcile()
        assert node.calls("Reload") == 2


async def test_a_unit_is_in_use_from_its_command_to_the_end_of_its_job(
    host: FakeSystemd, clock: FakeClock, tmp_path: Path
) -> None:
    """Contract 7.9: others see that the OSC flow acts on a unit, while it waits for the job and between the passes that look at it."""
    host.write_unit("slow.service", gate("slow"))
    units, in_use = SystemdUnitManager(address=host.address), UnitsInUse()
    jobs = UnitJobs(units=units, clock=clock, notify=Notes(), record=tmp_path / "jobs", in_use=in_use)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(jobs.run(RESTART))
        await host.wait_called("RestartUnit")
        assert in_use.user("slow.service") == "operatingsystemconfig"
        assert await first is False
    assert in_use.user("slow.service") == "operatingsystemconfig"
    await host.open_gate("slow")
    await asyncio.sleep(1)
    assert await jobs.run(RESTART) is True
    assert in_use.user("slow.service") is None
    await units.close()


async def test_the_units_of_an_osc_are_in_use_while_it_is_applied(node: OscAgent) -> None:
    """Contract 7.9: from the first change to the last, others see that the OSC flow handles the units that it changes, and no others."""
    node.publish(units=[{"name": "a.service", "content": SLEEP}, {"name": "b.service", "enable": False}])
    node.host.write_unit("b.service", SLEEP)
    node.host.silent.add("Reload")

    async def apply() -> None:
        with suppress(RetriableError):
            await node.reconcile()

    async with node.connected():
        async with asyncio.TaskGroup() as group:
            group.create_task(apply())
            await node.host.wait_called("Reload")
            assert [node.in_use.user(f"{name}.service") for name in "abc"] == [*["operatingsystemconfig"] * 2, None]
        assert node.in_use.user("a.service") is None
