"""Health checks: what fails is restarted after a minute, where that can help."""

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
import structlog

from agents.core import logging
from agents.core.errors import RetriableError
from agents.kube.errors import ApiError, BadRequest, Conflict, Forbidden, ServerError, Unavailable
from agents.kube.models import NODES
from agents.kube.transport import Call
from agents.runtime.controller import Controller
from nodeagent.controllers.healthcheck import controller
from nodeagent.controllers.healthcheck.node_status import Readiness
from nodeagent.host.containerd import ContainerdNotAsked, ContainerdUnavailable
from nodeagent.host.kubelet import Kubelet, KubeletUnhealthy
from nodeagent.host.restart_budget import RestartBudget
from tests.support.clock import FakeClock
from tests.support.own_node import NAME, OwnNode
from tests.support.systemd_behaviour import gate

CONTAINERD, KUBELET = "containerd.service", "kubelet.service"
SERVICE = "[Service]\nExecStart=/bin/sleep infinity\n"
HOME = {"InternalIP": "10.0.0.1"}
READY, NOT_READY = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}


class Runtime:
    """A machine whose containerd and kubelet answer what the test wants; both have run since the boot."""

    def __init__(self, machine: OwnNode) -> None:
        self.machine = machine
        self.containerd: Exception | None = None
        self.kubelet: Exception | None = None
        self.asked: list[str] = []
        self.hold: Callable[[], Awaitable[None]] | None = None
        self.addresses: set[IPv4Address | IPv6Address] = {ip_address("10.0.0.1"), ip_address("fd00::1")}
        self.full: Path | None = None
        for unit in (CONTAINERD, KUBELET):
            machine.host.write_unit(unit, SERVICE)
            machine.host.unit(unit).set_state("active", "running")
            self.long_ago(unit)

    async def version(self) -> str:
        """Answer for containerd."""
        self.asked.append("containerd")
        if self.hold is not None:
            await self.hold()
        if self.containerd is not None:
            raise self.containerd
        return "1.6.20"

    async def healthy(self) -> None:
        """Answer for the kubelet."""
        self.asked.append("kubelet")
        if self.kubelet is not None:
            raise self.kubelet

    def list_addresses(self) -> set[IPv4Address | IPv6Address]:
        """Answer for the kernel."""
        if not self.addresses:
            raise OSError("no netlink")
        return self.addresses

    def new(self) -> Controller:
        """Return the controller, as a process that has just started has it."""
        machine = self.machine
        return controller.new_controller(
            controller.Dependencies(
                client=machine.client,
                nodes=machine.nodes,
                identity=machine.identity,
                units=machine.units,
                in_use=machine.in_use,
                budget=RestartBudget(path=machine.paths.restarts, clock=machine.clock, boot_id="boot"),
                events=machine.speaker("health-check"),
                clock=machine.clock,
                containerd_version=self.version,
                kubelet_healthy=self.healthy,
                addresses=self.list_addresses,
                full_disk=lambda: self.full,
            )
        )

    def long_ago(self, unit: str) -> None:
        """Let a unit be in its state since the boot."""
        self.machine.host.unit(unit).changed = 1.0


@pytest.fixture
async def runtime(machine: OwnNode) -> Runtime:
    """A machine with a registered Node, all well."""
    machine.register(addresses=HOME)
    return Runtime(machine)


DEAD = {
    "containerd": ContainerdUnavailable("containerd does not answer", deadlineSeconds=10),
    "kubelet": KubeletUnhealthy("kubelet does not answer", problem="connection refused"),
}


@pytest.mark.parametrize("name", ["containerd", "kubelet"])
async def test_what_fails_for_a_minute_is_restarted(runtime: Runtime, name: str) -> None:
    """Contract 7.5, Appendix C (health): said at the first failure, restarted after a minute, said when it is over."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        await asyncio.sleep(44.5)
        assert machine.notes(name) == []
        setattr(runtime, name, DEAD[name])
        await asyncio.sleep(20)
        assert machine.notes(name) == [f"Warning: {name} is unhealthy: {DEAD[name]}"]
        await asyncio.sleep(54)
        assert machine.restarts() == 0
        await asyncio.sleep(3)
        assert machine.restarts() == 1
        assert machine.notes(name)[1:] == [
            f"Warning: {name} is unhealthy for more than 1m0s, restarting it: {DEAD[name]}"
        ]
        assert machine.notes("SystemDUnitRestart") == [f"Normal: processed restart of unit {name}.service"]
        setattr(runtime, name, None)
        await asyncio.sleep(120)
        assert machine.notes(name)[2:] == [f"Normal: {name} is healthy"]
        assert machine.restarts() == 1


async def test_a_failure_shorter_than_a_minute_restarts_nothing(runtime: Runtime) -> None:
    """Contract 7.5: recovery is a Normal event, and the next failure has a minute of its own."""
    async with runtime.machine.running(runtime.new()):
        for _ in range(5):
            runtime.kubelet = DEAD["kubelet"]
            await asyncio.sleep(60)
            runtime.kubelet = None
            await asyncio.sleep(60)
        assert runtime.machine.restarts() == 0
        assert "Normal: kubelet is healthy" in runtime.machine.notes("kubelet")


async def test_w05_kubelet_that_answers_500_is_an_ordinary_failure(runtime: Runtime) -> None:
    """Contract 9 W5: an answer of 500 is said with its status and ends in a restart after a minute; the controller goes on."""
    runtime.kubelet = KubeletUnhealthy("kubelet says that it is unhealthy", status=500, answer="[-]syncloop failed")
    machine = runtime.machine
    async with machine.running(runtime.new()):
        await asyncio.sleep(61)
        assert machine.restarts() == 1
        assert "status=500" in machine.notes("kubelet")[0]
        asked = len(runtime.asked)
        await asyncio.sleep(60)
        assert len(runtime.asked) == asked + 4


async def test_exceptions_of_one_check_hold_back_no_other(runtime: Runtime) -> None:
    """Contract 9 W5: a bug in one check is an error of that check: the other is made, and the process goes on."""
    machine = runtime.machine
    logging.configure("error", "json")  # tracebacks are drawn slowly otherwise
    runtime.containerd, runtime.kubelet = ZeroDivisionError("bug"), DEAD["kubelet"]
    async with machine.running(runtime.new()):
        await asyncio.sleep(100)
        assert machine.host.received.count("RestartUnit") == 1
        assert machine.notes("SystemDUnitRestart") == ["Normal: processed restart of unit kubelet.service"]
        assert machine.notes("containerd") == []


async def test_a_slow_containerd_holds_up_no_other_check(runtime: Runtime) -> None:
    """Contract 7.5: a containerd that uses all of its ten seconds delays each pass by those, and nothing else."""

    async def ten_seconds() -> None:
        await asyncio.sleep(10)
        raise ContainerdUnavailable("containerd does not answer", deadlineSeconds=10)

    machine = runtime.machine
    runtime.hold = ten_seconds
    async with machine.running(runtime.new()):
        await asyncio.sleep(29)
        assert runtime.asked == ["containerd", "kubelet"]
        await asyncio.sleep(92)
        assert machine.notes("SystemDUnitRestart") == ["Normal: processed restart of unit containerd.service"]
        assert runtime.asked.count("kubelet") >= 3


async def test_w32_checks_begin_although_containerd_is_down(runtime: Runtime) -> None:
    """Contract 9 W32: a containerd that never ran since our start is checked, and started after a minute."""
    runtime.containerd = ContainerdUnavailable("containerd does not listen", problem="No such file or directory")
    runtime.machine.host.unit(CONTAINERD).set_state("inactive", "dead")
    runtime.long_ago(CONTAINERD)
    async with runtime.machine.running(runtime.new()):
        await asyncio.sleep(61)
        assert runtime.machine.host.unit(CONTAINERD).active_state == "active"


@pytest.mark.parametrize("jump", [3600, -3600])
async def test_w42_failures_are_timed_on_the_monotonic_clock(runtime: Runtime, jump: float) -> None:
    """Contract 9 W42: a wall clock that jumps by an hour neither hastens nor delays a restart."""
    machine = runtime.machine
    runtime.kubelet = DEAD["kubelet"]
    async with machine.running(runtime.new()):
        machine.clock._start += timedelta(seconds=jump)
        await asyncio.sleep(58)
        assert machine.restarts() == 0
        await asyncio.sleep(3)
        assert machine.restarts() == 1


# Remediation with judgement.


async def test_restarts_stay_within_the_budget_across_our_own(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: a kubelet that stays broken is restarted three times an hour, however often the agent itself starts."""
    machine = runtime.machine
    runtime.kubelet = DEAD["kubelet"]
    for _ in range(30):
        async with machine.running(runtime.new()):
            await asyncio.sleep(119)
    assert machine.restarts() == 3
    told = [note for note in machine.notes("kubelet") if "within an hour" in note]
    assert told
    assert len(told) <= 30


async def test_a_refusal_is_said_once(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: why a unit is not restarted is one event, not one every 30 s."""
    machine = runtime.machine
    runtime.kubelet = DEAD["kubelet"]
    async with machine.running(runtime.new()):
        with machine.in_use.using(KUBELET, by="operatingsystemconfig"):
            await asyncio.sleep(1800)
        assert machine.notes("kubelet")[1:] == [
            "Warning: kubelet is unhealthy and not restarted: operatingsystemconfig is acting on kubelet.service"
        ]
        assert machine.restarts() == 0
        await asyncio.sleep(31)
        assert machine.restarts() == 1


async def test_a_unit_that_is_starting_is_left_alone(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: what systemd starts again by itself, or has just started, gets its time; stuck, it is restarted after all."""
    machine, unit = runtime.machine, runtime.machine.host.unit(KUBELET)
    runtime.kubelet = DEAD["kubelet"]
    async with machine.running(runtime.new()):
        for _ in range(40):
            unit.set_state("activating", "auto-restart")
            await asyncio.sleep(10)
            unit.set_state("active", "running")
            await asyncio.sleep(20)
        assert machine.restarts() == 0
        assert len(machine.notes("kubelet")) == 2
        unit.set_state("activating", "start")
        await asyncio.sleep(290)
        assert machine.restarts() == 0
        await asyncio.sleep(45)
        assert machine.restarts() == 1


async def test_a_crashed_kubelet_that_stays_down_is_restarted(runtime: Runtime) -> None:
    """Contract 7.5: failed for more than a minute is no start: restarted, as Gardener's agent does."""
    machine = runtime.machine
    runtime.kubelet = DEAD["kubelet"]
    machine.host.unit(KUBELET).set_state("failed", "failed")
    async with machine.running(runtime.new()):
        await asyncio.sleep(95)
        assert machine.restarts() == 1
        assert machine.host.unit(KUBELET).active_state == "active"


async def test_the_kubelet_is_not_blamed_for_containerd(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: while containerd fails only containerd is restarted; when it is back the kubelet gets a minute of its own."""
    machine = runtime.machine
    runtime.containerd, runtime.kubelet = DEAD["containerd"], DEAD["kubelet"]
    async with machine.running(runtime.new()):
        await asyncio.sleep(61)
        assert machine.notes("SystemDUnitRestart") == ["Normal: processed restart of unit containerd.service"]
        assert any("containerd is unhealthy" in note for note in machine.notes("kubelet"))
        runtime.containerd = None
        await asyncio.sleep(60)
        assert machine.restarts() == 1
        await asyncio.sleep(60)
        assert machine.notes("SystemDUnitRestart")[1:] == ["Normal: processed restart of unit kubelet.service"]


async def test_a_full_disk_is_not_mended_by_a_restart(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: with a full disk nothing is restarted and the path is named; when there is room again it is."""
    machine = runtime.machine
    runtime.kubelet, runtime.full = DEAD["kubelet"], Path("/var/lib/kubelet")
    async with machine.running(runtime.new()):
        await asyncio.sleep(600)
        assert machine.restarts() == 0
        (note,) = machine.notes("kubelet")[1:]
        assert "/var/lib/kubelet is on a full disk" in note
        runtime.full = None
        await asyncio.sleep(31)
        assert machine.restarts() == 1


async def test_what_keeps_us_from_asking_is_no_failure_of_containerd(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: what keeps us from asking is said once and restarts nothing."""
    machine = runtime.machine
    runtime.containerd = ContainerdNotAsked("containerd cannot be asked", problem="Too many open files")
    async with machine.running(runtime.new()):
        await asyncio.sleep(3600)
        assert machine.restarts() == 0
        (note,) = machine.notes("containerd")
        assert note.startswith("Warning: containerd cannot be checked: containerd cannot be asked")


async def test_what_keeps_us_from_asking_is_no_failure_of_the_kubelet(runtime: Runtime) -> None:
    """Contract 7.5, 7.9: a process of ours that may open no more files says nothing about the kubelet, which is not restarted."""
    machine = runtime.machine
    limits, lowest_free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(RetriableError, match="Too many open files") as caught:
            await Kubelet().healthy()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    runtime.kubelet = caught.value
    async with machine.running(runtime.new()):
        await asyncio.sleep(3600)
        assert machine.restarts() == 0
        (note,) = machine.notes("kubelet")
        assert note.startswith("Warning: kubelet cannot be checked: kubelet cannot be asked")


async def test_what_nobody_saw_does_not_count(runtime: Runtime) -> None:
    """Contract 7.5, OURS: between two failures it could not be asked for long: the time begins anew, and it is said once."""
    machine = runtime.machine
    runtime.long_ago(CONTAINERD)
    runtime.containerd = DEAD["containerd"]
    async with machine.running(runtime.new()):
        await asyncio.sleep(35)
        runtime.containerd = ContainerdNotAsked("containerd cannot be asked", problem="Too many open files")
        await asyncio.sleep(600)
        runtime.containerd = DEAD["containerd"]
        await asyncio.sleep(40)
        assert machine.restarts() == 0
        assert sum("containerd is unhealthy:" in note for note in machine.notes("containerd")) == 1
        await asyncio.sleep(60)
        assert machine.restarts() == 1


async def test_reasons_that_alternate_are_said_once_each(runtime: Runtime) -> None:
    """Contract 7.5, OURS: a failure that is not remedied for one reason, then another, then the first again: said twice."""
    runtime.long_ago(KUBELET)
    runtime.kubelet = DEAD["kubelet"]
    with structlog.testing.capture_logs() as lines:
        await alternate(runtime)
    refused = [
        line["reason"] for line in lines if line["event"] == "Unhealthy, not restarted" and line["check"] == "kubelet"
    ]
    assert len(refused) == len(set(refused)) == 2


async def alternate(runtime: Runtime) -> None:
    """Have now containerd fail and now the disk be full, while the kubelet does not answer."""
    async with runtime.machine.running(runtime.new()):
        await asyncio.sleep(10)
        for number in range(8):
            runtime.containerd = None if number % 2 else DEAD["containerd"]
            runtime.full = Path("/var/lib/kubelet") if number % 2 else None
            await asyncio.sleep(120)


async def test_a_restart_that_fails_is_an_error_and_not_repeated_at_once(runtime: Runtime) -> None:
    """Contract 7.5: a failed restart is said and remembered as a failure; the next attempt waits for its turn."""
    machine = runtime.machine
    machine.host.write_unit(KUBELET, "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    await machine.units.reload()
    runtime.long_ago(KUBELET)
    runtime.kubelet = DEAD["kubelet"]
    async with machine.running(runtime.new()):
        await asyncio.sleep(100)
        assert machine.notes("SystemDUnitRestart") == [
            "Warning: processed restart of unit kubelet.service failed with error failed: failed/failed, result exit-code"
        ]
        assert machine.restarts() == 1
        await asyncio.sleep(100)
        assert machine.restarts() == 2


async def test_a_bus_that_is_away_delays_the_restart_only(runtime: Runtime) -> None:
    """Contract 7.5, 9 W25: without the system bus nothing is restarted and the checks go on; with it the restart is made."""
    machine = runtime.machine
    runtime.kubelet = DEAD["kubelet"]
    async with machine.running(runtime.new()):
        await machine.host.stop_bus()
        await asyncio.sleep(300)
        assert machine.restarts() == 0
        await machine.host.start()
        await asyncio.sleep(31)
        assert machine.restarts() == 1


async def test_a_restart_that_takes_long_is_not_made_twice(runtime: Runtime) -> None:
    """Contract 7.5: a frozen unit that takes a minute to stop is at work, and is left alone until that has ended."""
    machine = runtime.machine
    runtime.kubelet = DEAD["kubelet"]
    machine.host.write_unit(KUBELET, gate("kubelet"))
    await machine.units.reload()
    machine.host.unit(KUBELET).set_state("active", "running")
    runtime.long_ago(KUBELET)
    async with machine.running(runtime.new()):
        await asyncio.sleep(75)
        assert machine.notes("SystemDUnitRestart") == ["Normal: processed restart of unit kubelet.service"]
        await asyncio.sleep(200)
        assert machine.restarts() == 1


async def test_checks_run_every_30_s_and_on_each_change_of_the_node(runtime: Runtime) -> None:
    """Contract 1.9, 7.5: every 30 s, and at once when the Node changes; without a Node none."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        await asyncio.sleep(90)
        assert runtime.asked.count("kubelet") == 4
        machine.register(annotations={"a": "b"}, addresses=HOME)
        await asyncio.sleep(0.5)
        assert runtime.asked.count("kubelet") == 5
        machine.api.remove(NODES, NAME)
        await asyncio.sleep(120)
        assert runtime.asked.count("kubelet") == 5
        machine.register(addresses=HOME)
        await asyncio.sleep(31)
        assert runtime.asked.count("kubelet") == 7


# Readiness toggles.


def test_the_fifth_toggle_within_ten_minutes_is_reported(clock: FakeClock) -> None:
    """Contract 7.5, Appendix C (health): of five at the same instant the fifth is the first to report; older ones are forgotten."""
    readiness = Readiness(clock=clock)
    assert [readiness.toggle() for _ in range(6)] == [False, False, False, False, True, True]
    clock.advance(600)
    assert readiness.toggle() is True
    clock.advance(600.1)
    assert [readiness.toggle() for _ in range(5)] == [False, False, False, False, True]


async def test_a_kubelet_that_keeps_changing_its_mind_is_an_event(runtime: Runtime) -> None:
    """Contract 7.5: five changes from not ready to ready within ten minutes are a Warning; nothing is rebooted or restarted."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        for _ in range(5):
            machine.register(conditions=[NOT_READY], addresses=HOME)
            await asyncio.sleep(30)
            assert machine.notes("kubelet") == []
            machine.register(conditions=[READY], addresses=HOME)
            await asyncio.sleep(30)
        (note,) = machine.notes("kubelet")
        assert "at least 5 times in 10m0s" in note
        assert "reboot" in note
        assert "Reboot" not in machine.host.received
        assert machine.restarts() == 0


# InternalIP.


def addresses(machine: OwnNode) -> list[tuple[str, str]]:
    """Return the Node's addresses."""
    return [(item["type"], item["address"]) for item in machine.node()["status"]["addresses"]]


async def test_a_lost_internal_ip_is_put_back(runtime: Runtime) -> None:
    """Contract 7.5, Appendix C (health): the remembered address, if the machine still has it, replaces all addresses."""
    machine = runtime.machine
    machine.register(addresses={"Hostname": NAME, "InternalIP": "10.0.0.1"}, conditions=[READY])
    async with machine.running(runtime.new()):
        machine.register(addresses={"Hostname": NAME}, conditions=[READY])
        await asyncio.sleep(1)
        assert addresses(machine) == [("InternalIP", "10.0.0.1")]
        assert machine.node()["status"]["conditions"] == [READY]
        assert machine.notes("kubelet") == [
            "Warning: the Node has neither an internal nor an external IP, trying to put back 10.0.0.1",
            "Normal: the lost internal IP 10.0.0.1 was put back",
        ]


async def test_an_ip_is_put_back_while_containerd_hangs(runtime: Runtime) -> None:
    """Contract 7.5: the address does not wait for checks that use up their ten seconds."""

    async def ten_seconds() -> None:
        await asyncio.sleep(10)

    runtime.hold = ten_seconds
    async with runtime.machine.running(runtime.new()):
        await asyncio.sleep(11)
        runtime.machine.register()
        await asyncio.sleep(1)
        assert addresses(runtime.machine) == [("InternalIP", "10.0.0.1")]


@pytest.mark.parametrize("kind", ["ExternalIP", "InternalIP"])
async def test_a_node_with_any_ip_is_left_alone(runtime: Runtime, kind: str) -> None:
    """Contract 7.5: an external IP alone is enough; a new internal one is remembered in place of the old."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        machine.register(addresses={kind: "fd00::1"})
        await asyncio.sleep(60)
        assert addresses(machine) == [(kind, "fd00::1")]
        machine.register()
        await asyncio.sleep(1)
        assert addresses(machine) == [("InternalIP", "fd00::1" if kind == "InternalIP" else "10.0.0.1")]


async def test_an_address_that_the_machine_no_longer_has_is_not_put_back(runtime: Runtime) -> None:
    """Contract 7.5: no match, or nothing remembered: one Warning, and the kubelet's health is checked all the same."""
    machine = runtime.machine
    machine.register()
    async with machine.running(runtime.new()):
        await asyncio.sleep(120)
        assert machine.notes("kubelet") == ["Warning: the Node has neither an internal nor an external IP"]
        machine.register(addresses={"InternalIP": "192.0.2.7"})
        await asyncio.sleep(1)
        machine.register()
        asked = runtime.asked.count("kubelet")
        await asyncio.sleep(61)
        assert addresses(machine) == []
        assert runtime.asked.count("kubelet") >= asked + 2
        assert machine.restarts() == 0


async def test_a_conflict_with_the_kubelets_update_is_tried_again(runtime: Runtime) -> None:
    """Contract 7.5: a Node that the kubelet writes in the same moment is looked at anew, and nothing of it is overwritten."""
    machine, writes = runtime.machine, list[str]()

    def kubelet_writes(call: Call) -> ApiError | None:
        if call.method == "PATCH" and call.path.endswith("/status"):
            writes.append(call.path)
            if len(writes) == 1:
                machine.register(conditions=[READY])
        return None

    async with machine.running(runtime.new()):
        machine.api._faults.append(kubelet_writes)
        machine.register(conditions=[NOT_READY])
        await asyncio.sleep(1)
        assert len(writes) == 2
        assert addresses(machine) == [("InternalIP", "10.0.0.1")]
        assert machine.node()["status"]["conditions"] == [READY]
        assert machine.restarts() == 0


@pytest.mark.parametrize(
    ("error", "restarts"),
    [
        (BadRequest("no", status=422), 1),
        (Forbidden("no", status=403), 0),
        (ServerError("down", status=500), 0),
        (Unavailable("gone"), 0),
        (Conflict("changed", status=409), 0),
    ],
)
async def test_only_a_refusal_for_good_restarts_the_kubelet(runtime: Runtime, error: ApiError, restarts: int) -> None:
    """Contract 7.5: an address that the API server refuses restarts the kubelet; one that it cannot take now is tried again."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        fault = machine.api.fail(error, method="PATCH", path=f"/api/v1/nodes/{NAME}/status")
        machine.register()
        await asyncio.sleep(50)
        assert machine.restarts() == restarts
        said = [note for note in machine.notes("kubelet") if "restarting" in note]
        assert said == ["Warning: restarting the kubelet: the Node has lost its internal IP 10.0.0.1"] * restarts
        assert addresses(machine) == []
        machine.api._faults.remove(fault)
        await asyncio.sleep(31)
        assert addresses(machine) == [("InternalIP", "10.0.0.1")]


@pytest.mark.parametrize("address", ["not an address", ""])
async def test_an_address_that_is_none_is_an_error_of_this_check(runtime: Runtime, address: str) -> None:
    """Contract 7.5: an InternalIP that cannot be read harms nothing else."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        machine.register(addresses={"InternalIP": address, "ExternalIP": "192.0.2.1"})
        runtime.kubelet = DEAD["kubelet"]
        await asyncio.sleep(100)
        assert machine.notes("SystemDUnitRestart") == ["Normal: processed restart of unit kubelet.service"]


async def test_addresses_that_cannot_be_listed_are_tried_again(runtime: Runtime) -> None:
    """Contract 7.5: a kernel that does not tell the addresses is an error, tried again with the next check."""
    machine = runtime.machine
    async with machine.running(runtime.new()):
        known, runtime.addresses = runtime.addresses, set()
        machine.register()
        await asyncio.sleep(61)
        assert addresses(machine) == []
        runtime.addresses = known
        await asyncio.sleep(31)
        assert addresses(machine) == [("InternalIP", "10.0.0.1")]


def test_errors_of_the_checks_are_retriable() -> None:
    """Contract 7.5: nothing that a check meets ends the process or waits for new input."""
    for kind in (ContainerdUnavailable, ContainerdNotAsked, KubeletUnhealthy, controller.ChecksFailed):
        assert issubclass(kind, RetriableError)
