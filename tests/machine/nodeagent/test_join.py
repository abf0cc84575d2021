"""A machine becomes a worker node: what is on its disk, on the Node and in the API server's audit log afterwards."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.lab.api import wait_for
from tests.lab.machine import Machine
from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT
from tests.support.worker import STATUS_FILE, Worker

ROOT = Path(__file__).resolve().parents[3]


def test_everything_of_the_osc_is_on_the_machine(worker: Worker) -> None:
    """Contract 6.2: files with content and mode, units written, enabled and running; nothing else left behind."""
    assert worker.differences(worker.base) == []
    assert worker.machine.systemctl("is-enabled", "kubelet.service", AGENT_UNIT).split() == ["enabled", "enabled"]
    assert worker.machine.run(["sysctl", "-n", "net.core.somaxconn"]).stdout.strip() == "2048"


def test_the_start_is_logged_with_its_flags(worker: Worker) -> None:
    """Contract 1.2: after validation the flags are logged, with version and configuration file."""
    start = next(line for line in worker.machine.journal(AGENT_UNIT).splitlines() if '"msg": "Starting"' in line)
    fields = json.loads(start)
    assert (fields["configDir"], fields["command"]) == (AGENT_FOLDER, "run")
    assert fields["config"] == worker.base.pool.agent_config_path


def test_state_files_have_their_modes(worker: Worker) -> None:
    """Contract 3, 9 W22: modes of the agent's own files and directories."""
    modes = {
        f"{AGENT_FOLDER}/credentials": 0o700,
        f"{AGENT_FOLDER}/credentials/kubeconfig": 0o600,
        f"{AGENT_FOLDER}/last-applied-osc.yaml": 0o600,
        f"{AGENT_FOLDER}/last-computed-osc-changes.yaml": 0o600,
        f"{AGENT_FOLDER}/desired-osc.yaml": 0o600,
        f"{AGENT_FOLDER}/tmp": 0o700,
        "/var/lib/kubelet": 0o755,
        STATUS_FILE: 0o600,
    }
    assert {path: worker.machine.mode(path) for path in modes} == modes


def test_bootstrap_credentials_are_gone(worker: Worker) -> None:
    """Contract 6.2, 9 W29: bootstrap token and kubelet's bootstrap kubeconfig are removed once the kubelet has its own."""
    assert worker.machine.exists("/var/lib/kubelet/kubeconfig-real")
    assert not worker.machine.exists(f"{AGENT_FOLDER}/credentials/bootstrap-token")
    assert not worker.machine.exists("/var/lib/kubelet/kubeconfig-bootstrap")


def test_last_applied_is_the_document_and_the_journal_is_empty(worker: Worker) -> None:
    """Contract 5.2, 6.4: last-applied has apiVersion and kind; the journal keeps only checksum and false flags."""
    assert worker.last_applied() == worker.as_applied(worker.base)
    pending = worker.pending()
    pending.pop("x-journal")
    assert pending == {
        "operatingSystemConfigChecksum": worker.applied(),
        "mustRestartNodeAgent": False,
        "files": {},
        "units": {},
        "containerd": {"configFileChanged": False, "registries": {}},
        "inPlaceUpdates": {
            "operatingSystem": False,
            "serviceAccountKeyRotation": False,
            "kubelet": {"minorVersion": False, "config": False, "cpuManagerPolicy": False},
            "certificateAuthoritiesRotation": {"kubelet": False, "nodeAgent": False},
        },
    }


def test_the_node_says_what_was_applied(worker: Worker) -> None:
    """Contract 6.9: role label, version label with three parts, and the checksum annotation."""
    labels = worker.node()["metadata"]["labels"]
    assert labels["node-role.kubernetes.io/worker"] == ""
    assert labels["worker.gardener.cloud/kubernetes-version"] == worker.base.pool.kubernetes_version.removeprefix("v")
    event = worker.wait_event("OSCApplied")
    assert (event["type"], event["reportingComponent"]) == ("Normal", "operatingsystemconfig")


def test_the_heartbeat_is_renewed(worker: Worker) -> None:
    """Contract 7.1: the Lease carries holder and duration, and its renewTime is younger than a period and some slack."""
    lease = wait_for(worker.lease, timeout=15, what="Lease")
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert lease["spec"]["holderIdentity"] == f"gardener-node-agent-{worker.machine.name}"
    age = datetime.now(UTC) - datetime.fromisoformat(lease["spec"]["renewTime"])
    assert age.total_seconds() < 15


def documented_metrics() -> set[str]:
    """Return the metrics of docs/metrics.md that a node agent has; it runs no flows."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (?:both|node agent) \|$", (ROOT / "docs/metrics.md").read_text(), re.M)
    return {name for name in rows if not name.startswith("flow_")}


def shown_metrics(text: str) -> set[str]:
    """Return the metrics that have a value."""
    names = set(re.findall(r"^(\w+)(?:\{.*\})? ", text, re.M))
    return names | {name.removesuffix("_count") for name in names}


def test_health_readiness_and_metrics_answer(worker: Worker) -> None:
    """Contract 1.6: checks by name on 2751, metrics on 2752, and no Go profiles; the metrics are those of docs/metrics.md."""

    def get(port: int, path: str) -> tuple[int, str]:
        done = worker.machine.run(["curl", "-s", "-w", "\n%{http_code}", f"http://127.0.0.1:{port}{path}"])
        body, _, code = done.stdout.rpartition("\n")
        return int(code), body

    assert get(2751, "/healthz/ping") == (200, "ok")
    assert get(2751, "/readyz")[0] == 200
    assert "informer-sync ok" in get(2751, "/healthz?verbose")[1]
    code, metrics = get(2752, "/metrics")
    assert code == 200
    assert 'controller_runtime_reconcile_total{controller="operatingsystemconfig",result="success"}' in metrics
    assert documented_metrics() - shown_metrics(metrics) == set()
    assert get(2752, "/debug/pprof/")[0] == 404


def test_status_file_tells_that_all_is_well(worker: Worker) -> None:
    """The status file names phase, checksum, heartbeat and certificate expiry, and no failing item."""
    status = wait_for(
        lambda: status if (status := worker.status())["heartbeat"] else None, timeout=15, what="heartbeat in the status"
    )
    assert (status["phase"], status["checksum"], status["items"]) == ("applied", worker.applied(), [])
    assert datetime.fromisoformat(status["certificateExpires"]) > datetime.now(UTC)


def test_only_allowed_requests_were_sent(worker: Worker) -> None:
    """Contract 4.8, Appendix C (authorizer): no request was refused but what is bound to a Node that is not there yet."""
    assert worker.refused() == []
    assert any(request.machine == worker.machine.name for request in worker.lab.requests())


def test_the_second_bootstrap_changes_nothing(worker: Worker) -> None:
    """Contract 8.2: the bootstrap command can be repeated: unit text and enablement stay, the agent keeps running."""
    before = worker.machine.main_pid(AGENT_UNIT)
    done = worker.machine.run(["/opt/bin/gardener-node-agent", "bootstrap", f"--config-dir={AGENT_FOLDER}"], timeout=60)
    assert done.returncode == 0
    assert worker.machine.main_pid(AGENT_UNIT) == before
    worker.machine.run(["chmod", "0600", f"/etc/systemd/system/{AGENT_UNIT}"])


def test_idle_agent_is_silent(worker: Worker) -> None:
    """An agent with nothing to do writes nothing at level info."""
    lines = worker.machine.journal(AGENT_UNIT).splitlines()
    heartbeat = worker.lease()
    wait_for(lambda: worker.lease() != heartbeat or None, timeout=15, what="next heartbeat")
    assert worker.machine.journal(AGENT_UNIT).splitlines() == lines


@pytest.mark.parametrize("command", [["--version"], ["--help"]])
def test_version_and_help_need_nothing(machine: Machine, worker: Worker, command: list[str]) -> None:
    """Contract 1.2: on a bare machine both work and exit 0."""
    machine.write("/opt/bin/gardener-node-agent", worker.machine.read("/opt/bin/gardener-node-agent"), 0o755)
    if b"#!/bin/sh" in machine.read("/opt/bin/gardener-node-agent")[:16]:
        pytest.skip("the source tree is not on this machine")
    assert machine.run(["/opt/bin/gardener-node-agent", *command]).returncode == 0


def test_the_desired_osc_is_kept_for_operators(worker: Worker) -> None:
    """The last valid OSC that was asked for is on the disk as JSON."""
    assert json.loads(worker.machine.read(f"{AGENT_FOLDER}/desired-osc.yaml")) == worker.as_applied(worker.base)
