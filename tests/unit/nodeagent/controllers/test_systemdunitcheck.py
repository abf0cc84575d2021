"""The condition about the units of the OSC."""

import asyncio
import errno
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agents.core import files
from agents.kube.models import NODES
from agents.runtime.controller import Controller
from nodeagent.config import SystemdUnitCheck
from nodeagent.controllers import systemdunitcheck
from nodeagent.controllers.systemdunitcheck import ManagedUnit, Verdict, condition, judge, managed_units
from osc.types import OperatingSystemConfig
from systemd.states import UnitState
from tests.support.own_node import NAME, OwnNode
from tests.support.systemd_behaviour import SIMPLE, gate

TYPE = "SystemdUnitsReady"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def state(active: str, sub: str = "", load: str = "loaded") -> UnitState:
    """Return a unit's state."""
    return UnitState("u.service", load, active, sub or active)


@pytest.mark.parametrize(
    ("found", "enabled", "disabled"),
    [
        (None, "not loaded", None),
        (state("inactive", "dead", "not-found"), "not loaded", None),
        (state("active", "running"), None, "active but should be disabled"),
        (state("active", "exited"), None, "active but should be disabled"),
        (state("failed"), "failed", None),
        (state("inactive", "dead"), "inactive but should be enabled", None),
        (state("inactive", "condition"), "inactive but should be enabled", None),
        (state("inactive", "dead", "masked"), "inactive but should be enabled", None),
        (state("activating", "auto-restart"), None, None),
        (state("deactivating", "auto-restart"), None, None),
        (state("reloading"), None, None),
        (state("maintenance"), None, None),
        (state("refreshing"), None, None),
    ],
)
def test_states_of_units(found: UnitState | None, enabled: str | None, disabled: str | None) -> None:
    """Contract 7.8, Appendix C (unit states): what each state means for a unit that should run and for one that should not."""
    for unit, expected in ((ManagedUnit("u.service", True), enabled), (ManagedUnit("u.service", False), disabled)):
        verdict = judge(unit, found, age=timedelta(0), at_rest=False, stuck=timedelta(minutes=5))
        assert verdict == (None if expected is None else Verdict(f"u.service: {expected}", healthy=False))


@pytest.mark.parametrize("active", ["activating", "deactivating"])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("seconds", "text", "healthy"),
    [
        (0.4, "{} for 0s", True),
        (59.99, "{} for 59s", True),
        (299.9, "{} for 4m59s", True),
        (300, "stuck in {} for 5m0s", False),
        (7265.5, "stuck in {} for 2h1m5s", False),
    ],
)
def test_units_that_change_their_state(active: str, enabled: bool, seconds: float, text: str, healthy: bool) -> None:
    """Contract 7.8: progressing below the threshold, stuck from it on, whether enabled or not; the age in whole seconds."""
    unit = ManagedUnit("u.service", enabled)
    verdict = judge(
        unit, state(active, "start"), age=timedelta(seconds=seconds), at_rest=True, stuck=timedelta(minutes=5)
    )
    assert verdict == Verdict(f"u.service: {text.format(active)}", healthy=healthy)


@pytest.mark.parametrize(("sub", "well"), [("dead", True), ("failed", False)])
def test_a_unit_at_rest_is_well_only_when_dead(sub: str, well: bool) -> None:
    """Contract 7.8: a oneshot or a triggered unit may be inactive, if its sub state is dead."""
    unit = ManagedUnit("u.service", enabled=True)
    assert (judge(unit, state("inactive", sub), age=timedelta(0), at_rest=True, stuck=timedelta(1)) is None) is well


def config(units: Sequence[Mapping[str, Any]], extension: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return an OSC document."""
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "OperatingSystemConfig",
        "spec": {"units": list(units)},
        "status": {"extensionUnits": list(extension)},
    }


def test_managed_units_and_whether_they_should_run() -> None:
    """Contract 7.8: explicit `enable`, else true with content or drop-ins; an extension unit of the same name overrides only that."""
    units: list[dict[str, Any]] = [
        {"name": "z.service", "content": "x"},
        {"name": "drop.service", "dropIns": [{"name": "10.conf", "content": "x"}]},
        {"name": "bare.service", "command": "restart"},
        {"name": "off.service", "content": "x", "enable": False},
        {"name": "on.service", "enable": True},
        {"name": "overridden.service", "content": "x"},
        {"name": "kept.service"},
    ]
    extension: list[dict[str, Any]] = [
        {"name": "overridden.service", "enable": False},
        {"name": "kept.service", "content": "x"},
        {"name": "extension.service", "dropIns": [{"name": "10.conf", "content": "x"}]},
    ]
    found = managed_units(OperatingSystemConfig.model_validate(config(units, extension)))
    assert [(unit.name, unit.enabled) for unit in found] == [
        ("bare.service", False),
        ("drop.service", True),
        ("extension.service", True),
        ("kept.service", False),
        ("off.service", False),
        ("on.service", True),
        ("overridden.service", False),
        ("z.service", True),
    ]


def test_one_condition_for_all() -> None:
    """Contract 7.8: unhealthy wins over progressing; messages are joined and bounded."""
    slow, bad, worse = Verdict("a: x", healthy=True), Verdict("b: y", healthy=False), Verdict("c: z", healthy=False)
    assert condition([slow, bad, worse]) == ("False", "UnhealthyUnits", "b: y; c: z")
    assert condition([slow]) == ("True", "ProgressingUnits", "a: x")
    assert condition([])[:2] == ("True", "AllUnitsHealthy")
    assert len(condition([Verdict("x" * 100, healthy=False)] * 10_000)[2]) == 16 * 1024


def new(machine: OwnNode) -> Controller:
    """Return the controller."""
    return systemdunitcheck.new_controller(
        client=machine.client,
        nodes=machine.nodes,
        identity=machine.identity,
        units=machine.units,
        clock=machine.clock,
        last_applied=machine.paths.last_applied,
        config=SystemdUnitCheck(),
    )


def applied(machine: OwnNode, *units: dict[str, Any]) -> None:
    """Write the last applied OSC."""
    machine.paths.last_applied.parent.mkdir(parents=True, exist_ok=True)
    machine.paths.last_applied.write_text(json.dumps(config(list(units))))


def reported(machine: OwnNode) -> dict[str, Any] | None:
    """Return the condition."""
    found = [item for item in machine.node()["status"]["conditions"] if item["type"] == TYPE]
    assert len(found) <= 1
    return found[0] if found else None


def said(machine: OwnNode) -> tuple[str, str, str]:
    """Return status, reason and message of the condition."""
    found = reported(machine)
    assert found is not None
    return found["status"], found["reason"], found["message"]


async def test_nothing_is_reported_before_an_osc_was_applied(machine: OwnNode) -> None:
    """Contract 7.8: without a last-applied file, or with one that is damaged, there is no condition; with one it comes within a period."""
    machine.register(conditions=[READY])
    async with machine.running(new(machine)):
        await asyncio.sleep(120)
        machine.paths.last_applied.parent.mkdir(parents=True)
        machine.paths.last_applied.write_text("{")
        await asyncio.sleep(120)
        assert reported(machine) is None
        applied(machine)
        await asyncio.sleep(61)
        assert said(machine) == ("True", "AllUnitsHealthy", systemdunitcheck.ALL_WELL)


async def test_a_unit_that_fails_and_recovers_moves_the_condition(machine: OwnNode) -> None:
    """Contract 7.8: one patch a period; lastTransitionTime moves with the status only, lastHeartbeatTime each time."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.register(conditions=[READY])
    applied(machine, {"name": "a.service", "content": SIMPLE, "enable": True})
    async with machine.running(new(machine)):
        assert said(machine) == ("False", "UnhealthyUnits", "a.service: inactive but should be enabled")
        first = reported(machine)
        assert first is not None
        assert first["lastTransitionTime"] == first["lastHeartbeatTime"] == "2026-01-01T00:00:00Z"
        await asyncio.sleep(60)
        second = reported(machine)
        assert second is not None
        assert (second["lastTransitionTime"], second["lastHeartbeatTime"]) == (
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:01:00Z",
        )
        await machine.units.start("a.service")
        await asyncio.sleep(60)
        assert said(machine) == ("True", "AllUnitsHealthy", systemdunitcheck.ALL_WELL)
        third = reported(machine)
        assert third is not None
        assert third["lastTransitionTime"] == third["lastHeartbeatTime"] == "2026-01-01T00:02:00Z"
        machine.host.unit("a.service").set_state("failed", "failed")
        await asyncio.sleep(60)
        assert said(machine) == ("False", "UnhealthyUnits", "a.service: failed")
        assert len(machine.api.requests("PATCH")) == 4


async def test_a_unit_that_is_stuck(machine: OwnNode) -> None:
    """Contract 7.8, 9 W42: progressing at first, stuck after five minutes of the monotonic clock, however the wall clock jumps."""
    machine.host.write_unit("slow.service", gate("slow"))
    applied(machine, {"name": "slow.service", "content": "x"})
    machine.register()
    machine.host.unit("slow.service").set_state("activating", "start")
    async with machine.running(new(machine)):
        assert said(machine) == ("True", "ProgressingUnits", "slow.service: activating for 0s")
        await asyncio.sleep(240)
        machine.clock._start += timedelta(hours=1)
        assert said(machine) == ("True", "ProgressingUnits", "slow.service: activating for 4m0s")
        await asyncio.sleep(60)
        assert said(machine) == ("False", "UnhealthyUnits", "slow.service: stuck in activating for 5m0s")


async def test_w40_inactive_timers_mounts_and_paths_do_not_stop_the_report(machine: OwnNode) -> None:
    """Contract 7.8, 9 W40: units without a service's type are judged by state; a oneshot and a triggered service are at rest."""
    machine.host.write_unit("once.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n")
    machine.host.write_unit("triggered.service", SIMPLE)
    machine.host.unit("triggered.service").triggered_by = ("triggered.timer",)
    names = ["once.service", "triggered.service", "a.timer", "b.mount", "c.path", "d.target"]
    for name in names[2:]:
        machine.host.write_unit(name, "[Unit]\nDescription=x\n")
    applied(machine, *({"name": name, "enable": True} for name in [*names, "gone.timer"]))
    machine.register()
    async with machine.running(new(machine)):
        status, reason, message = said(machine)
        assert (status, reason) == ("False", "UnhealthyUnits")
        resting = [f"{name}: inactive but should be enabled" for name in names[2:]]
        assert message.split("; ") == [*resting, "gone.timer: not loaded"]


async def test_templates_and_impossible_names_do_not_stop_the_report(machine: OwnNode) -> None:
    """Contract 7.8: a template has no state and is well; a name that systemd refuses is not loaded; the others are judged."""
    machine.host.write_unit("many@.service", SIMPLE)
    machine.host.write_unit("a.service", SIMPLE)
    names = ["many@.service", "a.service", "no-type", "has blank.service"]
    applied(machine, *({"name": name, "content": "x"} for name in names))
    machine.register()
    async with machine.running(new(machine)):
        await machine.units.start("a.service")
        await asyncio.sleep(60)
        assert said(machine) == ("False", "UnhealthyUnits", "has blank.service: not loaded; no-type: not loaded")


async def test_w09_only_one_condition_is_written(machine: OwnNode) -> None:
    """Contract 9 W9: the kubelet's newer conditions survive our patch, although we have read older ones."""
    applied(machine)
    machine.register(conditions=[READY])
    newer = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:30Z"}

    async with machine.running(new(machine)):
        await asyncio.sleep(30)
        for stream in machine.api.streams:
            stream.silent = True
        machine.register(conditions=[newer])
        await asyncio.sleep(31)
        cached = machine.identity.node
        assert cached is not None
        assert cached.status.conditions[0].status == "True"
        assert machine.node()["status"]["conditions"][0] == newer
        assert said(machine)[1] == "AllUnitsHealthy"


async def test_a_bus_that_is_away_leaves_the_condition_alone(machine: OwnNode) -> None:
    """Contract 7.8: an error of systemd changes nothing on the Node; the check goes on within a period of the bus's return."""
    machine.host.write_unit("a.service", SIMPLE)
    applied(machine, {"name": "a.service", "content": "x"})
    machine.register()
    async with machine.running(new(machine)):
        before = reported(machine)
        await machine.host.stop_bus()
        await asyncio.sleep(600)
        assert reported(machine) == before
        await machine.host.start()
        await machine.units.start("a.service")
        await asyncio.sleep(61)
        assert said(machine)[1] == "AllUnitsHealthy"


async def test_w25_a_systemd_that_does_not_answer_is_given_up(machine: OwnNode) -> None:
    """Contract 9 W25: a frozen systemd delays a check, and the next ones are made when it answers again."""
    applied(machine, {"name": "a.service", "content": "x"})
    machine.register()
    machine.host.silent.add("ListUnitsByNames")
    async with machine.running(new(machine)):
        await asyncio.sleep(300)
        assert reported(machine) is None
        machine.host.silent.clear()
        await asyncio.sleep(90)
        assert said(machine)[1] == "UnhealthyUnits"


async def test_the_node_may_appear_later_and_come_back(machine: OwnNode) -> None:
    """Contract 1.8, 7.8: the report begins when the Node registers, and begins again with a new Node."""
    applied(machine)
    async with machine.running(new(machine)):
        await asyncio.sleep(120)
        machine.register()
        await asyncio.sleep(1)
        assert said(machine)[1] == "AllUnitsHealthy"
        machine.api.remove(NODES, NAME)
        await asyncio.sleep(120)
        machine.register()
        await asyncio.sleep(1)
        assert said(machine)[1] == "AllUnitsHealthy"


async def test_an_unchanged_last_applied_is_not_decoded_again(machine: OwnNode) -> None:
    """Contract 7.8: the units are read again only when the file is another one."""
    applied(machine, {"name": "a.service", "enable": False})
    last = systemdunitcheck.LastApplied(machine.paths.last_applied)
    first = last.units()
    assert first == (ManagedUnit("a.service", enabled=False),)
    assert last.units() is first
    applied(machine, {"name": "b.service", "enable": True})
    assert last.units() == (ManagedUnit("b.service", enabled=True),)
    machine.paths.last_applied.unlink()
    assert last.units() is None


def test_a_last_applied_that_could_not_be_read_once_is_read_again(
    machine: OwnNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 7.8: a disk that fails for a moment does not end the report until the next OSC."""
    applied(machine, {"name": "a.service", "enable": False})
    last = systemdunitcheck.LastApplied(machine.paths.last_applied)

    def fail(path: Path) -> bytes:
        raise files.FileError("file not read", path, OSError(errno.EIO, "Input/output error"))

    with monkeypatch.context() as broken:
        broken.setattr(files, "read_optional", fail)
        assert last.units() is None
    assert last.units() == (ManagedUnit("a.service", enabled=False),)
