"""Restarts that a user asks for by an annotation of the Node."""

import asyncio
from collections.abc import Callable

import pytest

from agents.kube.errors import ApiError, DeadlineExceeded, Forbidden, InvalidResponse, ServerError
from agents.kube.models import NODES
from agents.kube.transport import Call
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request
from nodeagent.controllers import node
from nodeagent.controllers.node import NodeReconciler, RequestedRestarts, units_of
from tests.support.own_node import NAME, OwnNode
from tests.support.systemd_behaviour import SIMPLE, gate

KEY = "worker.gardener.cloud/restart-systemd-services"
OWN = "gardener-node-agent.service"


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ("kubelet", ["kubelet.service"]),
        ("kubelet.service", ["kubelet.service"]),
        (" kubelet , containerd.service,", ["kubelet.service", "containerd.service"]),
        ("a,a.service,b,a", ["a.service", "b.service"]),
        (
            "a.timer,b.socket,c.target,d.mount,e.path,f.slice",
            ["a.timer", "b.socket", "c.target", "d.mount", "e.path", "f.slice"],
        ),
        ("with.dot", ["with.dot.service"]),
        (" , ,,", []),
    ],
)
def test_units_of_an_annotation(value: str, units: list[str]) -> None:
    """Contract 7.2: split at commas, blanks and empty elements dropped, each once; `.service` only where no unit's suffix is."""
    assert units_of(value) == units


def new(machine: OwnNode, restart_self: Callable[[], None] | None = None) -> Controller:
    """Return the controller, as a process that has just started has it."""
    return node.new_controller(
        client=machine.client,
        nodes=machine.nodes,
        identity=machine.identity,
        units=machine.units,
        in_use=machine.in_use,
        events=machine.speaker("node"),
        state=machine.paths.requested_restarts,
        restart_self=restart_self,
    )


def annotation(machine: OwnNode) -> str | None:
    """Return the annotation's value."""
    value = machine.node()["metadata"]["annotations"].get(KEY)
    return None if value is None else str(value)


def started(machine: OwnNode, unit: str) -> bool:
    """Tell whether a unit runs."""
    return machine.host.unit(unit).active_state == "active"


async def test_listed_units_are_restarted_and_the_annotation_goes(machine: OwnNode) -> None:
    """Contract 7.2, 6.8: each listed unit is restarted, with an event of controller `node`; then the annotation is removed."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.host.write_unit("b.service", SIMPLE)
    machine.register(annotations={"other": "stays"})
    async with machine.running(new(machine)):
        assert machine.restarts() == 0
        machine.register(annotations={"other": "stays", KEY: " a,b.service ,a"})
        await asyncio.sleep(1)
        assert (started(machine, "a.service"), started(machine, "b.service")) == (True, True)
        assert machine.restarts() == 2
        assert machine.node()["metadata"]["annotations"] == {"other": "stays"}
        assert machine.notes("SystemDUnitRestart") == [
            "Normal: processed restart of unit a.service",
            "Normal: processed restart of unit b.service",
        ]


async def test_the_annotation_is_served_when_it_is_there_at_the_start(machine: OwnNode) -> None:
    """Contract 7.2: a Node that appears with the annotation is served; the same value can be asked for again."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.register(annotations={KEY: "a"})
    async with machine.running(new(machine)):
        assert (machine.restarts(), annotation(machine)) == (1, None)
        machine.register(annotations={KEY: "a"})
        await asyncio.sleep(1)
        assert (machine.restarts(), annotation(machine)) == (2, None)


async def test_the_node_may_appear_later(machine: OwnNode) -> None:
    """Contract 1.8, 7.2: the controller that was started without a Node serves it when it registers."""
    machine.host.write_unit("a.service", SIMPLE)
    async with machine.running(new(machine)):
        machine.register(annotations={KEY: "a"})
        await asyncio.sleep(1)
        assert (machine.restarts(), annotation(machine)) == (1, None)


async def test_failures_are_said_and_hold_back_nothing(machine: OwnNode) -> None:
    """Contract 7.2: unknown, masked, failing and impossible units are Warning events; the others are restarted, the annotation goes."""
    machine.host.write_unit("good.service", SIMPLE)
    machine.host.write_unit("bad.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    machine.host.mask("masked.service")
    machine.register(annotations={KEY: "unknown,masked,bad,../../etc/passwd,good"})
    async with machine.running(new(machine)):
        assert started(machine, "good.service")
        assert annotation(machine) is None
        notes = machine.notes("SystemDUnitRestart")
    assert [note.split(" failed")[0] for note in notes] == [
        "Warning: processed restart of unit unknown.service",
        "Warning: processed restart of unit masked.service",
        "Warning: processed restart of unit bad.service",
        "Warning: processed restart of unit ../../etc/passwd.service",
        "Normal: processed restart of unit good.service",
    ]
    assert "no such unit" in notes[0]
    assert "result exit-code" in notes[2]


async def test_w27_a_percent_sign_in_an_error_stays_as_it_is(machine: OwnNode) -> None:
    """Contract 9 W27: event notes are plain text; what looks like a format stays in them."""
    machine.register(annotations={KEY: "100%s%d%n"})
    async with machine.running(new(machine)):
        (note,) = machine.notes("SystemDUnitRestart")
    assert "unit 100%s%d%n.service failed" in note


async def test_each_unit_is_restarted_once_although_the_annotation_cannot_be_removed(machine: OwnNode) -> None:
    """Contract 7.2: while the patch is refused nothing is restarted again; a new value is a new request."""
    for name in ("a.service", "b.service"):
        machine.host.write_unit(name, SIMPLE)
    machine.register(annotations={KEY: "a"})
    machine.api.fail(Forbidden("no", status=403), method="PATCH", path="/api/v1/nodes")
    async with machine.running(new(machine)):
        await asyncio.sleep(600)
        assert (machine.restarts(), annotation(machine)) == (1, "a")
        machine.register(annotations={KEY: "b"})
        await asyncio.sleep(600)
        assert (machine.restarts(), started(machine, "b.service")) == (2, True)
        machine.api.heal()
        await asyncio.sleep(1000)
        assert (machine.restarts(), annotation(machine)) == (2, None)
        machine.register(annotations={KEY: "b"})
        await asyncio.sleep(1)
        assert machine.restarts() == 3


async def test_a_restart_of_the_agent_restarts_nothing_twice(machine: OwnNode) -> None:
    """Contract 7.2: ended between a restart and the patch, the next process goes on with what was not begun."""
    for name in ("a.service", "slow.service", "c.service"):
        machine.host.write_unit(name, SIMPLE if name != "slow.service" else gate("slow"))
    machine.register(annotations={KEY: "a,slow,c"})
    async with machine.running(new(machine)):
        assert machine.restarts() == 2
    async with machine.running(new(machine)):
        await asyncio.sleep(1)
        assert machine.restarts() == 3
        assert (started(machine, "a.service"), started(machine, "c.service")) == (True, True)
        assert annotation(machine) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"request": 5, "begun": "x"}', b'{"request": "x", "begun": [5]}']
)
async def test_a_damaged_memory_is_no_memory(machine: OwnNode, content: bytes) -> None:
    """Contract 7.2: a state file that cannot be read holds back no request."""
    machine.paths.requested_restarts.parent.mkdir(parents=True)
    machine.paths.requested_restarts.write_bytes(content)
    machine.host.write_unit("a.service", SIMPLE)
    machine.register(annotations={KEY: "a"})
    async with machine.running(new(machine)):
        assert (machine.restarts(), annotation(machine)) == (1, None)


async def test_what_is_remembered_ends_with_the_annotation(machine: OwnNode) -> None:
    """Contract 7.2: once the annotation was seen to be gone, whoever removed it, the same value is a new request."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.register(annotations={KEY: "a"})
    machine.api.fail(ServerError("down", status=500), method="PATCH", path="/api/v1/nodes")
    async with machine.running(new(machine)):
        machine.register()
        await asyncio.sleep(1)
        machine.register(annotations={KEY: "a"})
        await asyncio.sleep(1)
        assert machine.restarts() == 2


async def test_our_own_unit_comes_last_after_the_annotation_is_gone(machine: OwnNode) -> None:
    """Contract 1.8, 7.2: first the others, then the annotation goes, then our own unit is restarted through systemd."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.host.write_unit(OWN, SIMPLE)
    fault = machine.api.fail(ServerError("down", status=500), method="PATCH", path="/api/v1/nodes")
    machine.register(annotations={KEY: "gardener-node-agent,a"})
    async with machine.running(new(machine)):
        await asyncio.sleep(30)
        assert (started(machine, "a.service"), machine.restarts()) == (True, 1)
        machine.api._faults.remove(fault)
        await asyncio.sleep(60)
        assert annotation(machine) is None
        assert machine.host.unit(OWN).active_state == "active"
        assert machine.restarts() == 2
    assert machine.shutdown.requested is None


async def test_in_the_foreground_our_own_unit_stays_as_it_is(machine: OwnNode) -> None:
    """Contract 7.2: where this process is not the unit's, a restart of ours is its end; systemd is not told to start a second agent."""
    machine.host.write_unit(OWN, SIMPLE)
    asked: list[str | None] = []
    machine.register(annotations={KEY: "gardener-node-agent"})
    async with machine.running(new(machine, restart_self=lambda: asked.append(annotation(machine)))):
        await asyncio.sleep(1)
        assert asked == [None]
        assert (started(machine, OWN), machine.restarts()) == (False, 0)


async def test_a_request_for_very_many_units_is_bounded(machine: OwnNode) -> None:
    """Contract 7.2: of a request for thousands of units the first hundred are served, and that is said."""
    machine.register(annotations={KEY: ",".join(f"u{number}" for number in range(5000))})
    async with machine.running(new(machine)):
        await asyncio.sleep(60)
        assert annotation(machine) is None
    assert machine.restarts() == 100
    assert machine.notes("TooManyUnits") == [
        f"Warning: annotation {KEY} lists 5000 units; only the first 100 are restarted"
    ]


async def test_others_see_that_a_unit_is_being_restarted(machine: OwnNode) -> None:
    """Contract 7.9: while a restart that was asked for goes on, the unit is in use."""
    machine.host.write_unit("slow.service", gate("slow"))
    machine.register(annotations={KEY: "slow"})
    async with machine.running(new(machine)):
        assert machine.in_use.user("slow.service") == "node"
        await machine.host.open_gate("slow")
        await asyncio.sleep(1)
        assert machine.in_use.user("slow.service") is None
        assert machine.notes("SystemDUnitRestart") == ["Normal: processed restart of unit slow.service"]


async def test_a_node_that_goes_away_is_no_failure(machine: OwnNode) -> None:
    """Contract 7.2: a Node that is deleted in the middle ends the request."""
    machine.host.write_unit("slow.service", gate("slow"))
    machine.register(annotations={KEY: "slow"})
    async with machine.running(new(machine)):
        machine.api.remove(NODES, NAME)
        await machine.host.open_gate("slow")
        await asyncio.sleep(5)
        machine.register(annotations={KEY: "slow"})
        await asyncio.sleep(1)
        assert machine.restarts() == 2


async def test_a_request_that_comes_during_another_is_served_too(machine: OwnNode) -> None:
    """Contract 7.2: what a user asks for while units of an earlier request are restarted is not removed unserved."""
    machine.host.write_unit("slow.service", gate("slow"))
    machine.host.write_unit("b.service", SIMPLE)
    machine.register(annotations={KEY: "slow"})
    async with machine.running(new(machine)):
        machine.register(annotations={KEY: "b"})
        await asyncio.sleep(1)
        await machine.host.open_gate("slow")
        await asyncio.sleep(10)
        assert started(machine, "b.service")
        assert (machine.restarts(), annotation(machine)) == (2, None)


async def test_a_request_that_comes_with_the_removal_of_another_is_served_too(machine: OwnNode) -> None:
    """Contract 7.2: only the value that was served is removed, also where another one arrives a moment before that."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.host.write_unit("b.service", SIMPLE)
    machine.register(annotations={KEY: "a"})
    asked: list[str] = []

    def ask(call: Call) -> None:
        if call.method == "PATCH" and call.path.startswith("/api/v1/nodes") and not asked:
            asked.append("b")
            machine.register(annotations={KEY: "b"})

    machine.api._faults.append(ask)
    async with machine.running(new(machine)):
        await asyncio.sleep(10)
        assert started(machine, "b.service")
        assert (machine.restarts(), annotation(machine)) == (2, None)


@pytest.mark.parametrize(
    "answer",
    [DeadlineExceeded("no answer in time"), ServerError("gateway timeout", status=504), InvalidResponse("not JSON")],
    ids=["none", "504", "torn"],
)
async def test_our_own_restart_is_not_lost_with_the_answer_to_the_patch(machine: OwnNode, answer: ApiError) -> None:
    """Contract 1.8, 7.2: the annotation was removed and no answer told us so: what it asked of ourselves is done, once."""
    machine.host.write_unit(OWN, SIMPLE)
    machine.register(annotations={KEY: "gardener-node-agent"})
    lost: list[Call] = []

    def lose(call: Call) -> ApiError | None:
        if call.method != "PATCH" or not call.path.startswith("/api/v1/nodes") or lost:
            return None
        lost.append(call)
        machine.register()
        return answer

    machine.api._faults.append(lose)
    async with machine.running(new(machine)):
        await asyncio.sleep(60)
        assert machine.restarts() == 1
        machine.register(annotations={"other": "x"})
        await asyncio.sleep(60)
        assert machine.restarts() == 1


def reconciler(machine: OwnNode) -> NodeReconciler:
    """Return what the controller calls."""
    return NodeReconciler(
        client=machine.client,
        nodes=machine.nodes,
        units=machine.units,
        in_use=machine.in_use,
        events=machine.speaker("node"),
        requested=RequestedRestarts(machine.paths.requested_restarts),
        restart_self=None,
    )


async def test_a_removal_that_is_seen_late_restarts_nothing_twice(
    machine: OwnNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 7.2: what the cache still has after the annotation was taken away is no other request."""
    machine.host.write_unit("a.service", SIMPLE)
    machine.register(annotations={KEY: "a"})
    async with machine.running():
        seen, serve = machine.identity.node, reconciler(machine)
        with monkeypatch.context() as late:
            late.setattr(machine.nodes, "get", lambda _request: seen)
            for _ in range(2):
                await serve.reconcile(Request("", NAME))
        assert (machine.restarts(), annotation(machine)) == (1, None)
        machine.register(annotations={KEY: "a"})
        await asyncio.sleep(1)
        await serve.reconcile(Request("", NAME))
        assert (machine.restarts(), annotation(machine)) == (2, None)


async def test_our_own_restart_is_not_lost_with_a_pass_that_takes_too_long(machine: OwnNode) -> None:
    """Contract 1.8, 7.2: the time of the pass is up in the middle of the patch, and it was made."""
    machine.host.write_unit(OWN, SIMPLE)
    machine.register(annotations={KEY: "gardener-node-agent"})

    def lose(call: Call) -> None:
        if call.method == "PATCH" and call.path.startswith("/api/v1/nodes"):
            machine.register()
            raise asyncio.CancelledError

    machine.api._faults.append(lose)
    async with machine.running():
        serve = reconciler(machine)
        with pytest.raises(asyncio.CancelledError):
            await serve.reconcile(Request("", NAME))
        await asyncio.sleep(1)
        await serve.reconcile(Request("", NAME))
        assert machine.restarts() == 1
