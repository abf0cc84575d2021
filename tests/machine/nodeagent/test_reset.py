"""A worker node becomes a machine again: compared with what it was before it joined, and joined once more."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.lab import data_disk
from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.data_disk import TOOLS_PATH, DataDisk
from tests.lab.machine import Machine
from tests.lab.pause import PAUSE_IMAGE
from tests.lab.worker_osc import AGENT_BINARY, AGENT_FOLDER, WorkerOsc
from tests.support.machine_tree import Tree
from tests.support.worker import Worker, service

pytestmark = pytest.mark.machine

RESET = [AGENT_BINARY, "reset", f"--config-dir={AGENT_FOLDER}"]
SUCCESS = "Everything that gardener-node-agent had brought to this machine is gone; it can join again.\n"
POD_ADDRESSES = "/var/lib/cni/networks/lab"

# Folders stay (contract 6.5, 8.4), empty; the agent's binary came with user data and is no file of this OSC.
LEFT = re.compile(
    r"^\+(/var/lib/gardener-node-agent|/opt/bin|/etc/kubernetes(/manifests)?|/opt/test(/deep)?|/etc/sysctl\.d"
    r"|/etc/containerd/(conf|certs)\.d|/var/bin(/containerruntimes)?)\|d 755 0:0 $"
    r"|^\+/opt/bin/gardener-node-agent\|f "
)


def rich(base: WorkerOsc) -> WorkerOsc:
    """Return an OSC with everything that a reset has to know."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "static", "namespace": "kube-system", "labels": {"static-pod": "true"}},
        "spec": {
            "containers": [
                {"name": "main", "image": PAUSE_IMAGE, "volumeMounts": [{"name": "memory", "mountPath": "/memory"}]}
            ],
            "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
        },
    }
    osc = base.with_file("/etc/kubernetes/manifests/static.yaml", json.dumps(pod))
    osc = osc.with_file("/opt/test/deep/file", "x", mode=0o755)
    osc = osc.with_file("/etc/of-another-host", "x", hostName="another-host")
    drop_in = [{"name": "10-test.conf", "content": "[Unit]\nDescription=changed\n"}]
    osc = osc.with_unit("reset-runs.service", content=service(), dropIns=drop_in)
    osc = osc.with_unit("reset-fails.service", content=service(command="/bin/false", kind="oneshot"), enable=False)
    osc = osc.with_file("/etc/replaced", "by the OSC").with_unit("of-the-os-too.service", content=service("the OSC"))
    osc = osc.with_containerd(sandbox_image=PAUSE_IMAGE, cgroup_driver="systemd")
    osc = osc.with_registry({"upstream": "example.org", "hosts": [{"url": "https://mirror.example.org"}]})
    return osc.with_unit("containerd.service", dropIns=drop_in)


def apply(worker: Worker, osc: WorkerOsc) -> None:
    """Apply it and wait until its Pod runs."""
    worker.apply(osc, timeout=120)
    machine = worker.machine
    listed = ["ctr", "-n", "k8s.io", "tasks", "list", "-q"]
    wait_for(lambda: len(machine.run(listed).stdout.split()) == 2 or None, timeout=60, what="the Pod")
    assert addresses(machine) != []


def addresses(machine: Machine) -> list[str]:
    """Return the addresses of Pods that the network plugin has given away."""
    if not machine.exists(POD_ADDRESSES):
        return []
    return [name for name in machine.run(["ls", POD_ADDRESSES]).stdout.split() if name[0].isdigit()]


def unexpected(before: Tree, machine: Machine) -> list[str]:
    """Return what is other than before the join and may not be."""
    found = before.differences(Tree.of(machine))
    left = [line for line in found if LEFT.search(line)]
    for line in left:
        if "|d " in line:
            folder = line[1:].split("|")[0]
            inside = machine.run(["find", folder, "!", "-type", "d"]).stdout.split()
            assert inside == [], f"{folder} is not empty"
    return [line for line in found if line not in left]


def bring_back(machine: Machine, agent: AgentSource) -> None:
    """Put the agent's program back if a reset took it: it came with the OSC, out of an image."""
    if not machine.exists(AGENT_BINARY):
        agent.install(machine)


@pytest.fixture
def before(machine: Machine) -> Tree:
    """The fresh machine before it joins: with things of the operating system that a reset must not touch."""
    machine.write("/etc/of-another-host", b"of the operating system")
    machine.write("/etc/replaced", b"of the operating system", 0o640)
    machine.write("/etc/systemd/system/of-the-os-too.service", service("os").encode())
    machine.write("/etc/systemd/system/containerd.service.d/50-os.conf", b"[Unit]\n")
    machine.write("/etc/systemd/system/of-the-os.service", service("os").encode())
    machine.systemctl("daemon-reload")
    machine.systemctl("enable", "--now", "of-the-os.service")
    return Tree.of(machine)


def test_a_machine_is_as_before_and_joins_again(machine: Machine, before: Tree, lab: Lab, agent: AgentSource) -> None:
    """Contract 8.4, 9 W41: files, units, enablement, Pods with their addresses and mounts are as before the join, which succeeds again."""
    worker = Worker.join(lab, machine, agent)
    apply(worker, rich(worker.base))
    lab.delete_node(machine.name)
    done = machine.run(RESET, timeout=180)
    assert done.stdout == SUCCESS
    assert "Stopping agent, kubelet and containers: done" in done.stderr.splitlines()
    assert unexpected(before, machine) == []
    assert addresses(machine) == []
    assert machine.unit("containerd.service")["ActiveState"] == "active"
    assert machine.unit("containerd.service")["Description"] == "containerd container runtime"
    bring_back(machine, agent)
    again = machine.run(RESET, timeout=60)
    assert again.stdout == SUCCESS
    worker = Worker.join(lab, machine, agent)
    apply(worker, rich(worker.base))


def test_a_reset_that_is_killed_is_completed_by_the_next(
    machine: Machine, before: Tree, lab: Lab, agent: AgentSource
) -> None:
    """Contract 8.4: SIGKILL at removals and messages all over a reset; the program that was left by it can be run again, and the last run succeeds."""
    worker = Worker.join(lab, machine, agent)
    apply(worker, rich(worker.base))
    lab.delete_node(machine.name)
    kills = 0
    for calls, numbers in {
        "sendmsg,sendto": (1, 3, 6, 12, 20, 30),
        "unlink,unlinkat,rmdir": (1, 2, 4, 3, 8, 5, 2, 20, 9),
    }.items():
        for number in numbers:
            inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={number}"]
            done = machine.run(["strace", "-f", "-qq", "-o", "/run/strace", *inject, *RESET], timeout=180, check=False)
            kills += done.returncode != 0
            if not machine.exists(AGENT_BINARY):
                # The last of all to go: nothing else is left that a reset would have to do.
                assert machine.run(["ls", "-A", AGENT_FOLDER]).stdout == ""
                bring_back(machine, agent)
    print(f"kills: {kills}")
    assert kills >= 8
    bring_back(machine, agent)
    assert machine.run(RESET, timeout=180).stdout == SUCCESS
    assert unexpected(before, machine) == []
    assert addresses(machine) == []


def test_w41_a_containerd_that_hangs_holds_nothing_up(
    machine: Machine, before: Tree, lab: Lab, agent: AgentSource
) -> None:
    """Contract 9 W41: with a frozen container runtime the Pods' processes end all the same, and everything else is done."""
    # The Pod's processes ignore SIGTERM; systemd would wait 90 s.
    machine.write("/run/systemd/system.conf.d/hurry.conf", b"[Manager]\nDefaultTimeoutStopSec=3s\n")
    machine.systemctl("daemon-reexec")
    worker = Worker.join(lab, machine, agent)
    apply(worker, rich(worker.base))
    lab.delete_node(machine.name)
    assert machine.unit("kubepods.slice")["ActiveState"] == "active"
    main = machine.unit("containerd.service")["MainPID"]
    machine.run(["kill", "-STOP", main])
    try:
        done = machine.run(RESET, timeout=240)
    finally:
        machine.run(["kill", "-CONT", main], check=False)
    assert done.stdout == SUCCESS
    assert "The container runtime does not answer; going on without it" in done.stderr
    assert machine.unit("kubepods.slice")["ActiveState"] == "inactive"
    busy = machine.run(["pgrep", "-f", "2147483647"], check=False)
    assert busy.stdout == "", "a container still runs"
    assert [
        line for line in unexpected(before, machine) if line[1:].startswith(("/etc", "/opt", "/var/lib/kubelet"))
    ] == []


@pytest.fixture
def volume(machine: Machine, tmp_path: Path) -> Iterator[DataDisk]:
    """An empty disk of the machine, found by label as udev would have it."""
    with data_disk.data_disk(machine, "sdb") as disk:
        if not data_disk.kernel_has_quotas(tmp_path):
            data_disk.without_quotas(machine)
        machine.run(["mkdir", "-p", "/dev/disk/by-label"])
        machine.run(["ln", "-s", disk.node, "/dev/disk/by-label/KUBEDEV"])
        yield disk


def join_with_volume(lab: Lab, machine: Machine, agent: AgentSource, disk: DataDisk) -> Worker:
    """Let a machine join whose user data asks for a data volume, and whose OSC mounts it at boot."""
    worker = Worker.prepare(lab, machine, agent)
    pool = worker.base.pool
    config = {**yaml.safe_load(pool.agent_config()), "bootstrap": {"kubeletDataVolumeSize": disk.size_bytes}}
    machine.write(pool.agent_config_path, yaml.safe_dump(config).encode(), 0o600)
    mount = (
        "[Unit]\nDescription=mount /var/lib/kubelet on kubelet data device\nBefore=kubelet.service\n[Mount]\n"
        "What=/dev/disk/by-label/KUBEDEV\nWhere=/var/lib/kubelet\nType=ext4\nOptions=defaults,errors=remount-ro\n"
        "[Install]\nWantedBy=local-fs.target"
    )
    worker = replace(worker, base=worker.base.with_unit("var-lib-kubelet.mount", content=mount))
    checksum = worker.publish(worker.base)
    machine.run([AGENT_BINARY, "bootstrap", f"--config-dir={AGENT_FOLDER}"], timeout=120, env={"PATH": TOOLS_PATH})
    worker.wait_applied(checksum, timeout=90)
    return worker


def test_a_data_volume_is_empty_afterwards_and_used_again(
    machine: Machine, volume: DataDisk, lab: Lab, agent: AgentSource
) -> None:
    """Contract 8.3, 8.4: the kubelet runs on the volume; a reset empties and unmounts it; the next join mounts it and gets a new Node."""
    before = Tree.of(machine)
    identities = []
    for _ in range(2):
        worker = join_with_volume(lab, machine, agent, volume)
        assert f"{volume.node} /var/lib/kubelet ext4" in machine.run(["cat", "/proc/mounts"]).stdout
        identities.append(machine.run(["cat", "/var/lib/kubelet/pki/kubelet-client-current.pem"]).stdout)
        assert worker.differences(worker.base) == []
        lab.delete_node(machine.name)
        assert machine.run(RESET, timeout=180).stdout == SUCCESS
        assert unexpected(before, machine) == []
    assert identities[0] != identities[1]
    machine.run(["mount", volume.node, "/mnt"])
    assert machine.run(["ls", "-A", "/mnt"]).stdout == ""
    machine.run(["umount", "/mnt"])


def test_files_in_a_mount_that_stays_are_not_deleted(tmp_path: Path) -> None:
    """Contract 9 W41: a file system that is still mounted below a folder is not entered, and named; all else goes."""
    script = f"""
import subprocess
from pathlib import Path
from agents.core.trees import NotEmptied, remove_content
folder = Path({str(tmp_path)!r}) / "kubelet"
for name in ("pods/a/mounted", "pods/b", "mounted-too"):
    (folder / name).mkdir(parents=True)
(folder / "pods/b/file").write_text("x")
for name in ("pods/a/mounted", "mounted-too"):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder / name)], check=True)
    (folder / name / "precious").write_text("kept")
same = folder / "pods/a/same-file-system"
same.mkdir()
(Path({str(tmp_path)!r}) / "data").mkdir()
(Path({str(tmp_path)!r}) / "data/precious").write_text("kept")
subprocess.run(["mount", "--bind", {str(tmp_path / "data")!r}, str(same)], check=True)
try:
    remove_content(folder)
except NotEmptied as error:
    print(error.fields["left"])
print(sorted(path.read_text() for path in folder.rglob("precious")))
print((folder / "pods/b").exists())
"""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    left, precious, other = done.stdout.splitlines()
    assert sorted(left.split("; ")) == [
        "mounted-too: something is mounted there",
        "pods/a/mounted: something is mounted there",
        "pods/a/same-file-system: something is mounted there",
    ]
    assert precious == "['kept', 'kept', 'kept']"
    assert other == "False"
    assert (tmp_path / "data/precious").read_text() == "kept"
