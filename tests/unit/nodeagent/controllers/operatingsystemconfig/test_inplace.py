"""Updates in place: gate, operating system, kubelet, credentials, pods, result."""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from select import select
from typing import Any

import pytest

from agents.core.errors import AgentError, RetriableError
from agents.kube.errors import Unavailable
from agents.kube.models import LEASES, NODES, PODS, Node
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from nodeagent.controllers.operatingsystemconfig import serial as serial_module
from nodeagent.controllers.operatingsystemconfig.inplace import (
    RolledBack,
    UpdateFailed,
    UpdateGivenUp,
    WaitingForReboot,
)
from nodeagent.controllers.operatingsystemconfig.kubelet_credentials import KubeletCredentials
from tests.support.in_place import (
    KUBELET,
    RESULT,
    ROTATED,
    ROTATED_AGAIN,
    UPDATING,
    drain,
    give_kubelet_credentials,
    metadata,
    publish,
    run_os,
)
from tests.support.osc_agent import SECRET, SLEEP, OscAgent, containerd, from_image, from_secret, inline
from tests.support.tasks import running, settle
from tests.support.virtual_time import VirtualTimeLoop


@pytest.fixture
async def updated(node: OscAgent) -> OscAgent:
    """A node that runs version 1.0.0 and has applied a first OSC."""
    run_os(node, "1.0.0")
    publish(node)
    async with node.connected():
        await node.reconcile()
    node.start_process()
    return node


async def test_nothing_is_changed_before_the_node_is_drained(updated: OscAgent) -> None:
    """Contract 6.13, 9 W16: the gate; the Node's event opens it. Also containerd's file waits."""
    updated.host.write_unit("containerd.service", SLEEP)
    checksum = publish(updated, evictionHard={"memory.available": "5%"}, runtime=containerd())
    async with updated.controlling():
        await asyncio.sleep(60)
        assert (updated.read(KUBELET), updated.read("/etc/containerd/config.toml")) == ("{}", None)
        assert updated.status_document()["phase"] == "waitingForDrain"
        drain(updated)
        await asyncio.sleep(1)
        assert "5%" in (updated.read(KUBELET) or "")
        assert "pause" in (updated.read("/etc/containerd/config.toml") or "")
        assert updated.applied() == checksum
        assert metadata(updated) == ("successful", None, None)


async def test_a_node_that_waits_for_its_drain_lets_others_go_first(updated: OscAgent) -> None:
    """Contract 6.11, 6.13: in a serial pool the lock is free meanwhile, however often it is asked for; drained, it is taken and given back."""

    def holder() -> str | None:
        lease = updated.api.read(LEASES, SECRET, "kube-system")
        return None if lease is None else lease["spec"].get("holderIdentity")

    publish(updated, serial=True, cpuManagerPolicy="static")
    environment = Environment(clock=updated.clock, rng=Random(1), metrics=Metrics())
    renewing = serial_module.new_controller(updated.lock)
    async with updated.controlling(), running(lambda: renewing.run(environment)):
        await asyncio.sleep(700)
        assert (holder(), updated.status_document()["phase"]) == (None, "waitingForDrain")
        checksum = publish(updated, serial=True, cpuManagerPolicy="static", kubeReserved={"cpu": "1"})
        await asyncio.sleep(700)
        assert (holder(), updated.read(KUBELET)) == (None, "{}")
        drain(updated)
        await asyncio.sleep(1)
        assert (holder(), updated.applied(), metadata(updated)[0]) == (None, checksum, "successful")
    assert [call for call in updated.api.requests("PUT") if "/leases" in call.path]


async def test_a_failed_update_is_repeated_without_drain(updated: OscAgent) -> None:
    """Contract 6.13: the label opens the gate too."""
    updated.node()["metadata"].setdefault("labels", {})[RESULT] = "failed"
    updated.api.put(NODES, updated.node())
    checksum = publish(updated, cpuManagerPolicy="static")
    async with updated.connected():
        await updated.reconcile()
    assert (updated.applied(), metadata(updated)[0]) == (checksum, "successful")


async def test_the_cpu_managers_state_goes_with_its_policy(updated: OscAgent) -> None:
    """Contract 6.6: removed once, before the kubelet starts with the other policy."""
    state = updated.paths.kubelet / "cpu_manager_state"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text("{}")
    drain(updated)
    publish(updated, cpuManagerPolicy="static")
    async with updated.connected():
        await updated.reconcile()
    assert not state.exists()


async def test_the_operating_system_is_updated_and_the_reboot_awaited(updated: OscAgent) -> None:
    """Contract 6.13, Appendix C (in place): annotation, command without a shell around it, terminal wait; after the reboot pods go and all is well."""
    drain(updated)
    checksum = publish(updated, version="2.0", command=f'echo "$0" > {updated.root}/called', args=("2.0",))
    updated.run_pod("static")
    async with updated.connected():
        with pytest.raises(WaitingForReboot):
            await updated.reconcile()
        assert updated.read("/called") == "2.0\n"
        assert metadata(updated) == (None, None, "2.0")
        assert updated.read("/etc/os") == "2.0"
        updated.start_process()
    async with updated.connected():
        with pytest.raises(WaitingForReboot):
            await updated.reconcile()
        assert metadata(updated)[0] is None, "an agent that was started again is no machine that was"
        updated.paths.operating_system_update.unlink()
        run_os(updated, "2.0.7")
        updated.start_process()
    async with updated.connected():
        await updated.reconcile()
    assert (updated.applied(), metadata(updated)) == (checksum, ("successful", None, None))
    assert updated.api.stored(PODS) == []


async def test_a_rolled_back_update_waits_for_a_person(updated: OscAgent) -> None:
    """Contract 6.13, 6.10, Appendix C (in place): the machine came back with the old system: marked failed once, no retry until new input."""
    drain(updated)
    publish(updated, version="2.0", command="true")
    async with updated.connected():
        with pytest.raises(WaitingForReboot):
            await updated.reconcile()
        updated.paths.operating_system_update.unlink()  # a reboot empties /run
        updated.start_process()
    async with updated.connected():
        for _ in range(2):
            with pytest.raises(RolledBack):
                await updated.reconcile()
            result, reason, _version = metadata(updated)
            assert result == "failed"
            assert "1.0.0" in (reason or "")
            assert "2.0" in (reason or "")


@pytest.mark.parametrize(
    ("command", "ending", "said"),
    [
        ("echo invalid arguments; exit 3", "exit code 3: ", "invalid arguments"),
        ("echo no room; kill -9 $$", "exit code 137 (SIGKILL): ", "no room"),
        ("head -c 10485760 /dev/zero | tr '\\0' x; echo; echo no such image; exit 1", "exit code 1: ", "no such image"),
        ("/no/such/program", "exit code 127: ", "not found"),
    ],
    ids=["exit code", "signal", "10 MiB", "missing"],
)
async def test_w36_a_failed_update_is_said_in_at_most_4_kib(
    updated: OscAgent, command: str, ending: str, said: str
) -> None:
    """Contract 9 W36, 6.13: final; annotation, event and status say how it ended and what it printed last, cut."""
    drain(updated)
    publish(updated, version="2.0", command=command)
    async with updated.connected():
        with pytest.raises(UpdateGivenUp):
            await updated.reconcile()
    result, reason, _version = metadata(updated)
    assert result == "failed"
    assert len(reason or "") <= 4096
    for text in (reason or "", *updated.update_failures):
        assert text.startswith(f"operating system update: {ending}")
        assert said in text[-100:]
    assert len(updated.update_failures[0]) <= 900
    status = updated.status_document()
    assert (status["phase"], [item["name"] for item in status["items"]]) == ("failing", ["update in place"])


async def test_an_update_that_failed_for_good_is_tried_again_when_a_person_says_so(updated: OscAgent) -> None:
    """Contract 6.13, step 2: no retry, not by the back-off, not by a restart of the agent, not by another OSC for the same version."""
    drain(updated)
    command = f"echo x >> {updated.root}/tries; echo invalid arguments; exit 3"
    publish(updated, version="2.0", command=command)
    async with updated.controlling():
        while metadata(updated)[0] is None:
            await asyncio.to_thread(os.sched_yield)  # the command's time is real
        await work(3600)
    assert (updated.read("/tries"), len(updated.update_failures)) == ("x\n", 1)
    updated.start_process()
    publish(updated, version="2.0", command=command, more=[inline("/etc/more", "x")])
    async with updated.connected():
        with pytest.raises(UpdateGivenUp, match="invalid arguments"):
            await updated.reconcile()
    assert (updated.read("/tries"), updated.update_failures) == ("x\n", [])
    del updated.node()["metadata"]["annotations"][UPDATING]
    updated.api.put(NODES, updated.node())
    async with updated.connected():
        with pytest.raises(UpdateGivenUp):
            await updated.reconcile()
    assert updated.read("/tries") == "x\nx\n"


async def test_an_update_whose_failure_could_not_be_told_is_told_later(updated: OscAgent) -> None:
    """Contract 6.13, 9 W36: nothing runs again; the Node learns why as soon as it can."""
    drain(updated)
    publish(updated, version="2.0", command=f"echo x >> {updated.root}/tries; echo system failure; exit 3")
    async with updated.connected():
        failing = updated.in_place._fail

        async def unreachable(_node: Node, _reason: str) -> None:
            raise UpdateFailed("node could not be told")

        updated.in_place._fail = unreachable  # type: ignore[method-assign,assignment]
        with pytest.raises(UpdateFailed):
            await updated.reconcile()
        updated.in_place._fail = failing  # type: ignore[method-assign]
        with pytest.raises(UpdateGivenUp):
            await updated.reconcile()
    assert updated.read("/tries") == "x\n"
    result, reason, _version = metadata(updated)
    assert result == "failed"
    assert (reason or "").endswith("system failure")


async def test_an_attempt_that_was_said_without_an_answer_is_no_rollback(updated: OscAgent) -> None:
    """Contract 6.13, steps 1 and 2: the Node has the attempted version, the agent does not know; so it may also be killed there."""
    drain(updated)
    publish(updated, version="2.0", command=f"echo x >> {updated.root}/tries")
    patch, lost = updated.client.patch, list[str]()

    async def without_answer(*args: Any, **more: Any) -> Any:
        done = await patch(*args, **more)
        if UPDATING.encode() in args[2].body and not lost:
            lost.append("answer")
            raise Unavailable("no answer")
        return done

    updated.client.patch = without_answer  # type: ignore[method-assign]
    async with updated.connected():
        with pytest.raises(Unavailable):
            await updated.reconcile()
        with pytest.raises(WaitingForReboot):
            await updated.reconcile()
    assert (lost, updated.read("/tries")) == (["answer"], "x\n")
    assert metadata(updated) == (None, None, "2.0")


async def test_w36_a_reason_of_any_length_fits_into_the_annotation(updated: OscAgent) -> None:
    """Contract 9 W36: also what was not printed by the update, a kubelet's answer for example; no letter is cut in two."""
    async with updated.connected():
        await asyncio.sleep(0.5)
        node = updated.identity.node
        assert node is not None
        await updated.in_place._fail(node, f"kubelet: {'ä' * 5000}")
    _result, reason, _version = metadata(updated)
    assert 4090 < len((reason or "").encode()) <= 4096
    assert set((reason or "").removeprefix("kubelet: ")) == {"ä"}


@pytest.mark.parametrize("content", [None, 'PRETTY_NAME="X 1.2.3.4"'])
async def test_what_stops_a_pass_as_a_whole_is_said(updated: OscAgent, content: str | None) -> None:
    """Neither log alone nor a status that still says applied: event and status name the cause."""
    if content is None:
        updated.paths.os_release.unlink()
    else:
        updated.paths.os_release.write_text(content)
    publish(updated, version="2.0", more=[inline("/etc/x", "1")])
    async with updated.connected():
        with pytest.raises(AgentError):
            await updated.reconcile()
        await updated.recorder.flush(deadline=5)
    status = updated.status_document()
    assert (status["phase"], [item["name"] for item in status["items"]]) == ("failing", ["operating system config"])
    (event,) = updated.events("OSCFailed")
    assert status["items"][0]["cause"] in event["note"]


async def test_w36_both_errors_are_kept_if_the_node_cannot_be_told(updated: OscAgent) -> None:
    """Contract 9 W36: the update's failure is not lost behind the failed patch."""
    drain(updated)
    async with updated.connected():
        node = updated.identity.node
        assert node is not None
        updated.api.fail(Unavailable("node away"), path="/api/v1/nodes", method="PATCH")
        with pytest.raises(UpdateFailed) as raised:
            await updated.in_place._fail(node, "disk broken")
    assert "disk broken" in str(raised.value.fields["problem"])
    assert "node away" in str(raised.value.fields["cause"])


async def test_w19_a_reboot_between_two_network_problems_does_not_extend_them(updated: OscAgent) -> None:
    """Contract 9 W19: what was noted by the clock of the boot before counts from now on, not from the future."""
    drain(updated)
    publish(updated, version="2.0", command="echo Network Problems; exit 1")
    state = updated.paths.operating_system_update
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(json.dumps({"version": "2.0", "succeeded": False, "failing_since": 1e9}))
    async with updated.connected():
        assert (await updated.reconcile()).requeue_after == timedelta(seconds=30)
        updated.clock.advance(301)
        assert (await updated.reconcile()).requeue_after == timedelta(minutes=10)
    assert metadata(updated)[0] == "failed"


async def test_w19_network_problems_are_retried_for_five_minutes(updated: OscAgent) -> None:
    """Contract 9 W19, 6.13: every 30 s for 5 min, then failed, and again after 10 min."""
    drain(updated)
    publish(updated, version="2.0", command=f"echo x >> {updated.root}/tries; echo Network Problems; exit 1")
    async with updated.connected():
        started, tries = updated.clock.monotonic(), 1
        while (await updated.reconcile()).requeue_after == timedelta(seconds=30):
            assert metadata(updated)[0] is None
            updated.clock.advance(30)
            tries += 1
        assert updated.clock.monotonic() - started >= 300
        assert metadata(updated)[0] == "failed"
        assert (updated.read("/tries") or "").count("x") == tries > 2


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    """Make a pipe with a name, that programs can wait for; yields its descriptor, which waits for nobody."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


async def work(seconds: int) -> None:
    """Let time go by while a program runs, for which the loop's clock stands still."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for _ in range(0, seconds, 10):
        loop.advance(10)
        await settle()


async def test_w19_apply_and_operating_system_have_times_of_their_own(updated: OscAgent) -> None:
    """Contract 9 W19, 6.13: an apply of 298 s, then a command of 597 s: no time cuts it off, also where the API server is slow."""
    drain(updated)
    command = f"echo x >> {updated.root}/tries; echo > {updated.root}/begun; read line < {updated.root}/end"
    updated.images.images["os"] = {"/f": b"program"}
    updated.images.blocked = asyncio.Event()
    publish(updated, version="2.0", command=command, more=[from_image("/opt/f", "os", "/f")])
    with fifo(updated.root / "begun") as begun, fifo(updated.root / "end") as end:
        async with updated.controlling():
            await asyncio.sleep(298)
            assert updated.read("/tries") is None
            updated.api.latency = 9.0
            updated.images.blocked.set()
            await asyncio.sleep(8.9)
            await work(10)
            assert (await asyncio.to_thread(select, [begun], [], [], 10.0))[0], "the command does not run"
            await work(590)
            updated.api.latency = 0.0
            os.write(end, b"\n")
            await asyncio.sleep(30)
    assert updated.read("/opt/f") == "program"
    assert updated.read("/tries") == "x\n"
    assert json.loads(updated.paths.operating_system_update.read_text())["succeeded"] is True
    assert metadata(updated) == (None, None, "2.0"), "the machine's restart is awaited"


def waits_for_kubelet(agent: OscAgent) -> bool:
    """Tell whether others must leave the kubelet alone."""
    return agent.in_place.waits_for_kubelet


async def test_w19_an_unhealthy_kubelet_has_five_minutes(updated: OscAgent) -> None:
    """Contract 9 W19, 6.13: looked at every 5 s; then the Node says failed. No pass blocks meanwhile."""
    drain(updated)
    publish(updated, cpuManagerPolicy="static")
    updated.machine.kubelet_problem = RetriableError("kubelet says no", status=500)
    async with updated.connected():
        assert (await updated.reconcile()).requeue_after == timedelta(seconds=5)
        assert waits_for_kubelet(updated) is True
        updated.clock.advance(280)
        assert (await updated.reconcile()).requeue_after == timedelta(seconds=5)
        updated.clock.advance(20)
        with pytest.raises(UpdateFailed):
            await updated.reconcile()
        assert metadata(updated)[0] == "failed"
        assert waits_for_kubelet(updated) is False
        updated.machine.kubelet_problem = None
        await updated.reconcile()
        assert metadata(updated) == ("successful", None, None)


async def test_an_update_that_was_taken_back_succeeds_when_the_kubelet_works_again(updated: OscAgent) -> None:
    """Contract 6.13, 9 W10: the settings before come back: no drain, but the kubelet's health and its CPU manager's state count."""
    drain(updated)
    publish(updated, cpuManagerPolicy="static", more=[from_secret("/etc/missing", "never-there")])
    async with updated.connected():
        with pytest.raises(RetriableError):
            await updated.reconcile()
    assert "static" in (updated.read(KUBELET) or "")
    state = updated.paths.kubelet / "cpu_manager_state"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text('{"policyName": "static"}')
    updated.start_process()
    checksum = publish(updated)
    updated.machine.kubelet_problem = RetriableError("kubelet is not up yet")
    async with updated.connected():
        assert (await updated.reconcile()).requeue_after == timedelta(seconds=5)
        assert (updated.read(KUBELET), state.exists(), metadata(updated)[0]) == ("{}", False, None)
        updated.machine.kubelet_problem = None
        await updated.reconcile()
    assert (updated.applied(), metadata(updated)[0]) == (checksum, "successful")


async def test_an_update_that_was_taken_back_before_the_drain_is_none(updated: OscAgent) -> None:
    """Contract 6.13, 9 W10: it only waited, so nothing on the machine has to be changed back and nothing waits any longer."""
    publish(updated, cpuManagerPolicy="static")
    async with updated.connected():
        await updated.reconcile()
        assert updated.status_document()["phase"] == "waitingForDrain"
        checksum = publish(updated)
        await updated.reconcile()
    assert (updated.applied(), metadata(updated)[0]) == (checksum, None)


@pytest.mark.parametrize("result", [None, "failed"])
async def test_no_update_succeeds_without_a_kubelet_that_works(updated: OscAgent, result: str | None) -> None:
    """Contract 6.13, ours: also one that was not about the kubelet; pods stay meanwhile, and after five minutes it has failed."""
    drain(updated)
    if result is not None:
        updated.node()["metadata"].setdefault("labels", {})[RESULT] = result
        updated.api.put(NODES, updated.node())
    publish(updated, more=[inline("/etc/motd", "x")])
    updated.run_pod("static")
    updated.machine.kubelet_problem = RetriableError("kubelet says no")
    async with updated.connected():
        assert (await updated.reconcile()).requeue_after == timedelta(seconds=5)
        assert len(updated.api.stored(PODS)) == 1
        updated.clock.advance(300)
        with pytest.raises(UpdateFailed):
            await updated.reconcile()
    assert metadata(updated)[0] == "failed"


async def test_an_osc_without_a_command_says_so(updated: OscAgent) -> None:
    """Contract 6.13: command and version are required."""
    drain(updated)
    publish(updated, version="2.0")
    async with updated.connected():
        with pytest.raises(UpdateGivenUp, match="no command"):
            await updated.reconcile()
    assert metadata(updated)[0] == "failed"


async def test_service_account_keys_are_rotated_by_reading_all_tokens_again(updated: OscAgent) -> None:
    """Contract 6.13, step 4."""
    drain(updated)
    checksum = publish(updated, rotation={"serviceAccountKey": ROTATED})
    async with updated.connected():
        await updated.reconcile()
    assert (updated.machine.resyncs, updated.applied()) == (1, checksum)


async def test_certificate_authorities_are_rotated(updated: OscAgent) -> None:
    """Contract 6.13, steps 5 and 6: our certificate, then the kubelet bootstraps anew with its old one; we run on."""
    drain(updated)
    give_kubelet_credentials(updated, "old")
    seen: list[dict[str, Any]] = []

    def bootstrap() -> None:
        assert not updated.paths.kubelet_kubeconfig.exists()
        assert not updated.paths.kubelet_client_certificate.exists()
        seen.append(json.loads(updated.paths.kubelet_bootstrap_kubeconfig.read_text()))
        give_kubelet_credentials(updated, "new")

    updated.machine.on_restart = bootstrap
    publish(updated, rotation={"certificateAuthorities": ROTATED})
    async with updated.connected():
        await updated.reconcile()
        assert updated.restart_reason() is None
    assert (updated.machine.renewals, updated.machine.kubelet_restarts) == (1, 1)
    assert seen[0]["users"][0]["user"] == {"client-certificate-data": "b2xk", "client-key-data": "b2xk"}
    assert seen[0]["clusters"][0]["cluster"] == {"server": "https://api", "certificate-authority": "/ca.crt"}
    assert seen[0]["contexts"] == [{"name": "default-context"}]
    assert metadata(updated)[0] == "successful"
    assert [path.name for path in updated.paths.kubelet.iterdir() if path.name.startswith(".")] == []


async def test_w30_a_failed_rotation_gives_the_kubelet_back_what_it_had(updated: OscAgent) -> None:
    """Contract 9 W30: moved aside and not deleted; restored when the kubelet does not become healthy."""
    drain(updated)
    give_kubelet_credentials(updated, "old")
    publish(updated, rotation={"certificateAuthorities": ROTATED})
    async with updated.connected():
        await updated.reconcile()
        assert not updated.paths.kubelet_client_certificate.exists()
        updated.clock.advance(300)
        with pytest.raises(UpdateFailed):
            await updated.reconcile()
    assert updated.paths.kubelet_client_certificate.read_text() == "old"
    assert "default-context" in updated.paths.kubelet_kubeconfig.read_text()
    assert updated.machine.kubelet_restarts == 2
    assert metadata(updated)[0] == "failed"


async def test_what_a_kill_left_of_an_earlier_rotation_is_not_taken_for_this_one(updated: OscAgent) -> None:
    """A kill between the end of a rotation and the removal of what it set aside: the next rotation bootstraps the kubelet all the same."""
    drain(updated)
    give_kubelet_credentials(updated, "first")
    updated.machine.on_restart = lambda: give_kubelet_credentials(updated, "second")
    publish(updated, rotation={"certificateAuthorities": ROTATED})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KubeletCredentials, "discard", lambda _self: None)
        async with updated.connected():
            await updated.reconcile()
    assert (updated.paths.kubelet / ".before-rotation/complete").exists()
    updated.start_process()
    seen: list[str] = []

    def bootstrap() -> None:
        seen.append(updated.paths.kubelet_bootstrap_kubeconfig.read_text())
        give_kubelet_credentials(updated, "third")

    updated.machine.on_restart = bootstrap
    restarts = updated.machine.kubelet_restarts
    drain(updated)
    checksum = publish(updated, rotation={"certificateAuthorities": ROTATED_AGAIN})
    async with updated.connected():
        await updated.reconcile()
    assert updated.machine.kubelet_restarts == restarts + 1
    assert base64.b64encode(b"second").decode() in seen[0]
    assert updated.paths.kubelet_client_certificate.read_text() == "third"
    assert updated.applied() == checksum
    assert [path.name for path in updated.paths.kubelet.iterdir() if path.name.startswith(".")] == []


async def test_a_rotation_that_follows_an_unfinished_one_can_still_be_taken_back(updated: OscAgent) -> None:
    """The credentials that the first one set aside are what the kubelet gets back when the second one fails."""
    drain(updated)
    give_kubelet_credentials(updated, "old")
    async with updated.connected():
        publish(updated, rotation={"certificateAuthorities": ROTATED})
        await updated.reconcile()
        publish(updated, rotation={"certificateAuthorities": ROTATED_AGAIN})
        await updated.reconcile()
        assert not updated.paths.kubelet_client_certificate.exists()
        updated.clock.advance(300)
        with pytest.raises(UpdateFailed):
            await updated.reconcile()
    assert updated.paths.kubelet_client_certificate.read_text() == "old"
    assert "default-context" in updated.paths.kubelet_kubeconfig.read_text()


async def test_w30_no_rotation_with_empty_credentials(updated: OscAgent) -> None:
    """Contract 9 W30: without a client certificate nothing is moved, and the kubelet is not restarted."""
    drain(updated)
    give_kubelet_credentials(updated, "")
    publish(updated, rotation={"certificateAuthorities": ROTATED})
    async with updated.connected():
        with pytest.raises(RetriableError, match="client certificate"):
            await updated.reconcile()
    assert updated.paths.kubelet_kubeconfig.exists()
    assert updated.machine.kubelet_restarts == 0


async def test_w35_without_a_node_an_update_waits(agent: OscAgent) -> None:
    """Contract 9 W35: no Node object is no crash."""
    run_os(agent, "1.0.0")
    publish(agent)
    async with agent.connected():
        await agent.reconcile()
        publish(agent, cpuManagerPolicy="static")
        assert (await agent.reconcile()).requeue_after == timedelta(seconds=5)
    assert agent.read(KUBELET) == "{}"


def waits(node: OscAgent) -> bool:
    """Return whether the kubelet is being given its time."""
    return node.in_place.waits_for_kubelet


async def test_an_update_that_is_called_off_waits_for_no_kubelet(updated: OscAgent) -> None:
    """Contract 6.13, 7.9: while it waits for the kubelet the condition goes: the kubelet is in nobody's hands, and the next update has its time."""
    drain(updated)
    publish(updated, more=[inline("/etc/x", "1")])
    updated.machine.kubelet_problem = RetriableError("not healthy")
    async with updated.connected():
        await updated.reconcile()
        assert waits(updated)
        updated.api.put(NODES, {**updated.node(), "status": {"conditions": []}})
        await asyncio.sleep(1)
        await updated.reconcile()
        assert not waits(updated)
        await asyncio.sleep(3600)
        drain(updated)
        publish(updated, evictionHard={"memory.available": "5%"})
        await asyncio.sleep(1)
        await updated.reconcile()
        assert waits(updated)
        assert metadata(updated)[0] != "failed"
