"""One pass over the OSC Secret: what ends up on the machine, on the Node, in the journal and in the status file."""

import asyncio
import json
from datetime import timedelta

import pytest
import yaml
from structlog.testing import capture_logs

from agents.core import files
from agents.core.errors import TerminalError
from agents.kube.errors import Forbidden, Invalid, ServerError, TooManyRequests, Unavailable
from agents.kube.models import NODES
from agents.runtime.reconcile import Result
from nodeagent.controllers.operatingsystemconfig.controller import NodeUnknown
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from osc.errors import InvalidOSC
from tests.support.osc_agent import HOSTNAME, SECRET, SLEEP, OscAgent, from_secret, inline

OWN = "gardener-node-agent.service"


async def test_an_osc_is_applied_and_reported(node: OscAgent) -> None:
    """Contract 6.2, 6.9, Appendix C (apply): file, unit and command first, then last-applied, then one patch with checksum and version label."""
    checksum = node.publish(files=[inline("/etc/a", "one", 0o640)], units=[{"name": "a.service", "content": SLEEP}])
    async with node.connected():
        result = await node.reconcile()
        assert node.read("/etc/a") == "one"
        assert (node.root / "etc/a").stat().st_mode & 0o777 == 0o640
        assert node.read("/etc/systemd/system/a.service") == SLEEP
        assert node.host.units["a.service"].active_state == "active"
        assert node.host.is_enabled("a.service")
        assert node.applied() == checksum
        labels = node.node()["metadata"]["labels"]
        assert labels["worker.gardener.cloud/kubernetes-version"] == "1.34.4"
        assert labels["node-role.kubernetes.io/worker"] == ""
        assert json.loads(node.paths.last_applied.read_text())["spec"]["files"][0]["path"] == "/etc/a"
        assert result == Result(requeue_after=timedelta(minutes=10))
        await asyncio.sleep(5)
        assert [event["type"] for event in node.events("OSCApplied")] == ["Normal"]


async def test_memory_is_asked_back_once_for_the_start_and_once_for_each_apply(node: OscAgent) -> None:
    """What an OSC took while it was applied, and what the start took, is given back; passes with nothing to do ask for nothing."""
    node.publish(files=[inline("/etc/a", "one")])
    async with node.connected():
        await node.reconcile()
        assert node.memory_releases == 1
        for _ in range(3):
            await node.reconcile()
        assert node.memory_releases == 2
        node.publish(files=[inline("/etc/a", "two")])
        await node.reconcile()
        await node.reconcile()
        assert node.memory_releases == 3


async def test_a_secret_that_is_gone_is_no_work(node: OscAgent) -> None:
    """Contract 6.2: without the Secret the pass is done and nothing is touched."""
    async with node.connected():
        assert await node.reconcile() == Result()
    assert not node.paths.pending_changes.exists()
    assert not node.api.requests("PATCH")


async def test_without_a_node_all_is_applied_and_the_node_awaited(agent: OscAgent) -> None:
    """Contract 6.2, 6.10: no Node yet: everything is applied, last-applied is written, and 5 s later it is looked again."""
    checksum = agent.publish(files=[inline("/etc/a", "one")])
    async with agent.connected():
        assert await agent.reconcile() == Result(requeue_after=timedelta(seconds=5))
        assert agent.read("/etc/a") == "one"
        assert agent.paths.last_applied.exists()
        assert agent.status_document()["phase"] == "waitingForNode"
        agent.register_node()
        assert (await agent.reconcile()).requeue_after == timedelta(minutes=10)
        assert agent.applied() == checksum


async def test_the_node_is_taken_up_without_a_restart(agent: OscAgent) -> None:
    """Contract 1.8: the first appearance of the Node ends no process; the checksum is reported at once by its event."""
    checksum = agent.publish(files=[inline("/etc/a", "one")])
    async with agent.controlling():
        await asyncio.sleep(7)
        agent.register_node()
        await asyncio.sleep(1)
        assert agent.applied() == checksum
    assert agent.restart_reason() is None


async def test_a_node_that_vanished_fails_the_pass(node: OscAgent) -> None:
    """Contract 6.2: with a known name a Node that is not there fails the reconcile; nothing is applied meanwhile."""
    node.publish(files=[inline("/etc/a", "one")])
    async with node.connected():
        node.api.remove(NODES, HOSTNAME)
        with pytest.raises(NodeUnknown):
            await node.reconcile()
    assert node.read("/etc/a") is None


async def test_applied_is_not_applied_again(node: OscAgent) -> None:
    """Contract 6.2: a Node that says so ends the pass: no file, no job, no annotation, no event."""
    checksum = node.publish(files=[inline("/etc/a", "one")], units=[{"name": "a.service", "content": SLEEP}])
    node.register_node(**{"checksum/cloud-config-data": checksum})
    async with node.connected():
        await node.reconcile()
        await asyncio.sleep(5)
    assert node.read("/etc/a") is None
    assert node.calls("RestartUnit") == 0
    assert not [call for call in node.api.requests("PATCH") if b"annotations" in (call.body or b"")]
    assert not node.events("OSCApplied")


async def test_an_unfinished_apply_is_not_taken_as_applied(node: OscAgent) -> None:
    """Contract 6.4: v1 applied, v2 begun and failed, v1 again: the Node says v1, and still what v2 did is put right."""
    first = [inline("/etc/a", "one")]
    v1 = node.publish(files=first)
    async with node.connected():
        await node.reconcile()
        node.publish(files=[inline("/etc/a", "two"), inline("/etc/b", "b"), from_secret("/etc/c", "missing")])
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        assert (node.read("/etc/a"), node.read("/etc/b")) == ("two", "b")
        assert node.publish(files=first) == v1 == node.applied()
        await node.reconcile()
        assert (node.read("/etc/a"), node.read("/etc/b")) == ("one", None)


async def test_w11_missing_checksum_annotation_is_computed(node: OscAgent) -> None:
    """Contract 9 W11: without the annotation the SHA-256 of the data is the checksum, and the OSC is applied."""
    checksum = node.publish(files=[inline("/etc/a", "one")], annotations={})
    async with node.connected():
        await node.reconcile()
    assert (node.applied(), node.read("/etc/a")) == (checksum, "one")


async def test_w11_a_differing_checksum_annotation_is_reported_as_it_is(node: OscAgent) -> None:
    """Contract 9 W11: an annotation that differs from the data is reported all the same: gardenlet waits for it; the log says so."""
    node.publish(files=[inline("/etc/a", "one")], annotations={"checksum/data-script": "opaque"})
    async with node.connected():
        with capture_logs() as lines:
            await node.reconcile()
    assert [line["log_level"] for line in lines if line["event"].startswith("Checksum annotation differs")] == ["error"]
    assert (node.applied(), node.read("/etc/a")) == ("opaque", "one")


async def test_w39_only_missing_labels_are_patched(node: OscAgent) -> None:
    """Contract 6.2, 6.9, 9 W39: role and trimmed zone; no patch where both are there; a foreign role stays."""
    node.paths.zone.parent.mkdir(parents=True)
    node.paths.zone.write_text(" zone-1 \n")
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-apiserver"}}
    node.publish(files=[inline("/etc/kubernetes/manifests/kube-apiserver.yaml", json.dumps(manifest))])
    node.run_pod("kube-apiserver")
    async with node.connected():
        await node.reconcile()
        labels = node.node()["metadata"]["labels"]
        assert labels["topology.kubernetes.io/zone"] == "zone-1"
        assert labels["node-role.kubernetes.io/control-plane"] == ""
        assert "node-role.kubernetes.io/worker" not in labels
        before = len([call for call in node.api.requests("PATCH") if "/nodes/" in call.path])
        node.publish(files=[inline("/etc/other", "x")])
        await node.reconcile()
        patches = [json.loads(call.body or b"") for call in node.api.requests("PATCH") if "/nodes/" in call.path]
        assert patches[before]["metadata"]["labels"] == {"node-role.kubernetes.io/worker": ""}
        assert "node-role.kubernetes.io/control-plane" in node.node()["metadata"]["labels"]
        before = len(patches)
        node.publish(files=[inline("/etc/other", "y")])
        await node.reconcile()
        patches = [json.loads(call.body or b"") for call in node.api.requests("PATCH") if "/nodes/" in call.path]
        assert [sorted(patch["metadata"]) for patch in patches[before:]] == [["annotations", "labels"]]


async def test_a_lost_role_label_comes_back_although_the_osc_is_applied(node: OscAgent) -> None:
    """Contract 6.2: labels are step 4 and the comparison of checksums step 5, so an applied OSC mends a lost label."""
    checksum = node.publish(files=[])
    node.register_node(**{"checksum/cloud-config-data": checksum})
    async with node.connected():
        await node.reconcile()
    assert "node-role.kubernetes.io/worker" in node.node()["metadata"]["labels"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "not valid YAML"),
        (b"kind: Other", "kind"),
        (b'{"spec": {"files": [{"path": "/a/../b", "content": {"inline": {"data": "x"}}}]}}', "spec.files[0].path"),
        (b'{"spec": {"units": [{"name": "a/b.service"}]}}', "spec.units[0].name"),
        (b'{"spec": {"inPlaceUpdates": {}}}', "spec.inPlaceUpdates"),
        (b'{"spec": {"criConfig": {"name": "containerd", "containerd": {}}}}', "spec.criConfig.containerd"),
    ],
)
async def test_an_invalid_osc_changes_nothing(node: OscAgent, data: bytes, problem: str) -> None:
    """Contract 5.4, 9 W7: refused before any change, with one Warning event and a status item that name the place."""
    checksum = node.publish(files=[inline("/etc/a", "one")])
    async with node.connected():
        await node.reconcile()
        before = {
            path: path.read_bytes() for path in node.root.rglob("*") if path.is_file() and path.name != "status.json"
        }
        node.publish_bytes(data)
        with pytest.raises(InvalidOSC, match="invalid"):
            await node.reconcile()
        after = {
            path: path.read_bytes() for path in node.root.rglob("*") if path.is_file() and path.name != "status.json"
        }
        assert after == before
        assert node.applied() == checksum
        await asyncio.sleep(5)
        (event,) = node.events("OSCInvalid")
        assert event["type"] == "Warning"
        assert problem in event["note"]
        (item,) = node.status_document()["items"]
        assert problem in item["cause"]


async def test_after_an_invalid_osc_the_next_is_tried(node: OscAgent) -> None:
    """Contract 5.4: an invalid version is not tried again, the next one is."""
    node.publish_bytes(b"{")
    async with node.controlling():
        await asyncio.sleep(60)
        assert len(node.events("OSCInvalid")) == 1
        checksum = node.publish(files=[inline("/etc/a", "one")])
        await asyncio.sleep(1)
        assert node.applied() == checksum


async def test_a_refused_osc_that_is_taken_back_is_no_failing_item(node: OscAgent) -> None:
    """v1 applied, v2 refused, v1 again: the status file names nothing that fails."""
    node.publish(files=[])
    async with node.connected():
        await node.reconcile()
        node.publish_bytes(b"{")
        with pytest.raises(TerminalError):
            await node.reconcile()
        node.publish(files=[])
        await node.reconcile()
        assert (node.status_document()["phase"], node.status_document()["items"]) == ("applied", [])


async def test_a_refused_osc_that_comes_again_is_told_again(node: OscAgent) -> None:
    """Contract 5.4: v1 applied, v2 refused, v1 again, v2 again: the status says so as the first time, and the event counts two."""
    node.publish(files=[])
    async with node.connected():
        await node.reconcile()
        for _ in range(2):
            node.publish_bytes(b"{")
            with pytest.raises(TerminalError):
                await node.reconcile()
            assert node.status_document()["phase"] == "failing"
            assert [item["name"] for item in node.status_document()["items"]] == ["operating system config"]
            assert await node.reconcile() == Result(requeue_after=timedelta(minutes=10))  # to look after the OSC before
            node.publish(files=[])
            await node.reconcile()
        await asyncio.sleep(15)
        (event,) = node.events("OSCInvalid")
        assert event["series"]["count"] == 2


async def test_failing_items_are_named_and_the_rest_is_applied(node: OscAgent) -> None:
    """Contract 6.2, 6.10: a missing Secret, a masked and a failing unit fail alone; event and status name each with its cause; no annotation."""
    node.host.mask("masked.service")
    broken = "[Service]\nType=oneshot\nExecStart=/bin/false\n"
    checksum = node.publish(
        files=[inline("/etc/a", "one"), from_secret("/etc/secret", "missing")],
        units=[
            {"name": "good.service", "content": SLEEP},
            {"name": "masked.service", "enable": True},
            {"name": "broken.service", "content": broken},
        ],
    )
    async with node.connected():
        with pytest.raises(ApplyFailed) as raised:
            await node.reconcile()
        assert raised.value.fields["items"] == ["file /etc/secret", "unit broken.service", "unit masked.service"]
        assert node.read("/etc/a") == "one"
        assert node.host.units["good.service"].active_state == "active"
        assert node.applied() is None
        assert not node.paths.last_applied.exists()
        await asyncio.sleep(5)
        note = node.events("OSCFailed")[0]["note"]
        causes = {
            "file /etc/secret": "object not found (method=GET, path=/api/v1/namespaces/kube-system/secrets/missing",
            "unit masked.service": "unit is masked (call=RestartUnit",
            "unit broken.service": "unit command failed (unit=broken.service, command=restart, result=failed: failed/failed, result exit-code)",
        }
        assert note.startswith("3 items could not be applied: ")
        assert [text for name, cause in causes.items() if (text := f"{name}: {cause}") not in note] == []
        items = {item["name"]: item for item in node.status_document()["items"]}
        assert [name for name, cause in causes.items() if not items[name]["cause"].startswith(cause)] == []
        assert sorted(items) == raised.value.fields["items"]
        assert node.status_document()["phase"] == "failing"
        node.put_secret("missing", "key", "here")
        node.host.write_unit("broken.service", SLEEP)
        (node.root / "etc/systemd/system/masked.service").unlink()
        node.host.write_unit("masked.service", SLEEP)
        second = node.publish(files=[inline("/etc/a", "one"), from_secret("/etc/secret", "missing")])
        await node.reconcile()
        assert (node.applied(), node.read("/etc/secret")) == (second, "here")
        assert node.status_document()["items"] == []
    assert checksum != second


async def test_failures_back_off_from_5_ms_to_1000_s(node: OscAgent) -> None:
    """Contract 6.10: an OSC that fails again and again is tried after 5 ms, doubled up to 1000 s: no hot loop."""
    node.publish(files=[from_secret("/etc/a", "missing")])

    def attempts() -> int:
        return len([call for call in node.api.requests("GET") if call.path.endswith("/secrets/missing")])

    async with node.controlling():
        await asyncio.sleep(0.1)
        assert 4 <= attempts() <= 6
        await asyncio.sleep(60)
        assert 13 <= attempts() <= 15
        await asyncio.sleep(3600)
        before = attempts()
        await asyncio.sleep(10_000)
        assert attempts() - before == 10


async def test_attempts_and_since_are_kept_in_the_status(node: OscAgent) -> None:
    """The status file says since when an item fails and how often it was tried."""
    node.publish(files=[from_secret("/etc/a", "missing")])
    async with node.connected():
        for _ in range(3):
            with pytest.raises(ApplyFailed):
                await node.reconcile()
    (item,) = node.status_document()["items"]
    assert (item["name"], item["attempt"]) == ("file /etc/a", 3)
    assert item["since"] < item["nextTry"]


async def test_an_item_that_failed_for_the_api_server_is_tried_when_it_is_back(node: OscAgent) -> None:
    """A secretRef that could not be read in an outage is read within 5 s after the informers recovered."""
    node.put_secret("source", "key", "here")
    checksum = node.publish(files=[from_secret("/etc/a", "source")])
    node.api.fail(Unavailable("connection failed"), path="/api/v1/namespaces/kube-system/secrets/source")
    async with node.controlling():
        await asyncio.sleep(600)
        node.api.go_away()
        await asyncio.sleep(60)
        node.api.heal()
        await asyncio.sleep(70)
        assert node.applied() == checksum


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("no", status=403),
        TooManyRequests("slow", status=429, after=timedelta(seconds=7)),
        ServerError("down", status=500),
        Unavailable("connection reset"),
    ],
    ids=["403", "429", "500", "reset"],
)
async def test_a_node_patch_that_fails_is_made_up_for(node: OscAgent, error: Exception) -> None:
    """Contract 4.8, 6.10: all is applied once, the patch alone is repeated with back-off until it succeeds."""
    node.publish(files=[inline("/etc/a", "one")], units=[{"name": "a.service", "content": SLEEP}])
    node.api.fail(error, method="PATCH", path="/api/v1/nodes/")  # type: ignore[arg-type]
    async with node.controlling():
        await asyncio.sleep(30)
        attempts = len([call for call in node.api.requests("PATCH") if "/nodes/" in call.path])
        assert 1 <= attempts <= 14
        assert node.applied() is None
        node.api.heal()
        await asyncio.sleep(60)
        assert node.applied() is not None
        assert node.host.units["a.service"].active_state == "active"
    assert node.calls("RestartUnit") <= 1


async def test_a_refused_node_patch_is_repeated(node: OscAgent) -> None:
    """Contract 6.10: any other error backs off, so a 422 of somebody's admission webhook does not end the reconciles."""
    checksum = node.publish(files=[inline("/etc/a", "one")])
    node.api.fail(Invalid("denied by a webhook", status=422), times=1, method="PATCH", path="/api/v1/nodes/")
    async with node.controlling():
        await asyncio.sleep(3600)
        assert node.applied() == checksum


@pytest.mark.parametrize("late", ["kubeconfig", "certificate"])
async def test_w29_bootstrap_credentials_wait_for_those_of_the_kubelet(node: OscAgent, late: str) -> None:
    """Contract 6.2, 9 W29: token and bootstrap kubeconfig go only when kubeconfig-real and the client certificate exist."""
    own = {"kubeconfig": node.paths.kubelet_kubeconfig, "certificate": node.paths.kubelet_client_certificate}
    missing = own.pop(late)
    for path in (node.paths.bootstrap_token, node.paths.kubelet_bootstrap_kubeconfig, *own.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    node.publish(files=[])
    async with node.connected():
        await node.reconcile()
        assert node.paths.bootstrap_token.exists()
        assert node.paths.kubelet_bootstrap_kubeconfig.exists()
        missing.parent.mkdir(exist_ok=True)
        missing.write_text("x")
        await node.reconcile()
        assert not node.paths.bootstrap_token.exists()
        assert not node.paths.kubelet_bootstrap_kubeconfig.exists()
        assert node.paths.kubelet_kubeconfig.exists()


async def test_bootstrap_credentials_stay_without_a_node(agent: OscAgent) -> None:
    """Contract 6.2: nothing is removed before the Node is registered."""
    for path in (
        agent.paths.bootstrap_token,
        agent.paths.kubelet_kubeconfig,
        agent.paths.kubelet_client_certificate,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    agent.publish(files=[])
    async with agent.connected():
        await agent.reconcile()
    assert agent.paths.bootstrap_token.exists()


async def test_own_change_restarts_before_unit_commands_and_removals(node: OscAgent) -> None:
    """Contract 1.8, 6.2: own bytes changed: reload, flag persisted as false, shutdown; jobs and removals by the next process."""
    own = {"name": OWN, "content": SLEEP, "filePaths": ["/etc/own"]}
    first = [inline("/etc/own", "one"), inline("/etc/old", "old")]
    node.publish(files=first, units=[own])
    async with node.connected():
        await node.reconcile()
        assert node.restart_reason() == "own unit or one of its files changed"
        node.start_process()
        await node.reconcile()
        assert node.restart_reason() is None
        jobs = node.calls("RestartUnit")
        checksum = node.publish(files=[inline("/etc/own", "two")], units=[own, {"name": "a.service", "content": SLEEP}])
        assert await node.reconcile() == Result()
        assert node.restart_reason() is not None
        assert (node.calls("RestartUnit"), node.read("/etc/old"), node.read("/etc/own")) == (jobs, "old", "two")
        assert json.loads(node.paths.pending_changes.read_text())["mustRestartNodeAgent"] is False
        assert node.applied() != checksum
        node.start_process()
        await node.reconcile()
        assert node.restart_reason() is None
        assert (node.calls("RestartUnit"), node.read("/etc/old"), node.applied()) == (jobs + 1, None, checksum)


async def test_what_user_data_wrote_already_is_no_own_change(node: OscAgent) -> None:
    """Contract 1.8: own unit and files with equal bytes on the disk, another mode even, need no restart."""
    node.host.write_unit(OWN, SLEEP)
    (node.root / "etc/own").write_text("one")
    node.publish(files=[inline("/etc/own", "one")], units=[{"name": OWN, "content": SLEEP, "filePaths": ["/etc/own"]}])
    async with node.connected():
        await node.reconcile()
    assert node.restart_reason() is None
    assert node.applied() is not None
    assert "StopUnit" not in node.host.received
    assert "RestartUnit" not in node.host.received


async def test_w44_a_changed_secret_behind_a_reference_is_noticed(node: OscAgent) -> None:
    """Contract 9 W44: at the sync period a Secret that changed is written again, and its unit restarted."""
    node.put_secret("source", "key", "one")
    unit = {"name": "a.service", "content": SLEEP, "filePaths": ["/etc/a"]}
    node.publish(files=[from_secret("/etc/a", "source")], units=[unit])
    async with node.controlling():
        await asyncio.sleep(5)
        assert node.read("/etc/a") == "one"
        jobs = node.calls("RestartUnit")
        node.put_secret("source", "key", "two")
        await asyncio.sleep(30)
        assert node.read("/etc/a") == "one"
        await asyncio.sleep(600)
        assert node.read("/etc/a") == "two"
        assert node.calls("RestartUnit") == jobs + 1
    journal = node.paths.pending_changes.read_text()
    assert "two" not in journal
    assert "dHdv" not in journal


async def test_w44_a_reference_that_left_the_osc_is_forgotten(node: OscAgent) -> None:
    """Contract 6.4, 9 W44: the journal does not grow with each name that a Secret's file ever had."""
    async with node.connected():
        for number in range(3):
            node.put_secret(f"s{number}", "key", "x")
            node.publish(files=[from_secret(f"/etc/s{number}", f"s{number}"), inline("/etc/a", str(number))])
            await node.reconcile()
        assert set(node.journal.load().secret_digests) == {"/etc/s2"}
        node.publish(files=[from_secret("/etc/s0", "s0"), inline("/etc/s2", "plain")])
        await node.reconcile()
        assert (node.read("/etc/s0"), node.read("/etc/s2")) == ("x", "plain")
        assert set(node.journal.load().secret_digests) == {"/etc/s0"}


async def test_w44_the_content_of_a_secret_is_in_no_state_file(node: OscAgent) -> None:
    """Contract 9 W44: only a digest of what a secretRef holds is kept; neither state, status nor events have the content."""
    node.put_secret("source", "key", "very-confidential")
    node.publish(files=[from_secret("/etc/a", "source"), from_secret("/etc/b", "source", "other")])
    async with node.connected():
        with pytest.raises(ApplyFailed) as raised:
            await node.reconcile()
        await asyncio.sleep(5)
    texts = [path.read_text() for path in node.root.rglob("*") if path.is_file() and path.name != "a"]
    texts += [str(raised.value), json.dumps(node.events("OSCFailed"))]
    assert node.read("/etc/a") == "very-confidential"
    assert not [text for text in texts if "very-confidential" in text or "dmVyeS1jb25maWRlbnRpYWw" in text]


async def test_desired_is_kept_for_operators_0600(node: OscAgent) -> None:
    """The last valid OSC that was asked for is on the disk, 0600, also when it could not be applied."""
    node.publish(files=[from_secret("/etc/a", "missing")])
    async with node.connected():
        with pytest.raises(ApplyFailed):
            await node.reconcile()
    assert json.loads(node.paths.desired.read_text())["spec"]["files"][0]["path"] == "/etc/a"
    assert node.paths.desired.stat().st_mode & 0o777 == 0o600
    assert node.paths.pending_changes.stat().st_mode & 0o777 == 0o600


async def test_without_either_key_the_pass_fails(node: OscAgent) -> None:
    """Contract 5.1: a Secret without `osc.yaml` and `osc.yaml.br` is an error."""
    node.put_secret(SECRET, "script", "old")
    async with node.connected():
        with pytest.raises(InvalidOSC, match=r"osc\.yaml"):
            await node.reconcile()


async def test_a_changed_osc_waits_for_its_jitter(node: OscAgent) -> None:
    """Contract 6.1: the first OSC is applied at once, a change after the delay on the Node, an annotation alone never."""
    node.register_node(**{"node-agent.gardener.cloud/reconciliation-delay": "90s"})
    node.publish(files=[inline("/etc/a", "one")])
    async with node.controlling():
        await asyncio.sleep(1)
        assert node.read("/etc/a") == "one"
        node.publish(files=[inline("/etc/a", "two")])
        await asyncio.sleep(85)
        assert node.read("/etc/a") == "one"
        await asyncio.sleep(10)
        assert node.read("/etc/a") == "two"


async def test_a_torn_journal_leads_to_a_comparison_with_the_disk(node: OscAgent) -> None:
    """Contract 6.4, 9 W4: a journal that is cut off counts as none; what is missing on the disk is written again."""
    v1 = node.publish(files=[inline("/etc/a", "one")], units=[{"name": "a.service", "content": SLEEP}])
    async with node.connected():
        await node.reconcile()
        content = node.paths.pending_changes.read_bytes()
        node.paths.pending_changes.write_bytes(content[: len(content) // 2])
        (node.root / "etc/a").unlink()
        node.start_process()
        node.publish(files=[inline("/etc/a", "one")], units=[{"name": "a.service", "content": SLEEP}])
        node.register_node()
        await node.reconcile()
    assert (node.read("/etc/a"), node.applied()) == ("one", v1)


async def test_a_torn_journal_does_not_forget_what_a_superseded_osc_touched(node: OscAgent) -> None:
    """Contract 6.4 a, b, W10: an OSC failed, the next one was only prepared when the power went: what the first one brought goes."""
    node.publish(files=[inline("/etc/first", "x"), from_secret("/etc/s", "missing")])
    async with node.connected():
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        node.paths.desired.write_bytes(b'{"spec": {"files": [{"path": "/etc/second"}]}}')
        content = node.paths.pending_changes.read_bytes()
        files.write_atomic(node.paths.pending_changes, content[: len(content) // 2], mode=0o600)
        node.start_process()
        checksum = node.publish(files=[inline("/etc/third", "x")])
        await node.reconcile()
    assert [node.read(f"/etc/{name}") for name in ("first", "third")] == [None, "x"]
    assert node.applied() == checksum


@pytest.mark.parametrize("name", ["last_applied", "pending_changes"])
async def test_a_damaged_state_file_is_set_aside_and_said(node: OscAgent, name: str) -> None:
    """Contract 6.4 d: kept for somebody to look at, one event; the agent finds out from API and disk, and converges."""
    node.publish(files=[inline("/etc/a", "one"), inline("/etc/b", "b")])
    async with node.connected():
        await node.reconcile()
        path = getattr(node.paths, name)
        path.write_bytes(b"{damaged")
        node.start_process()
        (node.root / "etc/b").unlink()
        checksum = node.publish(files=[inline("/etc/a", "two"), inline("/etc/b", "b")])
        await node.reconcile()
        assert (node.read("/etc/a"), node.read("/etc/b"), node.applied()) == ("two", "b", checksum)
        assert path.with_name(f"{path.name}.damaged").read_bytes() == b"{damaged"
        assert json.loads(path.read_text())
        await asyncio.sleep(1)
        (event,) = node.events("StateDamaged")
        assert f"{path.name}.damaged" in event["note"]


async def test_a_damaged_last_applied_is_known_from_before(node: OscAgent) -> None:
    """Contract 6.4 d: nothing else tells what the lost one had, and still nothing of it stays behind."""
    node.publish(files=[inline("/etc/a", "one"), inline("/etc/gone", "x")])
    async with node.connected():
        await node.reconcile()
        node.paths.last_applied.write_bytes(b"\x00" * 100)
        node.paths.desired.unlink()
        node.start_process()
        node.publish(files=[inline("/etc/a", "one")])
        await node.reconcile()
    assert (node.read("/etc/a"), node.read("/etc/gone")) == ("one", None)


async def test_an_older_last_applied_that_was_brought_back_is_noticed(node: OscAgent) -> None:
    """Contract 6.4 d: a restored disk image, say: said once, compared with the machine, and what only the newer one had goes."""
    node.publish(files=[inline("/etc/a", "one")])
    async with node.connected():
        await node.reconcile()
        older = node.paths.last_applied.read_bytes()
        checksum = node.publish(files=[inline("/etc/a", "two"), inline("/etc/b", "b")])
        await node.reconcile()
        newest = node.paths.last_applied.read_bytes()
        node.paths.last_applied.write_bytes(older)
        node.start_process()
        (node.root / "etc/b").unlink()
        await node.reconcile()
        assert (node.read("/etc/a"), node.read("/etc/b"), node.applied()) == ("two", "b", checksum)
        assert node.paths.last_applied.read_bytes() == newest
        await asyncio.sleep(1)
        (event,) = node.events("StateDamaged")
        assert "brought back" in event["note"]
        node.paths.last_applied.write_bytes(older)
        node.start_process()
        node.publish(files=[inline("/etc/a", "two")])
        await node.reconcile()
    assert (node.read("/etc/a"), node.read("/etc/b")) == ("two", None)


async def test_a_last_applied_of_the_go_agent_is_believed(node: OscAgent) -> None:
    """Contract 3, 6.4: it has no digest of ours, and is no damage."""
    node.publish(files=[inline("/etc/a", "one"), inline("/etc/b", "b")])
    async with node.connected():
        await node.reconcile()
        document = json.loads(node.paths.last_applied.read_text())
        document["spec"]["files"].pop()
        node.paths.last_applied.write_text(yaml.safe_dump(document))
        node.start_process()
        node.publish(files=[inline("/etc/a", "two")])
        await node.reconcile()
        await asyncio.sleep(1)
        assert node.events("StateDamaged") == []
    assert (node.read("/etc/a"), node.read("/etc/b")) == ("two", "b")
