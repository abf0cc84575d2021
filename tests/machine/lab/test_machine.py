"""Machines of the lab: isolated from the host, durable over reboots, and able to run Pods."""

import json
import os
import select
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.lab.api import wait_for
from tests.lab.binaries import find_binaries
from tests.lab.cluster import Lab
from tests.lab.commands import run
from tests.lab.machine import Machine
from tests.lab.network import SERVER_ADDRESS, short_name
from tests.lab.pause import PAUSE_IMAGE

pytestmark = pytest.mark.machine

_STATIC_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "static", "namespace": "kube-system"},
    "spec": {"containers": [{"name": "main", "image": PAUSE_IMAGE, "command": ["sh", "-c", "echo up > /out/here; exec sleep 1000"],
                             "volumeMounts": [{"name": "out", "mountPath": "/out"}]}],
             "volumes": [{"name": "out", "hostPath": {"path": "/var/lib/static-pod-was-here", "type": "DirectoryOrCreate"}}]},
}  # fmt: skip
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "systemd",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "failSwapOn": False,
    "enableServer": False,
    "resolvConf": "",
    "staticPodPath": "/etc/kubernetes/manifests",
}


def test_machine_runs_systemd_and_containerd_and_nothing_of_the_host(machine: Machine) -> None:
    """A fresh machine is up, has what an OS image has, and shows neither the clone nor the host's home folders."""
    assert machine.systemctl("is-system-running") == "running"
    assert machine.unit("containerd.service")["ActiveState"] == "active"
    assert machine.run(["hostname"]).stdout.strip() == machine.name
    assert not machine.exists("/opt/bin/kubelet"), "it comes out of an image"
    images = machine.run(["ctr", "-n", "k8s.io", "images", "ls", "-q"]).stdout
    assert PAUSE_IMAGE in images
    repository = Path(__file__).resolve().parents[3]
    assert not machine.exists(str(repository))
    assert machine.run(["ls", "/home"]).stdout == ""
    assert machine.run(["ls", "/etc/systemd/system/multi-user.target.wants"]).stdout.split() == ["containerd.service"]


def test_machine_cannot_change_the_kernels_parameters(machine: Machine) -> None:
    """Parameters outside net are read-only or private to the machine; those below net are the machine's own."""
    before = Path("/proc/sys/kernel/panic").read_text()
    somaxconn = Path("/proc/sys/net/core/somaxconn").read_text()
    assert machine.run(["sysctl", "-w", "vm.swappiness=1"], check=False).returncode != 0
    assert machine.run(["sh", "-c", "echo b > /proc/sysrq-trigger"], check=False).returncode != 0
    machine.run(["sh", "-c", "echo 77 > /proc/sys/kernel/panic"])
    machine.run(["sysctl", "-w", "net.core.somaxconn=777"])
    assert Path("/proc/sys/kernel/panic").read_text() == before
    assert Path("/proc/sys/net/core/somaxconn").read_text() == somaxconn
    assert machine.read("/proc/sys/kernel/panic") == b"77\n"


def test_reboot_keeps_the_disk_and_not_the_kernels_state(machine: Machine) -> None:
    """After a reboot and after a power cut, files are there; /run and network parameters are as at first boot."""
    machine.write("/var/lib/kept", b"1")
    machine.write("/etc/kept", b"2", 0o600)
    machine.write("/run/lost", b"3")
    machine.run(["sysctl", "-w", "net.core.somaxconn=777"])
    identity = machine.run(["cat", "/etc/machine-id"]).stdout
    for graceful in (True, False):
        first = machine.pid1
        machine.reboot(graceful=graceful)
        assert machine.pid1 != first
        assert (machine.read("/var/lib/kept"), machine.read("/etc/kept")) == (b"1", b"2")
        assert machine.mode("/etc/kept") == 0o600
        assert not machine.exists("/run/lost")
        assert machine.run(["cat", "/proc/sys/net/core/somaxconn"]).stdout.strip() != "777"
        assert machine.run(["cat", "/etc/machine-id"]).stdout == identity


def test_an_old_network_that_lives_on_is_in_nobodys_way(machine: Machine) -> None:
    """A namespace that something still holds after a power cut, as closing connections do, has lost its way out at once."""
    held = os.open(f"/run/netns/{machine.netns}", os.O_RDONLY)
    try:
        machine.reboot(graceful=False)
        inside = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{held}", "ip", "-brief", "link", "show", "type", "veth"]
        assert run(*inside) == ""
        machine.run(["busybox", "nc", "-w", "3", SERVER_ADDRESS, "6443"], input="")
    finally:
        os.close(held)


def test_machines_that_come_and_go_cut_nobody_off(lab: Lab, machine: Machine) -> None:
    """The API server's hardware address stays when a machine is added and removed, whichever port has the lowest one."""
    shown = ["cat", "/proc/net/arp"]

    def reach() -> str:
        machine.run(["busybox", "nc", "-w", "3", SERVER_ADDRESS, "6443"], input="")
        return next(line for line in machine.run(shown).stdout.splitlines() if line.startswith(f"{SERVER_ADDRESS} "))

    before = reach()
    ports = ("ip", "-n", lab.network.netns, "link", "set")
    with lab.removed_after(lab.add_machine("comes")):
        run(*ports, short_name(lab.ledger.name, "comes"), "address", "02:00:00:00:00:01")
        assert reach() == before
    assert reach() == before


def test_static_pod_runs(machine: Machine) -> None:
    """Kubelet on its own runs a static Pod from a manifest: sandbox, network and container really start."""
    machine.write("/etc/kubernetes/manifests/static.json", json.dumps(_STATIC_POD).encode())
    machine.write("/var/lib/kubelet/config/kubelet", yaml.safe_dump(_KUBELET).encode())
    machine.write("/opt/bin/kubelet", find_binaries().kubelet.read_bytes(), 0o755)
    unit = "[Service]\nExecStart=/opt/bin/kubelet --config=/var/lib/kubelet/config/kubelet\n"
    machine.write("/etc/systemd/system/kubelet.service", unit.encode())
    machine.systemctl("daemon-reload")
    machine.systemctl("start", "kubelet.service")
    try:
        wait_for(
            lambda: machine.exists("/var/lib/static-pod-was-here/here"),
            timeout=60,
            what="the static Pod to write a file",
        )
    except Exception:
        print(machine.journal("kubelet.service", lines=60))
        raise
    assert machine.run(["ctr", "-n", "k8s.io", "tasks", "ls"]).stdout.count("RUNNING") == 2


def test_several_machines_reach_the_api_server(lab: Lab, machine: Machine) -> None:
    """Two machines run side by side, with addresses of their own, and both reach the API server."""
    with lab.removed_after(lab.add_machine("second")) as second:
        assert second.address != machine.address
        for one in (machine, second):
            done = one.run(["busybox", "nc", "-w", "3", "10.200.0.1", "6443"], input="", check=False)
            assert done.returncode == 0, done.stderr
        assert {machine.name, "second"} <= set(lab.machines)
    assert "second" not in lab.machines


def test_main_pid_is_the_hosts(machine: Machine) -> None:
    """A unit's main process can be found and killed from the host."""
    pid = machine.main_pid("containerd.service")
    assert "containerd" in Path(f"/proc/{pid}/cmdline").read_text()


def test_established_connections_are_dropped_and_new_ones_work(machine: Machine) -> None:
    """After drop_established an open connection is silent, a new one is served, and restore_network ends the fault."""
    nc = ["busybox", "nc", "10.200.0.1", "6443"]
    question = "GET / HTTP/1.0\r\n\r\n"  # a TLS server answers this in plain text
    command = machine.command(nc)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdin is not None
        assert held.stdout is not None
        try:
            assert wait_for(lambda: machine.drop_established(6443), timeout=10, what="the connection") == 1
            held.stdin.write(question.encode())
            held.stdin.flush()
            assert "400 Bad Request" in machine.run([*nc, "-w", "5"], input=question, timeout=10).stdout
            assert not select.select([held.stdout], [], [], 0.5)[0]
            machine.restore_network()
            assert b"400 Bad Request" in held.stdout.readline()
        finally:
            held.kill()


def test_small_disk_fills_up(machine: Machine) -> None:
    """A small file system at a path of the machine gives ENOSPC, and is gone afterwards."""
    with machine.small_disk("/var/lib/small"):
        full = machine.run(["dd", "if=/dev/zero", "of=/var/lib/small/big", "bs=1M", "count=8"], check=False)
        assert "No space left" in full.stderr
    assert not machine.exists("/var/lib/small/big")


def test_ext4_machine_boots_and_reboots(lab: Lab) -> None:
    """With storage ext4 the machine's disk is a real file system on a loop device; nothing of it is left."""
    with lab.removed_after(lab.add_machine("disk", storage="ext4")) as disk:
        assert "ext4" in disk.run(["stat", "-f", "-c", "%T", "/var"]).stdout.replace("ext2/ext3", "ext4")
        disk.write("/var/lib/kept", b"1")
        disk.reboot()
        assert disk.read("/var/lib/kept") == b"1"
    listed = subprocess.run(["losetup", "--list", "--noheadings"], check=True, capture_output=True, text=True).stdout
    assert f"{lab.name}-disk" not in listed
