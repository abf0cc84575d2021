"""`status`, on state files that the real OSC controller wrote."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core import files
from agents.core.errors import RetriableError
from agents.inspection.document import to_json
from agents.inspection.output import Style
from agents.kube import kubeconfig
from agents.kube.kubeconfig import ClusterAccess, Credentials
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from nodeagent.inspection import status, status_text
from nodeagent.inspection.planning import NotPermitted
from nodeagent.inspection.status import Status
from tests.support.fake_systemd import FakeSystemd
from tests.support.looked_at import AGENT_UNIT, LookedAt
from tests.support.osc_agent import SECRET, SLEEP, from_image, inline
from tests.unit.nodeagent.inspection.test_commands import printed

BROKEN = "[Service]\nExecStart=/bin/false\nType=oneshot\n"


def text(found: Status) -> str:
    """Return the text for people."""
    return "\n".join(status_text.lines(found, Style()))


async def applied(node: LookedAt) -> str:
    """Let an OSC be applied; returns its checksum."""
    checksum = node.publish(files=[inline("/etc/a", "one", 0o644)], units=[{"name": "a.service", "content": SLEEP}])
    await node.reconcile()
    return checksum


async def test_a_machine_that_is_well_is_done(node: LookedAt) -> None:
    """Desired and applied are one, nothing is left, fails or drifted, everybody is healthy: exit code 0."""
    async with node.connected():
        checksum = await applied(node)
        found = await node.look()
    assert (found.outcome, found.reasons, status.exit_code(found)) == ("done", (), 0)
    assert found.secret_name == SECRET
    assert found.desired is not None
    assert found.applied is not None
    assert (found.desired.checksum, found.applied.checksum, found.applied.origin) == (checksum, checksum, "ours")
    assert (found.left, found.failing, found.drift.items, found.problems) == ((), (), (), {})
    assert (found.agent.state, found.agent.phase) == ("active", "applied")
    assert (found.heartbeat.age_seconds, found.heartbeat.source) == (3.0, "agent")
    assert found.certificate.expired is False
    assert (found.containerd.healthy, found.containerd.detail, found.kubelet.healthy) == (True, "1.6.20~ds1", True)
    assert text(found).startswith("done\n\nagent        active for ")


async def test_an_item_that_fails_is_named_with_all_that_is_known(node: LookedAt) -> None:
    """Contract 6.10: exit code 1; item, cause, since, attempt and next try; what is left to do is listed too."""
    async with node.connected():
        await applied(node)
        node.publish(units=[{"name": "a.service", "content": BROKEN}])
        for _ in range(2):
            with pytest.raises(ApplyFailed):
                await node.reconcile()
        found = await node.look()
    assert (found.outcome, status.exit_code(found)) == ("failed", 1)
    assert found.reasons[0] == "failing: unit a.service"
    (item,) = found.failing
    assert (item.item, item.attempt) == ("unit a.service", 2)
    assert item.cause
    assert item.next_try is not None
    assert item.since < item.next_try
    assert [(left.kind, left.name) for left in found.left] == [("command", "a.service")]
    assert "left to do\n  run the command of unit a.service" in text(found)
    assert (
        f"attempt 2, next try in {status_text.duration((item.next_try - found.observed_at).total_seconds())}"
        in text(found)
    )


async def test_what_is_under_way_is_in_progress(node: LookedAt) -> None:
    """Exit code 2 while an apply has begun and not ended; the applied one is still the one before."""
    async with node.connected():
        first = await applied(node)
        node.images.blocked = asyncio.Event()
        second = node.publish(files=[from_image("/opt/x", "image", "/x")])
        async with asyncio.TaskGroup() as group:
            work = group.create_task(node.reconcile())
            await asyncio.sleep(5)
            assert node.images.pulls
            await node.status.write()
            found = await node.look()
            work.cancel()
    assert (found.outcome, status.exit_code(found)) == ("inProgress", 2)
    assert "the operating system config is being applied" in found.reasons
    assert found.desired is not None
    assert found.applied is not None
    assert (found.desired.checksum, found.applied.checksum) == (second, first)
    assert first != second
    assert ("file-changed", "/opt/x") in [(left.kind, left.name) for left in found.left]


async def test_a_machine_without_a_node_waits_for_it(tmp_path: Path, host: FakeSystemd) -> None:
    """Contract 6.2: everything is applied, but the kubelet has not registered: in progress, said in words."""
    node = LookedAt(tmp_path, host)
    await node.furnish()
    async with node.connected():
        await applied(node)
        found = await node.look()
    assert found.outcome == "inProgress"
    assert found.reasons == ("everything is applied, the kubelet has not registered the Node yet",)


async def test_drift_is_seen_and_nothing_is_repaired(node: LookedAt) -> None:
    """A file, a mode, a drop-in and an enablement that somebody changed are degraded; content is not shown."""
    async with node.connected():
        await applied(node)
        node.place("etc/a", "top-secret", 0o644)
        await node.units.disable(["a.service"])
        before = node.tree()
        found = await node.look()
        assert node.tree() == before
    assert (found.outcome, status.exit_code(found)) == ("degraded", 2)
    assert [item.reason for item in found.drift.items] == ["FileMismatch", "UnitEnableMismatch"]
    assert found.reasons == ("2 items drifted",)
    assert "top-secret" not in text(found) + to_json(found)


async def test_a_unit_that_fails_after_its_job_is_seen(node: LookedAt) -> None:
    """Contract 7.8: a unit of the applied OSC that systemd calls failed is degraded, though it was started well."""
    async with node.connected():
        await applied(node)
        node.host.units["a.service"].set_state("failed", "failed")
        found = await node.look()
    assert (found.outcome, found.reasons) == ("degraded", ("unit a.service has failed: failed/failed",))
    assert [unit.unit for unit in found.failed_units] == ["a.service"]


async def test_looking_at_programs_out_of_images_writes_no_record(node: LookedAt) -> None:
    """A record of what came out of images that is missing or outdated stays so: it is the agent's."""
    node.images.images["image"] = {"/x": b"program"}
    async with node.connected():
        node.publish(files=[from_image("/opt/x", "image", "/x")])
        await node.reconcile()
        (node.root / "opt/x").write_bytes(b"another")
        found = await node.look()
        assert [item.reason for item in found.drift.items] == ["FileMismatch"]
        node.paths.extracted.unlink()
        before = node.tree()
        await node.look()
        assert node.tree() == before


async def test_what_an_unfinished_apply_changes_is_no_drift(node: LookedAt) -> None:
    """While an OSC is being applied, files that already are as it wants differ from last-applied and are no drift."""
    async with node.connected():
        await applied(node)
        node.publish(files=[inline("/etc/a", "two", 0o644), from_image("/opt/x", "none", "/x")])
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        found = await node.look()
    assert node.read("/etc/a") == "two"
    assert found.drift.items == ()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("heartbeat", "heartbeat is 41 s old"),
        ("no heartbeat", "heartbeat is unknown: there was none yet since the agent was started"),
        ("containerd", "containerd: not there"),
        ("kubelet", "kubelet: unwell"),
        ("certificate", "the client certificate has expired"),
        ("no certificate", "client certificate: there is no kubeconfig yet"),
        ("config", "config-v1.150.0.yaml: not valid YAML"),
    ],
)
async def test_one_thing_that_is_not_well_is_degraded(node: LookedAt, case: str, reason: str) -> None:
    """Exit code 2 and the reason in words, for each thing that is looked at."""
    async with node.connected():
        await applied(node)
        if case == "heartbeat":
            node.lease_age = 41.0
        elif case == "no heartbeat":
            node.lease_age = None
        elif case == "containerd":
            node.containerd.error = RetriableError("not there")
        elif case == "kubelet":
            node.machine.kubelet_problem = RetriableError("unwell")
        elif case == "certificate":
            node.clock.jump(timedelta(days=900).total_seconds())
        elif case == "no certificate":
            node.paths.kubeconfig.unlink()
        elif case == "config":
            node.place("var/lib/gardener-node-agent/config-v1.150.0.yaml", "a: [")
        found = await node.look()
    assert (found.outcome, len(found.reasons)) == ("degraded", 1)
    assert reason in found.reasons[0]


async def test_an_agent_that_is_down_is_looked_past(node: LookedAt) -> None:
    """What it left is shown all the same, with the age of the heartbeat that it wrote down."""
    async with node.connected():
        checksum = await applied(node)
        node.status.note_heartbeat()
        await node.status.write()
        await asyncio.sleep(90)
        await node.units.stop(AGENT_UNIT)
        node.agent_is_away()
        found = await node.look()
    assert found.outcome == "degraded"
    assert found.reasons == ("the agent does not run: its unit is inactive", "heartbeat is 90 s old")
    assert (found.heartbeat.age_seconds, found.heartbeat.source) == (90.0, "file")
    assert found.applied is not None
    assert found.applied.checksum == checksum


async def test_after_a_reboot_the_state_on_disk_is_enough(node: LookedAt) -> None:
    """Without status.json, which a reboot takes, desired and applied are known, and the phase is not."""
    async with node.connected():
        checksum = await applied(node)
        node.paths.status.unlink()
        found = await node.look()
    assert (found.outcome, found.agent.phase, found.agent.said_at) == ("done", "unknown", None)
    assert found.applied is not None
    assert found.applied.checksum == checksum


async def test_what_the_process_before_said_does_not_count(node: LookedAt) -> None:
    """An agent that was started after its status file was written is starting, whatever that says."""
    async with node.connected():
        await applied(node)
        node.host.units[AGENT_UNIT].since = 4_000_000_000
        found = await node.look()
    assert (found.agent.phase, found.outcome) == ("starting", "inProgress")


@pytest.mark.parametrize("name", ["last_applied", "pending_changes", "status", "desired"])
async def test_a_damaged_state_file_is_a_problem_and_stays(node: LookedAt, name: str) -> None:
    """It is named, everything else is shown, and unlike by the agent it is not set aside."""
    async with node.connected():
        await applied(node)
        path: Path = getattr(node.paths, name)
        path.write_bytes(b'{"a": [')
        before = node.tree()
        found = await node.look()
    assert list(found.problems) == [str(path)]
    assert node.tree() == before
    assert found.outcome == ("failed" if name == "last_applied" else "degraded")


async def test_an_older_last_applied_is_said(node: LookedAt) -> None:
    """One that somebody brought back does not tell what is on the machine."""
    async with node.connected():
        await applied(node)
        old = node.paths.last_applied.read_bytes()
        node.publish(files=[inline("/etc/a", "two", 0o644)])
        await node.reconcile()
        node.paths.last_applied.write_bytes(old)
        found = await node.look()
    assert found.applied is not None
    assert found.applied.origin == "older"
    assert "last-applied is an older one that was brought back" in found.reasons


async def test_a_silent_systemd_holds_up_nothing_for_long(node: LookedAt) -> None:
    """Every question has a deadline: what is not answered is unknown, the rest is told."""
    async with node.connected():
        await applied(node)
        node.host.silent = {"GetAll", "GetUnitFileState"}
        start = asyncio.get_running_loop().time()
        found = await node.look()
        assert asyncio.get_running_loop().time() - start <= 16
    assert found.agent.state == "unknown"
    assert found.outcome == "degraded"
    assert found.containerd.healthy


def test_an_empty_machine_is_no_crash(tmp_path: Path) -> None:
    """Nothing is there, nobody answers: exit code 1, every field is there, in both forms."""
    containerd = f"{tmp_path}/containerd.sock"
    code, out, _ = printed("status", "-o", "json", root=tmp_path, CONTAINERD_ADDRESS=containerd)
    assert code == 1
    found = json.loads(out)
    assert (found["outcome"], found["desired"], found["applied"]) == ("failed", None, None)
    assert found["drift"] == {"known": False, "items": [], "problem": "nothing was applied here yet"}
    code, out, _ = printed("status", root=tmp_path, CONTAINERD_ADDRESS=containerd)
    assert code == 1
    assert "desired      none\napplied      none\n" in out


async def test_a_configured_kubeconfig_needs_no_certificate(node: LookedAt) -> None:
    """Contract 4.2: where clientConnection names one, the agent's own is not looked at; a token in it never expires here."""
    config = json.loads((node.paths.base / "config-v1.150.0.yaml").read_text())
    config["clientConnection"] = {"kubeconfig": "/etc/other"}
    node.place("var/lib/gardener-node-agent/config-v1.150.0.yaml", json.dumps(config))
    async with node.connected():
        await applied(node)
        missing = await node.look()
        access = ClusterAccess(server="https://api", credentials=Credentials(token="top-secret"))
        node.place("etc/other", kubeconfig.render(access).decode())
        found = await node.look()
    assert missing.reasons == ("client certificate: there is no kubeconfig yet",)
    assert (found.outcome, found.certificate.expires, found.certificate.problem) == ("done", None, "")
    assert "certificate  none: another kubeconfig is configured" in text(found)
    assert "top-secret" not in to_json(found)


async def test_state_that_may_not_be_read_is_said(node: LookedAt) -> None:
    """Somebody who is not root gets no judgement from half of the state, and no plan at all."""

    def refused(path: Path) -> bytes | None:
        raise files.FileError("file not read", path, PermissionError(13, "Permission denied"))

    async with node.connected():
        await applied(node)
        node.read_file = refused
        found = await node.look()
        assert found.outcome == "failed"
        assert found.problems[str(node.paths.last_applied)] == "file not read: Permission denied"
        with pytest.raises(NotPermitted):
            await node.plan()
