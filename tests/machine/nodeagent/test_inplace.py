"""Updates in place on a real machine: operating system with a reboot, kubelet, certificate authorities, pods."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.oci import Entry, Image
from tests.lab.pause import PAUSE_IMAGE
from tests.lab.worker_osc import (
    AGENT_FOLDER,
    AGENT_UNIT,
    KUBELET_BINARY,
    KUBELET_CONFIG_FILE,
    KUBELET_UNIT,
    WorkerOsc,
)
from tests.support.shifted_clock import shifted_clock
from tests.support.worker import Worker

RESULT = "node.machine.sapcloud.io/update-result"
REASON = "node.machine.sapcloud.io/update-failed-reason"
UPDATING = "node-agent.gardener.cloud/updating-operating-system-version"
KUBELET_KEY = "/var/lib/kubelet/pki/kubelet-client-current.pem"
KUBELET_VERSION = "worker.gardener.cloud/kubernetes-version"
CPU_MANAGER_STATE = "/var/lib/kubelet/cpu_manager_state"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKENS = {
    f"{AGENT_FOLDER}/token-1": "gardener-valitail",
    f"{AGENT_FOLDER}/token-2": "gardener-valitail",
    f"{AGENT_FOLDER}/token-3": "gardener-opentelemetry-collector",
}
"""Files with tokens, and the Secrets they come from."""


@pytest.fixture(scope="module")
def joined(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A machine that joined with an OSC for updates in place, and with tokens that are looked at every twelve hours."""
    for name in set(TOKENS.values()):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": "first"}}
        lab.api.ensure(SECRETS, body)
    sync = [{"secretName": name, "path": path} for path, name in TOKENS.items()]
    with lab.removed_after(lab.add_machine("inplace")) as machine:
        worker = Worker.join(lab, machine, agent, token={"syncPeriod": "12h0m0s", "syncConfigs": sync})
        worker.wait_applied(publish(worker, worker.base), timeout=60)
        yield worker
    for name in set(TOKENS.values()):
        lab.api.delete(f"{SECRETS}/{name}")


@pytest.fixture
def worker(joined: Worker) -> Worker:
    """The worker as it joined, whatever was updated before; not ready for an update and without the result of one."""
    set_condition(joined, "ReadyForUpdate")
    joined.wait_applied(publish(joined, joined.base), timeout=90)
    node = f"/api/v1/nodes/{joined.machine.name}"
    joined.lab.api.patch(node, {"metadata": {"labels": {RESULT: None}, "annotations": {REASON: None, UPDATING: None}}})
    set_condition(joined, "UpdateSuccessful")
    return joined


def running_system(worker: Worker) -> str:
    """Return the version of the operating system that runs."""
    name = worker.machine.run(["sh", "-c", ". /etc/os-release; echo ${PRETTY_NAME}"]).stdout
    return name.split()[2]


def publish(
    worker: Worker,
    osc: WorkerOsc,
    *,
    system: str = "",
    command: str = "",
    kubelet: str = "1.34.4",
    rotation: dict[str, Any] | None = None,
) -> str:
    """Publish an OSC for updates in place; for the operating system that runs, unless another one is named."""
    document = osc.document()
    document["spec"]["inPlaceUpdates"] = {
        "operatingSystemVersion": system or running_system(worker),
        "kubelet": kubelet,
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


def wait_gate(worker: Worker) -> None:
    """Wait until the agent has seen an update and waits for the machine to be drained."""
    wait_for(lambda: worker.status()["phase"] == "waitingForDrain" or None, timeout=30, what="the gate")


def healthy(worker: Worker) -> bool:
    """Whether the kubelet says at this moment that it is healthy."""
    answer = worker.machine.run(["curl", "-s", "http://127.0.0.1:10248/healthz"], check=False)
    return (answer.returncode, answer.stdout) == (0, "ok")


def wait_ready(worker: Worker) -> None:
    """Wait until the Node is Ready."""

    def look() -> bool | None:
        ready = [c["status"] for c in worker.node()["status"]["conditions"] if c["type"] == "Ready"]
        return ready == ["True"] or None

    wait_for(look, timeout=60, what="the Node to be Ready")


def digest(content: bytes) -> str:
    """Return what tells one program from another."""
    return hashlib.sha256(content).hexdigest()


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
    wait_gate(worker)
    assert worker.machine.read("/var/lib/kubelet/config/kubelet") == before
    set_condition(worker, "ReadyForUpdate")
    worker.wait_applied(checksum, timeout=60)
    assert b"90m" in worker.machine.read("/var/lib/kubelet/config/kubelet")
    assert worker.machine.main_pid(KUBELET_UNIT) != kubelet
    assert result(worker) == "successful"
    wait_for(lambda: worker.lab.api.find(pod) is None or None, timeout=60, what="the pod to be deleted")


def next_minor_version(worker: Worker, kubelet: bytes) -> WorkerOsc:
    """Return an OSC with another kubelet, out of another image, and the agent's configuration for its version."""
    image = Image.build([Entry("kubelet", kubelet)], compress=False)
    reference = worker.lab.registry().push(image, "gardener/hyperkube", "v1.35.0")
    path = worker.base.pool.agent_config_path
    config = worker.base.files[path]["content"]["inline"]["data"]
    config = config.replace(worker.base.pool.kubernetes_version, "v1.35.0")
    return worker.base.with_image_file(KUBELET_BINARY, reference, "/kubelet").with_file(path, config, mode=0o600)


def test_another_minor_version_of_the_kubelet_waits_for_the_drain_and_then_runs(worker: Worker) -> None:
    """Contract 6.13, 6.5: another image's kubelet: neither file nor process changes before the condition; then it runs, pods, label.

    Its program is the one before with some bytes behind its end, which a kernel does not look at.
    """
    pod = run_pod(worker, "of-the-old-kubelet")
    before, process = worker.machine.read(KUBELET_BINARY), worker.machine.main_pid(KUBELET_UNIT)
    program = before + b"another minor version"
    version = worker.node()["metadata"]["labels"][KUBELET_VERSION]
    checksum = publish(worker, next_minor_version(worker, program), kubelet="1.35.0")
    wait_gate(worker)
    assert digest(worker.machine.read(KUBELET_BINARY)) == digest(before)
    assert worker.machine.main_pid(KUBELET_UNIT) == process
    assert worker.node()["metadata"]["labels"][KUBELET_VERSION] == version
    assert worker.lab.api.find(pod) is not None
    set_condition(worker, "ReadyForUpdate")
    worker.wait_applied(checksum, timeout=90)
    assert digest(worker.machine.read(KUBELET_BINARY)) == digest(program)
    runs = worker.machine.main_pid(KUBELET_UNIT)
    assert runs != process
    assert digest(Path(f"/proc/{runs}/exe").read_bytes()) == digest(program)
    assert healthy(worker)
    labels = worker.node()["metadata"]["labels"]
    assert (labels[RESULT], labels[KUBELET_VERSION]) == ("successful", "1.35.0")
    wait_for(lambda: worker.lab.api.find(pod) is None or None, timeout=60, what="the pod to be deleted")
    wait_ready(worker)


def cpu_manager(worker: Worker) -> str:
    """Return the policy under which the CPU manager's state was written."""
    state: dict[str, Any] = json.loads(worker.machine.read(CPU_MANAGER_STATE))
    return str(state["policyName"])


def test_the_cpu_managers_state_goes_before_the_kubelet_starts_with_another_policy(worker: Worker) -> None:
    """Contract 6.13, 6.6: with the old policy's state a kubelet refuses to start; it starts once, and writes the new policy's."""
    state, process = worker.machine.read(CPU_MANAGER_STATE), worker.machine.main_pid(KUBELET_UNIT)
    assert cpu_manager(worker) == "none"
    checksum = publish(worker, worker.base.with_kubelet(cpuManagerPolicy="static", reservedSystemCPUs="0"))
    wait_gate(worker)
    assert worker.machine.read(CPU_MANAGER_STATE) == state
    assert worker.machine.main_pid(KUBELET_UNIT) == process
    set_condition(worker, "ReadyForUpdate")
    worker.wait_applied(checksum, timeout=90)
    assert cpu_manager(worker) == "static"
    assert worker.machine.main_pid(KUBELET_UNIT) != process
    assert worker.machine.unit(KUBELET_UNIT)["NRestarts"] == "0"
    assert healthy(worker)
    assert result(worker) == "successful"
    wait_ready(worker)


BAD = {"cpuManagerPolicy": "no-such-policy"}


@pytest.mark.parametrize("settings", [{"kubeReserved": {"cpu": "80m"}}, {}], ids=["other settings", "settings before"])
def test_a_kubelet_that_does_not_become_healthy_fails_the_update(
    worker: Worker, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Contract 6.13, 9 W19: after five minutes label, reason and event; the agent goes on, and the next OSC repairs it without a drain.

    The five minutes go by as the agent measures them: the clock that it asks is set forward.
    """
    with shifted_clock(worker, tmp_path) as clock:
        agent = worker.machine.main_pid(AGENT_UNIT)
        checksum = publish(worker, worker.base.with_kubelet(**BAD))
        set_condition(worker, "ReadyForUpdate")
        wait_for(
            lambda: "update in place" in [item["name"] for item in worker.status()["items"]] or None,
            timeout=30,
            what="a kubelet that is waited for",
        )
        assert result(worker) is None
        clock.shift(elapsed=timedelta(minutes=5, seconds=1))
        wait_result(worker, "failed")
        assert "kubelet is not healthy" in worker.node()["metadata"]["annotations"][REASON]
        worker.wait_event("InPlaceUpdateFailed", containing="kubelet is not healthy")
        assert worker.applied() != checksum
        set_condition(worker, "UpdateFailed")
        checksum = publish(worker, worker.base.with_kubelet(**settings))
        wait_result(worker, "successful")
        assert healthy(worker)
        worker.wait_applied(checksum)
        assert REASON not in worker.node()["metadata"]["annotations"]
        assert b"no-such-policy" not in worker.machine.read(KUBELET_CONFIG_FILE)
        assert worker.machine.main_pid(AGENT_UNIT) == agent
        wait_ready(worker)


def test_settings_that_were_taken_back_in_time_leave_a_kubelet_that_starts(worker: Worker) -> None:
    """Contract 6.4, 6.6, 9 W10: superseded after the kubelet ran with another policy: the state of that policy goes too."""
    osc = worker.base.with_kubelet(cpuManagerPolicy="static", reservedSystemCPUs="0")
    secret = {"path": "/opt/test/never", "content": {"secretRef": {"name": "never-there", "dataKey": "k"}}}
    publish(worker, replace(osc, files={**osc.files, "/opt/test/never": secret}))
    set_condition(worker, "ReadyForUpdate")
    wait_for(
        lambda: (worker.machine.exists(CPU_MANAGER_STATE) and cpu_manager(worker) == "static") or None,
        timeout=60,
        what="a kubelet with the other policy",
        interval=0.2,
    )
    worker.wait_applied(publish(worker, worker.base.with_file("/etc/motd", "z")), timeout=90)
    assert result(worker) == "successful"
    assert healthy(worker)
    assert cpu_manager(worker) == "none"
    wait_ready(worker)


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
    worker.wait_applied(publish(worker, worker.base.with_file("/etc/motd", "x")), timeout=60)
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
    worker.wait_applied(publish(worker, worker.base.with_file("/etc/motd", "y")), timeout=60)
    ours = worker.machine.read(f"{AGENT_FOLDER}/credentials/kubeconfig")
    agent = worker.machine.main_pid("gardener-node-agent.service")
    kubelets = worker.machine.run(["cat", KUBELET_KEY]).stdout
    begun = {"lastInitiationTime": "2026-11-01T00:00:00Z"}
    rotation = {"certificateAuthorities": begun, "serviceAccountKey": begun}
    checksum = publish(worker, worker.base.with_file("/etc/motd", "y"), rotation=rotation)
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


def test_all_tokens_are_read_again_when_the_keys_of_service_accounts_are_rotated(worker: Worker) -> None:
    """Contract 6.13, 7.3: of every Secret: a file that was changed, one that was removed, and a token that was renewed.

    The tokens' own sync comes twelve hours later; an OSC without a rotation does nothing about them.
    """
    changed, removed, renewed = TOKENS
    wait_for(lambda: all(map(worker.machine.exists, TOKENS)) or None, timeout=30, what="the tokens")
    worker.machine.write(changed, b"changed by hand", 0o600)
    worker.machine.path(removed).unlink()
    old = worker.machine.read(renewed)
    worker.lab.api.patch(f"{SECRETS}/{TOKENS[renewed]}", {"stringData": {"token": "signed with the new key"}})
    worker.wait_applied(publish(worker, worker.base.with_file("/etc/motd", "1")), timeout=60)
    assert worker.machine.read(changed) == b"changed by hand"
    assert not worker.machine.exists(removed)
    assert worker.machine.read(renewed) == old
    rotation = {"serviceAccountKey": {"lastInitiationTime": "2026-11-02T00:00:00Z"}}
    checksum = publish(worker, worker.base.with_file("/etc/motd", "1"), rotation=rotation)
    wait_gate(worker)
    set_condition(worker, "ReadyForUpdate")
    worker.wait_applied(checksum, timeout=60)
    expected = {changed: b"first", removed: b"first", renewed: b"signed with the new key"}
    wait_for(
        lambda: (
            {path: worker.machine.exists(path) and worker.machine.read(path) for path in TOKENS} == expected or None
        ),
        timeout=20,
        what="all tokens",
    )
    assert {worker.machine.mode(path) for path in TOKENS} == {0o640}
    assert result(worker) == "successful"
