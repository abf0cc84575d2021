"""containerd's configuration, registries, files out of images and static pods on a real machine."""

import hashlib
import json
import tomllib
from typing import Any

import pytest

from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.oci import Entry, Image
from tests.lab.pause import PAUSE_IMAGE
from tests.lab.registry import CA_FILE
from tests.lab.verify import image_leftovers
from tests.lab.worker_osc import AGENT_UNIT, KUBELET_UNIT, WorkerOsc
from tests.support.worker import Worker, service

CONTAINERD = "containerd.service"
CONFIG = "/etc/containerd/config.toml"
TOOL = "/opt/test/tool"
CRI = "io.containerd.grpc.v1.cri"


def effective_config(worker: Worker) -> Any:
    """Return what the real containerd makes of its configuration."""
    return tomllib.loads(worker.machine.run(["containerd", "config", "dump"]).stdout)


def started(worker: Worker, unit: str) -> str:
    """Return what changes with each start of a unit."""
    return worker.machine.unit(unit)["InvocationID"]


def starts(worker: Worker, unit: str) -> int:
    """Return how often systemd has started a unit since the machine runs."""
    return sum(line.startswith(f"Started {unit}") for line in worker.machine.journal(unit).splitlines())


def hosts(upstream: str) -> str:
    """Return the path of a registry's file."""
    return f"/etc/containerd/certs.d/{upstream}/hosts.toml"


@pytest.fixture
def configured(worker: Worker) -> WorkerOsc:
    """The worker's OSC with settings of containerd, applied; containerd is not touched again by what follows from them."""
    osc = worker.base.with_containerd()
    worker.apply(osc, timeout=60)
    return osc


def test_containerd_gets_its_configuration_with_one_restart(worker: Worker) -> None:
    """Contract 6.14: the real containerd reads it; restarted once, with the drop-in; the kubelet is not touched for it."""
    before, kubelet = started(worker, CONTAINERD), started(worker, KUBELET_UNIT)
    count, kubelets = starts(worker, CONTAINERD), starts(worker, KUBELET_UNIT)
    assert min(count, kubelets) > 0
    osc = worker.base.with_containerd(
        plugins=[{"path": [CRI], "values": {"max_concurrent_downloads": 7, "stats_collect_period": None}}]
    )
    worker.apply(osc, timeout=60)
    config = effective_config(worker)["plugins"][CRI]
    assert config["registry"]["config_path"] == "/etc/containerd/certs.d"
    assert config["sandbox_image"] == PAUSE_IMAGE
    assert config["max_concurrent_downloads"] == 7
    assert config["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is True
    assert started(worker, CONTAINERD) != before
    assert starts(worker, CONTAINERD) == count + 1
    assert started(worker, KUBELET_UNIT) == kubelet
    environment = worker.machine.systemctl("show", CONTAINERD, "--property=Environment")
    assert "PATH=/var/bin/containerruntimes:" in environment
    assert worker.machine.mode(CONFIG) == 0o644
    restarted = started(worker, CONTAINERD)
    worker.apply(osc.with_file("/etc/motd", "hello\n"))
    assert started(worker, CONTAINERD) == restarted
    worker.apply(osc.with_containerd(plugins=[{"path": [CRI], "values": {"max_concurrent_downloads": 8}}]), timeout=60)
    assert effective_config(worker)["plugins"][CRI]["max_concurrent_downloads"] == 8
    assert started(worker, CONTAINERD) != restarted
    assert starts(worker, CONTAINERD) == count + 2
    assert (started(worker, KUBELET_UNIT), starts(worker, KUBELET_UNIT)) == (kubelet, kubelets)


def test_w16_containerd_is_not_restarted_for_what_it_has(worker: Worker, configured: WorkerOsc) -> None:
    """Contract 9 W16: the file is not rewritten; a file that somebody emptied is put right, with one restart."""
    inode, before = worker.machine.path(CONFIG).stat().st_ino, starts(worker, CONTAINERD)
    complete = worker.machine.read(CONFIG)
    worker.apply(configured.with_file("/etc/motd", "hello\n"))
    assert worker.machine.path(CONFIG).stat().st_ino == inode
    assert starts(worker, CONTAINERD) == before
    worker.machine.write(CONFIG, b"version = 2\n")
    worker.apply(configured.with_file("/etc/motd", "hello again\n"), timeout=60)
    assert effective_config(worker)["plugins"][CRI]["sandbox_image"] == PAUSE_IMAGE
    assert starts(worker, CONTAINERD) == before + 1
    # What the operating system's image said of runc is in no OSC; pods need it.
    worker.machine.write(CONFIG, complete)
    worker.machine.systemctl("restart", CONTAINERD)


def test_w32_a_containerd_that_is_down_holds_back_only_itself(worker: Worker, configured: WorkerOsc) -> None:
    """Contract 9 W32: files and units are applied, the configuration fails alone; it follows when containerd is back."""
    worker.machine.systemctl("stop", CONTAINERD)
    changed = configured.with_containerd(plugins=[{"path": [CRI], "values": {"max_concurrent_downloads": 9}}])
    changed = changed.with_file("/etc/motd", "still\n").with_unit("motd.service", content=service(), enable=True)
    checksum = worker.publish(changed)
    worker.wait_event("OSCFailed", containing="configuration of containerd")
    assert worker.machine.read("/etc/motd") == b"still\n"
    assert worker.machine.unit("motd.service")["ActiveState"] == "active"
    worker.machine.systemctl("start", CONTAINERD)
    worker.wait_applied(checksum, timeout=60)
    assert effective_config(worker)["plugins"][CRI]["max_concurrent_downloads"] == 9


def test_registries_are_written_and_removed(worker: Worker, configured: WorkerOsc) -> None:
    """Contract 6.15: bytes of `hosts.toml`; the directory goes with the registry; containerd is not restarted for it."""
    before = started(worker, CONTAINERD)
    osc = configured.with_registry(
        {"upstream": "docker.io", "server": "https://registry-1.docker.io", "hosts": [{"url": "https://mirror.test"}]}
    )
    worker.apply(osc)
    assert worker.machine.read(hosts("docker.io")) == (
        b'# managed by gardener-node-agent\nserver = "https://registry-1.docker.io"\n\n'
        b'[host."https://mirror.test"]\n  capabilities = ["pull","resolve"]\n\n'
    )
    assert worker.machine.mode(hosts("docker.io")) == 0o644
    worker.apply(configured)
    assert not worker.machine.exists("/etc/containerd/certs.d/docker.io")
    assert started(worker, CONTAINERD) == before


def wait_mirror_missed(worker: Worker) -> None:
    """Wait until the agent says that it waits for the mirror."""
    wait_for(
        lambda: any(item["name"] == "registry silent.test" for item in worker.status()["items"]) or None,
        timeout=20,
        what="the registry to be waited for",
    )


def update_agent(worker: Worker, osc: WorkerOsc) -> str:
    """Publish an OSC with another configuration of the agent, and wait until another process has it; returns the checksum."""
    path, before = worker.base.pool.agent_config_path, worker.machine.main_pid(AGENT_UNIT)
    config = worker.base.files[path]["content"]["inline"]["data"] + "# beside a mirror that is down\n"
    checksum = worker.publish(osc.with_file(path, config, mode=0o600))
    wait_for(lambda: worker.machine.main_pid(AGENT_UNIT) != before, timeout=30, what="another process of the agent")
    assert worker.machine.read(path) == config.encode()
    return checksum


def test_a_mirror_that_is_down_holds_back_only_itself(worker: Worker, configured: WorkerOsc, lab: Lab) -> None:
    """Contract 6.15: a mirror that does not answer is asked again and again; all else, our own update and heartbeat too, goes on."""
    registry = lab.registry("plain")
    silent = {**registry.hosts_entry(), "upstream": "silent.test", "readinessProbe": True}
    registry.freeze()
    try:
        osc = configured.with_registry(silent)
        osc = osc.with_registry({"upstream": "other.test", "server": "https://other.test"})
        osc = osc.with_unit("motd.service", content=service(), enable=True)
        worker.publish(osc)
        wait_mirror_missed(worker)
        assert worker.machine.unit("motd.service")["ActiveState"] == "active"
        assert worker.machine.exists(hosts("other.test"))
        checksum, before = update_agent(worker, osc), worker.lease()
        assert before is not None
        wait_mirror_missed(worker)
        wait_for(
            lambda: (worker.lease() or before)["spec"]["renewTime"] > before["spec"]["renewTime"],
            timeout=25,
            what="a heartbeat beside the mirror",
        )
        assert not worker.machine.exists(hosts("silent.test"))
        assert worker.applied() != checksum
    finally:
        registry.thaw()
    worker.wait_applied(checksum, timeout=30)
    assert worker.machine.exists(hosts("silent.test"))


def test_a_probe_trusts_only_the_ca_that_is_named(worker: Worker, configured: WorkerOsc, lab: Lab) -> None:
    """Contract 6.15: with `caCerts` only these count; a relative path is below the upstream's directory."""
    registry = lab.registry("tls")
    entry = registry.hosts_entry()
    host = {**entry["hosts"][0], "caCerts": ["ca.crt"]}
    probed = {**entry, "upstream": "own-ca.test", "hosts": [host], "readinessProbe": True}
    checksum = worker.publish(configured.with_registry(probed))
    wait_for(
        lambda: any("own-ca.test" in item["name"] for item in worker.status()["items"]) or None,
        timeout=20,
        what="the registry to be refused",
    )
    worker.machine.write("/etc/containerd/certs.d/own-ca.test/ca.crt", registry.ca_pem)
    worker.wait_applied(checksum, timeout=30)


def test_programs_come_out_of_images(worker: Worker, lab: Lab, agent: Any) -> None:
    """Contract 6.16, 9 W14: as Gardener delivers kubelet and agent; changed, it is fetched again; without it the original is back."""
    image = lab.worker_images(agent).node_agent
    worker.machine.write(TOOL, b"before")
    osc = worker.base.with_image_file(TOOL, image, "/gardener-node-agent")
    worker.apply(osc, timeout=90)
    assert worker.differences(osc) == []
    assert image_leftovers(worker.machine) == []
    assert worker.machine.run(["ls", "/var/lib/gardener-node-agent/tmp"]).stdout.split() == []
    program = worker.machine.read(TOOL)
    worker.machine.run(["sh", "-c", f"printf x | dd of={TOOL} bs=1 seek=1000 conv=notrunc"])
    worker.wait_event("FileMismatch", containing=TOOL, timeout=30)
    wait_for(lambda: worker.machine.read(TOOL) == program or None, timeout=60, what="the program as it was")
    assert image_leftovers(worker.machine) == []
    worker.apply(worker.base, timeout=60)
    assert worker.machine.read(TOOL) == b"before"


def test_a_tag_that_moved_is_said_and_makes_no_loop(worker: Worker, lab: Lab) -> None:
    """Contract 6.16, 9 W14: the tag moves: nothing happens; the file is damaged: once more it is fetched, as the tag says now, with an event."""
    registry, repository = lab.registry(), "moving/tool"

    def push(content: bytes) -> bytes:
        registry.push(Image.build([Entry("tool", content)]), repository, "v1")
        return content

    def told() -> int:
        events = [event for event in worker.events("FileMismatch") if TOOL in event["message"]]
        return sum(event.get("count") or (event.get("series") or {}).get("count", 1) for event in events)

    first, before = push(b"first\n" * 1000), told()
    osc = worker.base.with_file(CA_FILE, registry.ca_pem, mode=0o644).with_registry(registry.hosts_entry())
    osc = osc.with_image_file(TOOL, f"{registry.host}/{repository}:v1", "/tool")
    worker.apply(osc, timeout=90)
    assert worker.machine.read(TOOL) == first
    assert "Image is named by a tag, not by a digest" in worker.machine.journal(AGENT_UNIT)
    second, pulls = push(b"second\n" * 1000), registry.served(repository)
    worker.apply(osc.with_file("/etc/motd", "the tag has moved\n"))
    assert (worker.machine.read(TOOL), registry.served(repository)) == (first, pulls)
    worker.machine.write(TOOL, b"damaged", 0o755)
    wait_for(lambda: worker.machine.read(TOOL) == second, timeout=60, what="the file as the tag says now")
    wait_for(lambda: told() > before, timeout=15, what="an event of the damage")
    wait_for(lambda: worker.status()["phase"] == "applied", timeout=20, what="the agent to have finished")
    pulls = registry.served(repository)
    for number in range(3):
        worker.apply(osc.with_file("/etc/motd", f"once more {number}\n"))
    assert (worker.machine.read(TOOL), registry.served(repository)) == (second, pulls)
    assert told() == before + 1
    (moved,) = [event["message"] for event in worker.events("ImageTagMoved") if TOOL in event["message"]]
    digests = [hashlib.sha256(content).hexdigest() for content in (first, second)]
    assert all(word in moved for word in (f"{registry.host}/{repository}:v1", *digests))
    assert "Tag of an image has moved" in worker.machine.journal(AGENT_UNIT)
    assert image_leftovers(worker.machine) == []


def test_static_pods_are_waited_for(worker: Worker) -> None:
    """Contract 6.12: the real kubelet runs them; the OSC is reported once the pod of this version is ready."""

    def with_pod(version: str) -> WorkerOsc:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "static",
                "namespace": "kube-system",
                "labels": {"static-pod": "true"},
                "annotations": {"gardener.cloud/config.mirror": version},
            },
            "spec": {
                "hostNetwork": True,
                "containers": [{"name": "c", "image": PAUSE_IMAGE, "command": ["sleep", "36000"]}],
                "terminationGracePeriodSeconds": 1,
            },
        }
        return worker.base.with_file("/etc/kubernetes/manifests/static.yaml", json.dumps(pod), mode=0o600)

    def mirror() -> Any:
        return worker.lab.api.find(f"/api/v1/namespaces/kube-system/pods/static-{worker.machine.name}")

    for version in ("v1", "v2"):
        worker.apply(with_pod(version), timeout=90)
        assert mirror()["metadata"]["annotations"]["gardener.cloud/config.mirror"] == version
        assert mirror()["status"]["phase"] == "Running"
    worker.apply(worker.base)
    wait_for(lambda: mirror() is None or None, timeout=60, what="the static pod to go")
