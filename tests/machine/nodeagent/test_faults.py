"""Faults on a node: damaged state, full disks, hostile links, lost credentials, an API server that misbehaves."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.machine import Machine
from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT
from tests.support.worker import Worker, service

NAME = "test.service"
JOURNAL = f"{AGENT_FOLDER}/last-computed-osc-changes.yaml"
LAST_APPLIED = f"{AGENT_FOLDER}/last-applied-osc.yaml"
KUBECONFIG = f"{AGENT_FOLDER}/credentials/kubeconfig"


def stop(worker: Worker) -> None:
    """Kill the agent and keep it down."""
    worker.machine.systemctl("kill", "--signal=SIGKILL", AGENT_UNIT, check=False)
    worker.machine.systemctl("stop", AGENT_UNIT)


def start(worker: Worker) -> None:
    """Start the agent."""
    worker.start_agent()


def renewed(worker: Worker) -> datetime:
    """Return the Lease's renewTime."""
    lease = worker.lease()
    assert lease is not None
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def wait_heartbeat(worker: Worker, *, timeout: float = 30) -> None:
    """Wait for a heartbeat that is newer than now."""
    now = datetime.now(UTC)
    wait_for(lambda: renewed(worker) > now or None, timeout=timeout, what="heartbeat")


@pytest.mark.parametrize("content", [b"", b'{"operatingSystemConfigChecksum": "', b"\x00" * 100, b"[]"])
@pytest.mark.parametrize("path", [JOURNAL, LAST_APPLIED])
def test_w04_damaged_state_files_are_rebuilt(worker: Worker, path: str, content: bytes) -> None:
    """Contract 6.4, 9 W4: an empty or torn journal or last-applied is no crash loop; the disk is compared and repaired."""
    osc = worker.base.with_file("/opt/test/f", "1")
    worker.apply(osc)
    stop(worker)
    worker.machine.write(path, content, 0o600)
    worker.machine.write("/opt/test/f", b"damaged")
    start(worker)
    changed = osc.with_file("/opt/test/g", "2")
    worker.apply(changed, timeout=40)
    assert worker.differences(changed) == []
    assert worker.last_applied() == worker.as_applied(changed)


@pytest.mark.parametrize("content", [b"", b"\x00" * 2000], ids=["empty", "zeroes"])
def test_a_damaged_kubeconfig_does_not_cost_the_identity(worker: Worker, content: bytes) -> None:
    """Contract 4.4, 9 W2: long after the join, with no bootstrap token left, the file is made good, the damaged one kept, an event says so."""
    wait_heartbeat(worker)
    good = worker.machine.read(KUBECONFIG)
    stop(worker)
    worker.machine.write(KUBECONFIG, content, 0o600)
    start(worker)
    wait_heartbeat(worker)
    assert worker.machine.read(KUBECONFIG) == good
    assert worker.machine.read(f"{KUBECONFIG}.damaged") == content
    worker.wait_event("StateDamaged", containing="kubeconfig was damaged")


def test_a_journal_of_the_go_agent_is_resumed(worker: Worker) -> None:
    """Contract 6.4: a pending file without our private key is resumed; entries with empty names are ignored (W1)."""
    drop_in = {"name": "10.conf", "content": "[Service]\nNice=3\n"}
    osc = worker.base.with_unit(NAME, content=service(), dropIns=[drop_in]).with_file("/opt/test/go", "x")
    stop(worker)
    checksum = worker.publish(osc)
    document = osc.document()
    unit = next(unit for unit in document["spec"]["units"] if unit["name"] == NAME)
    file = next(file for file in document["spec"]["files"] if file["path"] == "/opt/test/go")
    shrunk = {key: value for key, value in unit.items() if key != "dropIns"}
    pending = {
        "operatingSystemConfigChecksum": checksum,
        "mustRestartNodeAgent": False,
        "files": {"changed": [file]},
        "units": {
            "changed": [{**shrunk, "dropInsChanges": {"changed": [{"name": "", "content": ""}]}}],
            "commands": [{"name": NAME, "command": "restart"}],
        },
        "containerd": {"configFileChanged": False, "registries": {}},
    }
    worker.machine.write(JOURNAL, json.dumps(pending).encode(), 0o600)
    start(worker)
    worker.wait_applied(checksum, timeout=40)
    assert worker.differences(osc) == []


def test_damage_on_the_disk_is_reported_and_repaired_at_start(worker: Worker) -> None:
    """Contract 7.11: at start a damaged file and a lost drop-in become Warning events and are repaired."""
    drop_in = {"name": "10.conf", "content": "[Service]\nNice=3\n"}
    osc = worker.base.with_unit(NAME, content=service(), dropIns=[drop_in]).with_file("/opt/test/f", "1")
    worker.apply(osc)
    stop(worker)
    worker.machine.write("/opt/test/f", b"damaged")
    worker.machine.run(["rm", f"/etc/systemd/system/{NAME}.d/10.conf"])
    start(worker)
    assert worker.wait_event("FileMismatch", containing="/opt/test/f")["source"]["component"] == "osc-checker"
    worker.wait_event("DropInMissing", containing="10.conf")
    wait_for(lambda: not worker.differences(osc), timeout=20, what="repair")


@pytest.mark.parametrize("content", [b"", b"apiVersion: v1\nclusters: ["])
def test_a_lost_kubeconfig_after_the_join_waits_and_recovers(worker: Worker, content: bytes) -> None:
    """Contract 4.5: without kubeconfig, what is kept of it, and token the agent stays up, says so, harms nothing, and works again with it."""
    kubeconfig = worker.machine.read(KUBECONFIG)
    message = "No credentials for the cluster yet"
    before = worker.machine.journal(AGENT_UNIT).count(message)
    stop(worker)
    try:
        worker.machine.write(KUBECONFIG, content, 0o600)
        worker.machine.run(["sh", "-c", f"rm {AGENT_FOLDER}/generations/kubeconfig.*"])
        start(worker)
        wait_for(lambda: worker.machine.journal(AGENT_UNIT).count(message) > before or None, timeout=20, what=message)
        pid = worker.machine.main_pid(AGENT_UNIT)
        assert worker.machine.unit("kubelet.service")["ActiveState"] == "active"
        assert worker.machine.run(["curl", "-sf", "http://127.0.0.1:2751/healthz"]).stdout == "ok"
        assert worker.machine.main_pid(AGENT_UNIT) == pid
    finally:
        worker.machine.write(KUBECONFIG, kubeconfig, 0o600)
        worker.machine.systemctl("restart", AGENT_UNIT)
    wait_heartbeat(worker)


def test_w02_a_full_disk_keeps_the_old_content_and_converges(worker: Worker) -> None:
    """Contract 9 W2: a write to a full disk names the path, keeps the old content, leaves no temporary file, and is made up for later."""
    with worker.machine.small_disk("/opt/test/small"):
        osc = worker.base.with_file("/opt/test/small/f", "old").with_file("/opt/test/beside", "1")
        worker.apply(osc)
        worker.machine.run(["sh", "-c", "head -c 100M /dev/zero > /opt/test/small/filler || true"])
        changed = osc.with_file("/opt/test/small/f", "new" * 5000).with_file("/opt/test/beside", "2")
        checksum = worker.publish(changed)
        worker.wait_event("OSCFailed", containing="/opt/test/small/f")
        assert worker.machine.read("/opt/test/small/f") == b"old"
        assert worker.machine.read("/opt/test/beside") == b"2"
        # Between two attempts nothing is left: a file of the moment may be seen, one that stays not.
        wait_for(lambda: not worker.temporary_files(), timeout=5, what="no temporary file")
        worker.machine.run(["rm", "/opt/test/small/filler"])
        worker.wait_applied(checksum, timeout=60)
        assert worker.differences(changed) == []
        worker.apply(worker.base)


def test_a_link_that_somebody_else_placed_is_not_followed(worker: Worker) -> None:
    """Contract 6.5: a directory link in a place that others may write fails that item only; nothing is written through it."""
    worker.machine.run(["sh", "-c", "mkdir -p /opt/test/open /opt/test/secret && chmod 1777 /opt/test/open"])
    worker.machine.run(["ln", "-s", "/opt/test/secret", "/opt/test/open/link"])
    worker.publish(worker.base.with_file("/opt/test/open/link/f", "x").with_file("/opt/test/plain", "x"))
    worker.wait_event("OSCFailed", containing="/opt/test/open/link/f")
    assert worker.machine.run(["ls", "/opt/test/secret"]).stdout == ""
    assert worker.machine.read("/opt/test/plain") == b"x"
    worker.machine.run(["rm", "-r", "/opt/test/open", "/opt/test/secret"])


def test_secret_refs_are_written_and_followed(worker: Worker) -> None:
    """Contract 6.5: a secretRef file is read past the cache; a missing Secret fails that item alone until it is there."""
    secrets = "/api/v1/namespaces/kube-system/secrets"
    document = worker.base.with_file("/opt/test/beside", "x").document()
    document["spec"]["files"].append(
        {"path": "/opt/test/ref", "content": {"secretRef": {"name": "ref-of-test", "dataKey": "k"}}}
    )
    checksum = worker.publish_bytes(json.dumps(document).encode())
    worker.wait_event("OSCFailed", containing="file /opt/test/ref")
    assert worker.machine.read("/opt/test/beside") == b"x"
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ref-of-test"}, "stringData": {"k": "v"}}
    worker.lab.api.create(secrets, body)
    worker.wait_applied(checksum, timeout=60)
    assert worker.machine.read("/opt/test/ref") == b"v"
    assert worker.machine.mode("/opt/test/ref") == 0o600
    worker.lab.api.delete(f"{secrets}/ref-of-test")


def test_an_outage_of_the_api_server_is_survived(worker: Worker) -> None:
    """Contract 1.7, 6.10: API server away: the process stays, units are untouched, no hot loop; afterwards heartbeat and OSC go on alone."""
    pid, kubelet = worker.machine.main_pid(AGENT_UNIT), worker.machine.main_pid("kubelet.service")
    lines = len(worker.machine.journal(AGENT_UNIT).splitlines())
    worker.lab.control_plane.stop_apiserver()
    try:
        started = time.monotonic()
        pattern = "Reconcile failed"
        wait_for(lambda: pattern in worker.machine.journal(AGENT_UNIT, lines=5) or None, timeout=30, what=pattern)
        wait_for(lambda: time.monotonic() - started > 10 or None, timeout=15, what="ten seconds of outage")
    finally:
        worker.lab.control_plane.start_apiserver()
    # One line for each failed attempt: exponential back-off leaves room for about a dozen in ten seconds.
    assert len(worker.machine.journal(AGENT_UNIT).splitlines()) - lines < 40
    wait_heartbeat(worker)
    worker.apply(worker.base.with_file("/opt/test/after", "x"))
    assert worker.machine.main_pid(AGENT_UNIT) == pid
    assert worker.machine.main_pid("kubelet.service") == kubelet


def test_a_frozen_api_server_is_survived(worker: Worker) -> None:
    """Contract 7.1: API server that answers nothing: heartbeats resume within a beat of its return."""
    pid = worker.machine.main_pid(AGENT_UNIT)
    worker.lab.control_plane.freeze_apiserver()
    try:
        started = time.monotonic()
        wait_for(lambda: time.monotonic() - started > 12 or None, timeout=15, what="twelve seconds")
    finally:
        worker.lab.control_plane.thaw_apiserver()
    wait_heartbeat(worker)
    assert worker.machine.main_pid(AGENT_UNIT) == pid


def test_half_open_connections_do_not_stop_the_heartbeat(worker: Worker) -> None:
    """Contract 7.1: packets of established connections are dropped, new ones work: the next renewal comes within two periods."""
    wait_heartbeat(worker)
    last = renewed(worker)
    assert worker.machine.drop_established(6443) > 0
    try:
        wait_for(lambda: renewed(worker) > last or None, timeout=40, what="heartbeat over a new connection")
        assert (renewed(worker) - last).total_seconds() < 25
    finally:
        worker.machine.restore_network()


def test_a_webhook_that_is_down_is_waited_for(worker: Worker) -> None:
    """Contract 4.8: 403 is transient everywhere: nothing is deleted, nothing ends, and all goes on afterwards."""
    pid = worker.machine.main_pid(AGENT_UNIT)
    worker.lab.counterparts.stop()
    try:
        checksum = worker.publish(worker.base.with_file("/opt/test/during", "x"))
        pattern = "Reconcile failed"
        wait_for(lambda: pattern in worker.machine.journal(AGENT_UNIT, lines=5) or None, timeout=30, what=pattern)
    finally:
        worker.lab.counterparts.start()
    worker.wait_applied(checksum, timeout=60)
    assert worker.machine.main_pid(AGENT_UNIT) == pid


def test_a_node_that_was_deleted_comes_back(worker: Worker) -> None:
    """Contract 1.8, 7.1: a deleted Node: the agent waits; when the kubelet registered again, checksum and heartbeat come back."""
    pid = worker.machine.main_pid(AGENT_UNIT)
    checksum = worker.applied()
    assert checksum is not None
    worker.lab.delete_node(worker.machine.name)
    worker.machine.systemctl("restart", "kubelet.service")
    worker.wait_applied(checksum, timeout=60)
    wait_for(worker.lease, timeout=40, what="Lease")
    assert worker.machine.main_pid(AGENT_UNIT) == pid


def test_user_data_that_runs_again_is_noticed(worker: Worker) -> None:
    """Contract 3: a reboot brings the first configuration back: said, the OSC's is written again, and then it is quiet."""
    path = worker.base.pool.agent_config_path
    first = worker.machine.read(path)
    config = worker.base.pool.agent_config(systemdUnitCheck={"syncPeriod": "45s"})
    newer = worker.base.with_file(path, config, mode=0o600)
    worker.apply(newer, timeout=40)
    worker.machine.write(path, first, 0o600)
    worker.machine.reboot()
    worker.wait_event("ConfigurationWrittenBack", timeout=60)
    wait_for(lambda: worker.machine.read(path) == config.encode() or None, timeout=30, what="the OSC's configuration")
    worker.apply(newer.with_file("/opt/test/f", "1"), timeout=40)
    pid = worker.machine.main_pid(AGENT_UNIT)
    wait_heartbeat(worker)
    assert worker.machine.main_pid(AGENT_UNIT) == pid
    worker.machine.write(path, b"", 0o600)
    worker.machine.systemctl("restart", AGENT_UNIT)
    worker.wait_event("ConfigurationDamaged", timeout=30)
    wait_for(lambda: worker.machine.read(path) == config.encode() or None, timeout=30, what="the OSC's configuration")
    wait_heartbeat(worker)
    assert worker.machine.read(f"{path}.damaged") == b""


LATE_SECRET, LATE_TOKEN = "gardener-opentelemetry-collector", f"{AGENT_FOLDER}/late-token"


@pytest.fixture(scope="module")
def quick(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A worker with a short sync period and a token."""
    with lab.removed_after(lab.add_machine("quick")) as machine:
        token = {
            "syncPeriod": "15s",
            "syncConfigs": [
                {"secretName": "gardener-valitail", "path": f"{AGENT_FOLDER}/auth-token"},
                {"secretName": LATE_SECRET, "path": LATE_TOKEN},
            ],
        }
        pool = lab.pool(agent)
        osc = {"secretName": "", "kubernetesVersion": pool.kubernetes_version, "syncPeriod": "15s"}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "gardener-valitail"},
            "stringData": {"token": "first"},
        }
        lab.api.ensure("/api/v1/namespaces/kube-system/secrets", body)
        from dataclasses import replace

        name = replace(pool, name="pool-quick").secret_name
        yield Worker.join(lab, machine, agent, token=token, operatingSystemConfig={**osc, "secretName": name})
        lab.api.delete("/api/v1/namespaces/kube-system/secrets/gardener-valitail")


def test_tokens_are_kept_fresh(quick: Worker) -> None:
    """Contract 7.3: a token is synced at start with 0640, and a changed one at the sync period."""
    path = f"{AGENT_FOLDER}/auth-token"
    wait_for(lambda: quick.machine.exists(path) or None, timeout=20, what="token file")
    assert quick.machine.mode(path) == 0o640
    quick.lab.api.patch("/api/v1/namespaces/kube-system/secrets/gardener-valitail", {"stringData": {"token": "second"}})
    wait_for(lambda: quick.machine.read(path) == b"second" or None, timeout=30, what="new token")


@pytest.fixture
def without_late_token(quick: Worker) -> Iterator[Worker]:
    """The worker; afterwards it has the late token no longer, and its own OSC."""
    yield quick
    quick.apply(quick.base, timeout=60)
    quick.lab.api.delete(f"/api/v1/namespaces/kube-system/secrets/{LATE_SECRET}")
    quick.machine.path(LATE_TOKEN).unlink(missing_ok=True)


def tries(worker: Worker) -> tuple[int, int]:
    """Return how often a unit was started, and how often the late token was asked for."""
    starts = worker.machine.journal("late.service").count("Starting late.service")
    asked = [one for one in worker.lab.requests() if (one.machine, one.name) == (worker.machine.name, LATE_SECRET)]
    return starts, len(asked)


@pytest.mark.parametrize("needed", [True, False], ids=["needed", "not needed"])
def test_a_unit_whose_token_is_missing_makes_no_loop(without_late_token: Worker, needed: bool) -> None:
    """Contract 6.3, 7.3: `filePaths` names a token that never comes: few starts and questions in a minute; all else is applied."""
    worker = without_late_token
    check = f"ExecStartPre=/usr/bin/test -s {LATE_TOKEN}" if needed else "ExecStartPre=/usr/bin/true"
    osc = worker.base.with_file("/opt/test/beside-a-token", "x").with_unit("beside.service", content=service())
    osc = osc.with_unit("late.service", content=service(extra=f"{check}\n"), enable=True, filePaths=[LATE_TOKEN])
    begun, before = time.monotonic(), tries(worker)
    checksum = worker.publish(osc)
    wait_for(
        lambda: worker.machine.unit("beside.service")["ActiveState"] == "active", timeout=15, what="the other unit"
    )
    assert worker.machine.read("/opt/test/beside-a-token") == b"x"
    wait_for(lambda: time.monotonic() - begun > 60, timeout=70, what="the end of a minute", interval=1)
    starts, asked = (now - then for now, then in zip(tries(worker), before, strict=True))
    # Back-off from 5 ms, doubled each time, comes to 14 attempts in a minute; one that succeeds is the only one.
    assert (5 if needed else 1) <= starts <= (20 if needed else 1)
    assert asked <= 20
    assert (worker.applied() == checksum) is not needed
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": LATE_SECRET}, "stringData": {"token": "late"}}
    worker.lab.api.create("/api/v1/namespaces/kube-system/secrets", secret)
    wait_for(lambda: worker.machine.exists(LATE_TOKEN), timeout=70, what="the token")
    worker.wait_applied(checksum, timeout=150)
    assert worker.machine.unit("late.service")["ActiveState"] == "active"


def test_drift_and_changed_secrets_are_noticed_at_the_sync_period(quick: Worker) -> None:
    """Contract 9 W14, W44: a file changed by hand and a changed Secret behind a secretRef are put right at syncPeriod."""
    secrets = "/api/v1/namespaces/kube-system/secrets"
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "drift-of-test"}, "stringData": {"k": "1"}}
    quick.lab.api.create(secrets, body)
    document = quick.base.with_file("/opt/test/mine", "x").document()
    document["spec"]["files"].append(
        {"path": "/opt/test/ref", "content": {"secretRef": {"name": "drift-of-test", "dataKey": "k"}}}
    )
    quick.wait_applied(quick.publish_bytes(json.dumps(document).encode()))
    quick.machine.write("/opt/test/mine", b"by hand")
    quick.lab.api.patch(f"{secrets}/drift-of-test", {"stringData": {"k": "2"}})
    wait_for(lambda: quick.machine.read("/opt/test/mine") == b"x" or None, timeout=40, what="repaired file")
    wait_for(lambda: quick.machine.read("/opt/test/ref") == b"2" or None, timeout=40, what="new content of the Secret")
    quick.lab.api.delete(f"{secrets}/drift-of-test")


def test_a_configuration_of_another_version_is_used(machine: Machine, lab: Lab, agent: AgentSource) -> None:
    """Contract 1.3: with only another version's file the agent says so and works."""
    worker = Worker.prepare(lab, machine, agent)
    path = worker.base.pool.agent_config_path
    other = f"{AGENT_FOLDER}/config-v1.149.0.yaml"
    machine.run(["mv", path, other])
    done = machine.run(["/opt/bin/gardener-node-agent", "bootstrap", f"--config-dir={AGENT_FOLDER}"], timeout=60)
    assert "config-v1.149.0.yaml" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (b"a: [", "not valid YAML"),
        (b'{"apiVersion": "nodeagent.config.gardener.cloud/v1alpha1", "kind": "X"}', "kind:"),
        (b'{"logLevel": 5}', "logLevel: "),
    ],
)
def test_an_unusable_configuration_is_explained(
    machine: Machine, lab: Lab, agent: AgentSource, content: bytes | None, problem: str
) -> None:
    """Contract 2: a configuration that is missing, malformed or wrong: exit code 1, a line per problem, no traceback."""
    worker = Worker.prepare(lab, machine, agent)
    path = worker.base.pool.agent_config_path
    if content is None:
        machine.run(["rm", path])
    else:
        machine.write(path, content, 0o600)
    done = machine.run(["/opt/bin/gardener-node-agent", f"--config-dir={AGENT_FOLDER}"], check=False)
    assert done.returncode == 1
    assert f"error: {path}: " in done.stderr
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
