"""Updates in place on a real machine: operating system with a reboot, kubelet, certificate authorities, pods."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.pause import PAUSE_IMAGE
from tests.lab.worker_osc import AGENT_FOLDER, KUBELET_UNIT, WorkerOsc
from tests.support.worker import Worker

RESULT = "node.machine.sapcloud.io/update-result"
REASON = "node.machine.sapcloud.io/update-failed-reason"
UPDATING = "node-agent.gardener.cloud/updating-operating-system-version"
KUBELET_KEY = "/var/lib/kubelet/pki/kubelet-client-current.pem"


@pytest.fixture(scope="module")
def joined(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A machine that joined with an OSC for updates in place."""
    with lab.removed_after(lab.add_machine("inplace")) as machine:
        worker = Worker.join(lab, machine, agent)
        worker.wait_applied(publish(worker, worker.base), timeout=60)
        yield worker


@pytest.fixture
def worker(joined: Worker) -> Worker:
    """The worker, not ready for an update and without the result of an earlier one."""
    node = f"/api/v1/nodes/{joined.machine.name}"
    joined.lab.api.patch(node, {"metadata": {"labels": {RESULT: None}, "annotations": {REASON: None, UPDATING: None}}})
    set_condition(joined, "UpdateSuccessful")
    return joined


def publish(
    worker: Worker, osc: WorkerOsc, *, system: str = "12", command: str = "", rotation: dict[str, Any] | None = None
) -> str:
    """Publish an OSC for updates in place."""
    document = osc.document()
    document["spec"]["inPlaceUpdates"] = {
        "operatingSystemVersion": system,
        "kubelet": "1.34.4",
        "credentialsRotation": rotation,
    }
    if command:
        document["status"] = {"inPlaceUpdates": {"osUpdate": {"command": "/bin/sh", "args": ["-c", command]}}}
    return worker.publish_bytes(json.dumps(document).encode())


def set_condition(worker: Worker, reason: str) -> None:
    """Do what machine-controller-manager does with the Node's condition."""
    condition = {"type": "InPlaceUpdate", "status": "True", "reason": reason, "message": ""}
    path = f"/api/v1/nodes/{worker.machine.name}/status"
    worker.lab.api.patch_strategic(path, {"status": {"conditions": [condition]}})


def result(worker: Worker) -> str | None:
    """Return the result label."""
    labels: dict[str, str] = worker.node()["metadata"]["labels"]
    return labels.get(RESULT)


def wait_result(worker: Worker, expected: str, *, timeout: float = 60) -> None:
    """Wait for a result of the update."""
    wait_for(lambda: result(worker) == expected or None, timeout=timeout, what=f"result {expected}")


def run_pod(worker: Worker, name: str) -> str:
    """Run a pod on the machine; returns its path."""
    path = "/api/v1/namespaces/default/pods"
    spec = {
        "nodeName": worker.machine.name,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": PAUSE_IMAGE, "command": ["sleep", "36000"]}],
        "automountServiceAccountToken": False,
    }
    worker.lab.api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


def test_a_kubelet_setting_waits_for_the_drain_and_deletes_pods_after_it(worker: Worker) -> None:
    """Contract 6.13: nothing on the machine changes before the condition; then kubelet, pods, label, annotation."""
    pod = run_pod(worker, "workload")
    osc = worker.base.with_kubelet(kubeReserved={"cpu": "90m"})
    before, kubelet = worker.machine.read("/var/lib/kubelet/config/kubelet"), worker.machine.main_pid(KUBELET_UNIT)
    checksum = publish(worker, osc)
    wait_for(lambda: worker.status()["phase"] == "waitingForDrain" or None, timeout=20, what="the gate")
    assert worker.machine.read("/var/lib/kubelet/config/kubelet") == before
    set_condition(worker, "ReadyForUpdate")
    worker.wait_applied(checksum, timeout=60)
    assert b"90m" in worker.machine.read("/var/lib/kubelet/config/kubelet")
    assert worker.machine.main_pid(KUBELET_UNIT) != kubelet
    assert result(worker) == "successful"
    wait_for(lambda: worker.lab.api.find(pod) is None or None, timeout=60, what="the pod to be deleted")


def test_the_operating_system_is_updated_with_a_reboot(worker: Worker) -> None:
    """Contract 6.13: the command runs once, the agent waits for the reboot; with the new system the update succeeds."""
    command = "echo x >> /var/lib/updates; sed s/12/13/g /usr/lib/os-release > /var/lib/os-release.next"
    checksum = publish(worker, worker.base, system="13", command=command)
    set_condition(worker, "ReadyForUpdate")
    wait_for(lambda: worker.machine.exists("/var/lib/os-release.next") or None, timeout=30, what="the update command")
    wait_for(
        lambda: worker.node()["metadata"]["annotations"].get(UPDATING) == "13" or None, timeout=10, what="annotation"
    )
    worker.machine.reboot()
    # What a boot into the other partition does.
    worker.machine.run(["cp", "/var/lib/os-release.next", "/usr/lib/os-release"])
    worker.machine.systemctl("restart", "gardener-node-agent.service")
    worker.wait_applied(checksum, timeout=90)
    assert result(worker) == "successful"
    assert UPDATING not in worker.node()["metadata"]["annotations"]
    assert worker.machine.read("/var/lib/updates") == b"x\n"


def test_a_rolled_back_update_is_said_and_waits(worker: Worker) -> None:
    """Contract 6.13: a machine that comes back with its old system is marked; the next OSC is tried."""
    publish(worker, worker.base, system="14", command="true")
    set_condition(worker, "ReadyForUpdate")
    wait_for(
        lambda: worker.node()["metadata"]["annotations"].get(UPDATING) == "14" or None, timeout=30, what="annotation"
    )
    worker.machine.reboot()
    wait_result(worker, "failed", timeout=90)
    assert "14" in worker.node()["metadata"]["annotations"][REASON]
    version = worker.machine.run(["sh", "-c", ". /etc/os-release; echo ${PRETTY_NAME}"]).stdout.split()[2]
    worker.wait_applied(publish(worker, worker.base.with_file("/etc/motd", "x"), system=version), timeout=60)
    assert result(worker) == "successful"


def test_an_update_that_fails_is_said_with_its_output(worker: Worker) -> None:
    """Contract 6.13, 9 W36: exit code and the end of what the command printed, at most 4 KiB; the agent stays up."""
    agent = worker.machine.main_pid("gardener-node-agent.service")
    publish(
        worker,
        worker.base,
        system="15",
        command="head -c 10485760 /dev/zero | tr '\\\\0' x; echo system failure; exit 4",
    )
    set_condition(worker, "ReadyForUpdate")
    wait_result(worker, "failed")
    reason = worker.node()["metadata"]["annotations"][REASON]
    assert "exit code 4" in reason
    assert reason.endswith("system failure")
    assert len(reason) <= 4096
    event = worker.wait_event("InPlaceUpdateFailed", containing="exit code 4")
    assert event["type"] == "Warning"
    assert event["message"].endswith("system failure")
    wait_for(lambda: worker.status()["phase"] == "failing", timeout=10, what="the status to say so")
    assert worker.machine.main_pid("gardener-node-agent.service") == agent


def test_certificate_authorities_and_service_account_keys_are_rotated(worker: Worker) -> None:
    """Contract 6.13, 9 W30, Appendix C (in place): a new certificate of ours and of the real kubelet; agent and Node go on."""
    version = worker.machine.run(["sh", "-c", ". /etc/os-release; echo ${PRETTY_NAME}"]).stdout.split()[2]
    worker.wait_applied(publish(worker, worker.base.with_file("/etc/motd", "y"), system=version), timeout=60)
    ours = worker.machine.read(f"{AGENT_FOLDER}/credentials/kubeconfig")
    agent = worker.machine.main_pid("gardener-node-agent.service")
    kubelets = worker.machine.run(["cat", KUBELET_KEY]).stdout
    begun = {"lastInitiationTime": "2026-11-01T00:00:00Z"}
    rotation = {"certificateAuthorities": begun, "serviceAccountKey": begun}
    checksum = publish(worker, worker.base.with_file("/etc/motd", "y"), system=version, rotation=rotation)
    set_condition(worker, "ReadyForUpdate")
    worker.wait_applied(checksum, timeout=120)
    assert worker.machine.read(f"{AGENT_FOLDER}/credentials/kubeconfig") != ours
    assert worker.machine.main_pid("gardener-node-agent.service") == agent
    assert b"BEGIN CERTIFICATE" in worker.machine.read(f"{AGENT_FOLDER}/credentials/ca-bundle.crt")
    renewed = worker.machine.run(["cat", KUBELET_KEY]).stdout
    assert renewed != kubelets
    assert "PRIVATE KEY" in renewed
    assert result(worker) == "successful"
    assert not worker.machine.exists("/var/lib/kubelet/.before-rotation")
    ready = [c for c in worker.node()["status"]["conditions"] if c["type"] == "Ready"]
    assert ready[0]["status"] == "True"
