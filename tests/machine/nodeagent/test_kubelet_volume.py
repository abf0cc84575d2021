"""`bootstrap` with a data volume: a real disk is formatted with the real programs, and killed at each of them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nodeagent.host.block_devices import KernelBlockDevices
from tests.lab import data_disk, disks
from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.data_disk import MOUNT_LOG, TOOLS_PATH, DataDisk
from tests.lab.errors import LabError
from tests.lab.machine import Machine
from tests.lab.userdata import hand_program
from tests.lab.worker_osc import AGENT_BINARY, AGENT_FOLDER, AGENT_UNIT, WorkerPool

pytestmark = pytest.mark.machine

SIZE = 64 * 1024 * 1024
KUBELET = "/var/lib/kubelet"
SCRATCH = "/run/gardener-node-agent/kubelet-data-volume"
COUNTER = "/run/lab-calls"
PROGRAMS = ("blkid", "mkfs.ext4", "mount", "cp", "sync", "umount", "tune2fs")

# Kills its parent, the agent, at the N-th call of any program: before it, in the middle of it, or after it.
_KILLER = f"""\
#!/bin/sh
calls=$(( $(cat {COUNTER}/calls 2>/dev/null || echo 0) + 1 ))
echo $calls > {COUNTER}/calls
echo "$calls ${{0##*/}}" >> {COUNTER}/log
real=/usr/sbin/${{0##*/}}; [ -x $real ] || real=/usr/bin/${{0##*/}}
[ ${{0##*/}} != mount ] || [ ! -x {COUNTER}/mount ] || real={COUNTER}/mount
[ $calls != "$(cat {COUNTER}/at 2>/dev/null)" ] || case $(cat {COUNTER}/when) in
  before) kill -9 $PPID; exit 1 ;;
  amid) timeout -s KILL 0.004 "$real" "$@"; kill -9 $PPID; exit 1 ;;
  after) "$real" "$@"; kill -9 $PPID; exit 1 ;;
esac
exec "$real" "$@"
"""


class Node:
    """A machine with user data that asks for a data volume, and what a test does with it."""

    def __init__(self, machine: Machine, pool: WorkerPool, disk: DataDisk) -> None:
        self.machine, self.disk = machine, disk
        config = yaml.safe_load(pool.agent_config())
        config["bootstrap"] = {"kubeletDataVolumeSize": disk.size_bytes}
        machine.write(pool.agent_config_path, yaml.safe_dump(config).encode(), 0o600)
        idle = b"[Service]\nExecStart=\nExecStart=/usr/bin/sleep infinity\n"  # this is not about joining
        machine.write(f"/run/systemd/system/{AGENT_UNIT}.d/idle.conf", idle)

    def bootstrap(self) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end."""
        command = [AGENT_BINARY, "bootstrap", f"--config-dir={AGENT_FOLDER}"]
        return self.machine.run(command, timeout=120, check=False, env={"PATH": TOOLS_PATH})

    def fill(self) -> None:
        """Put something into the kubelet's directory that is easily lost on the way."""
        self.machine.run(
            ["sh", "-c", f"""
            umask 022; mkdir -p {KUBELET}/pki/deep; cd {KUBELET}; chmod 0755 .
            echo one > file; chmod 4751 file; chown 12:34 file; touch -d '2020-01-02 03:04:05.6' file
            echo two > .hidden; chmod 0600 .hidden; ln -s file link; ln -f file pki/hard; ln -s nowhere pki/dangling
            chmod 0700 pki/deep; mkfifo pipe; printf x | dd of=sparse bs=1 seek=1000000 2>/dev/null
            setfattr -n user.test -v value file 2>/dev/null || true
            """]
        )  # fmt: skip

    def listing(self) -> str:
        """Return names, modes, owners, times, links and contents below the kubelet's directory."""
        script = (
            f"cd {KUBELET}; find . -name lost+found -prune -o -printf '%P %y %m %U:%G %l ' "
            "\\( -type d -printf '\\n' -o -printf '%n %T@ %s\\n' \\) | sort; "
            "find . -type f ! -path './lost+found*' -exec sha256sum {} + | sort"
        )
        return self.machine.run(["sh", "-c", script]).stdout

    def mounts(self) -> list[tuple[str, str]]:
        """Return where the disk is mounted, and with which options."""
        lines = self.machine.run(["cat", "/proc/mounts"]).stdout.splitlines()
        fields = [line.split() for line in lines]
        return [(found[1], found[3]) for found in fields if found[0] == self.disk.node]

    def label(self) -> str:
        """Return the label of the disk's file system, empty if there is none."""
        done = self.machine.run(["blkid", "-p", "-o", "value", "-s", "LABEL", self.disk.node], check=False)
        return done.stdout.strip()

    def features(self) -> str:
        """Return the features of the file system that was mounted first: as formatted, before the lab touched it."""
        if self.machine.exists(MOUNT_LOG):
            return self.machine.read(MOUNT_LOG).decode().splitlines()[0]
        return self.machine.run(["dumpe2fs", "-h", self.disk.node]).stdout

    def wipe(self) -> None:
        """Make it a machine before its first bootstrap again."""
        self.machine.run(
            ["sh", "-c", f"""
            for point in {KUBELET} {SCRATCH}; do while umount $point 2>/dev/null; do :; done; done
            systemctl stop {AGENT_UNIT} 2>/dev/null; rm -f /etc/systemd/system/{AGENT_UNIT}
            rm -rf {KUBELET} {SCRATCH} {COUNTER}/* {MOUNT_LOG}; dd if=/dev/zero of={self.disk.node} bs=1M count=8 conv=fsync 2>/dev/null
            """]
        )  # fmt: skip


@pytest.fixture(scope="module")
def quotas(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this kernel can mount ext4 with quotas."""
    return data_disk.kernel_has_quotas(tmp_path_factory.mktemp("quotas"))


@pytest.fixture(scope="module")
def prepared(lab: Lab, agent: AgentSource, quotas: bool) -> Iterator[Node]:
    """A machine with an empty disk, and a second one of the same size that holds somebody's data."""
    with lab.removed_after(lab.add_machine("volume")) as machine, data_disk.data_disk(machine, "sdb") as foreign:
        subprocess.run(["mkfs.ext4", "-q", "-L", "DATA", str(foreign.device)], check=True)
        pool = hand_program(machine, lab, agent=agent)
        if not quotas:
            data_disk.without_quotas(machine)
        with data_disk.data_disk(machine, "sdc", size_bytes=SIZE) as disk:
            before = _digest(foreign.file)
            yield Node(machine, pool, disk)
            assert _digest(foreign.file) == before, "somebody's disk was written to"


def _digest(file: Path) -> str:
    return subprocess.run(["sha256sum", str(file)], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def node(prepared: Node) -> Iterator[Node]:
    """The module's machine as before its first bootstrap, with something in the kubelet's directory."""
    prepared.wipe()
    prepared.fill()
    yield prepared
    prepared.wipe()


def assert_ready(node: Node, content: str, *, quotas: bool) -> None:
    """The volume is complete and mounted where it belongs, and nowhere else."""
    assert node.label() == "KUBEDEV"
    ((point, options),) = node.mounts()
    assert point == KUBELET
    assert {"rw", "errors=remount-ro", *(["prjquota"] if quotas else [])} <= set(options.split(","))
    assert node.listing() == content
    assert not node.machine.exists(SCRATCH)


def test_w20_the_volume_is_formatted_filled_and_mounted(node: Node, quotas: bool) -> None:
    """Contract 8.3, 9 W20: ext4 with label, project quotas and no lazy initialisation; content with all attributes; options."""
    content = node.listing()
    assert node.bootstrap().returncode == 0
    assert_ready(node, content, quotas=quotas)
    features = node.features()
    assert "quota" in features.split()
    assert "project" in features.split()
    for kind in ("User", "Group", "Project"):
        assert f"{kind}-quota" in features or f"{kind} quota inode" in features
    if not quotas:
        *_, last = node.machine.read(MOUNT_LOG).decode().splitlines()
        assert f"mount -t ext4 -o defaults,prjquota,errors=remount-ro {node.disk.node} {KUBELET} |" in last
    assert node.machine.run(["lsattr", "-pd", KUBELET]).returncode == 0
    assert "lazy" not in node.machine.run(["dumpe2fs", node.disk.node], check=False).stdout.lower()
    assert "ITABLE_ZEROED" in node.machine.run(["dumpe2fs", node.disk.node], check=False).stdout


def test_w20_a_second_run_only_mounts_what_is_not_mounted(node: Node, quotas: bool) -> None:
    """Contract 8.3, 9 W20: a labelled device is never formatted again; after a reboot the next run mounts it."""
    content = node.listing()
    node.bootstrap()
    node.machine.write(f"{KUBELET}/later", b"kept")
    content = node.listing()
    node.bootstrap()
    assert_ready(node, content, quotas=quotas)
    node.machine.run(["umount", KUBELET])
    node.bootstrap()
    assert_ready(node, content, quotas=quotas)


def test_w20_a_kill_at_any_program_is_completed_by_the_next_run(node: Node, quotas: bool) -> None:
    """Contract 8.3, 9 W20: SIGKILL before, in the middle of and after each program that is run; one more run and all is well.

    While content may be missing, the label is not there.
    """
    machine = node.machine
    machine.run(["mkdir", "-p", COUNTER])
    kills = 0
    with _killer(machine, quotas=quotas):
        for when in ("before", "amid", "after"):
            for number in range(1, 100):
                node.wipe()
                node.fill()
                content = node.listing()
                if not quotas:
                    machine.run(["cp", "/run/lab-tools/real-mount", f"{COUNTER}/mount"])
                machine.write(f"{COUNTER}/at", str(number).encode())
                machine.write(f"{COUNTER}/when", when.encode())
                first = node.bootstrap()
                if first.returncode == 0:
                    break
                kills += 1
                assert node.label() != "KUBEDEV" or _complete(node, content), (when, number)
                machine.write(f"{COUNTER}/at", b"none")
                node.bootstrap()
                log = machine.read(f"{COUNTER}/log").decode()
                try:
                    assert_ready(node, content, quotas=quotas)
                except AssertionError as error:
                    raise AssertionError(f"killed {when} {number}\n{log}") from error
    print(f"kills: {kills}")
    assert kills > 30


def _complete(node: Node, content: str) -> bool:
    """Whether the volume, mounted by ourselves, has all the content."""
    node.machine.run(["sh", "-c", f"mountpoint -q {KUBELET} || /usr/bin/mount -t ext4 {node.disk.node} {KUBELET}"])
    found = node.listing()
    node.machine.run(["umount", KUBELET])
    return found == content


class _killer:  # noqa: N801 - used like a function
    """Puts the killer before every program that the agent runs."""

    def __init__(self, machine: Machine, *, quotas: bool) -> None:
        self._machine, self._quotas = machine, quotas

    def __enter__(self) -> None:
        if not self._quotas:
            self._machine.run(["cp", "/run/lab-tools/mount", "/run/lab-tools/real-mount"])
        data_disk.install_tools(self._machine, dict.fromkeys(PROGRAMS, _KILLER))

    def __exit__(self, *_exception: object) -> None:
        self._machine.run(["sh", "-c", f"cd /run/lab-tools; rm {' '.join(PROGRAMS)}"])
        if not self._quotas:
            self._machine.run(["mv", "/run/lab-tools/real-mount", "/run/lab-tools/mount"])


def test_w20_a_device_in_use_is_refused(node: Node) -> None:
    """Contract 8.3, 9 W20: a disk without any signature that is open for somebody alone is not formatted, and that is said."""
    script = (
        f"import os, time; os.open({node.disk.node!r}, os.O_RDONLY | os.O_EXCL); print('held', flush=True)\n"
        "while not os.path.exists('/run/lab-release'): time.sleep(0.05)"
    )
    with node.machine.popen(["python3", "-c", script]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = node.bootstrap()
        node.machine.write("/run/lab-release", b"")
    assert done.returncode == 1
    assert f"{node.disk.node} is in use" in done.stdout
    assert "/dev/sdb has ext4 labelled DATA" in done.stdout
    assert node.label() == ""
    assert not node.machine.exists(f"/etc/systemd/system/{AGENT_UNIT}")


def test_the_machine_sees_no_disk_of_the_host(prepared: Node) -> None:
    """The lab shows a machine nothing that it did not create: no other device, and no node of one."""
    listed = prepared.machine.run(["ls", "/sys/class/block"]).stdout.split()
    assert listed == ["sdb", "sdc"]
    nodes = prepared.machine.run(["find", "/dev", "-type", "b"]).stdout.split()
    assert sorted(nodes) == ["/dev/sdb", "/dev/sdc"]


def test_the_lab_refuses_devices_that_it_did_not_create(lab: Lab, tmp_path: Path) -> None:
    """Neither a disk of the host nor another loop device can be attached to a machine."""
    file = tmp_path / "other"
    file.write_bytes(bytes(1024 * 1024))
    loop = subprocess.run(["losetup", "--find", "--show", str(file)], check=True, capture_output=True, text=True)
    try:
        for device in (Path(loop.stdout.strip()), *(found.node for found in KernelBlockDevices().list())):
            if str(device) not in _own_loops(lab):
                with pytest.raises(LabError, match="not created by this lab"):
                    data_disk.require_own(lab.ledger, device)
    finally:
        subprocess.run(["losetup", "--detach", loop.stdout.strip()], check=True)


def _own_loops(lab: Lab) -> set[str]:
    files = [entry["file"] for entry in lab.ledger.entries("loop")]
    found = [disks.loops_of(Path(file)) for file in files]
    return {device for devices in found for device in devices}
