"""The mount plan for hosts with cgroup v1 beside v2, and with v2 alone."""

from pathlib import Path, PurePosixPath

from tests.lab.mounts import (
    Hierarchy,
    HostFacts,
    boot_plan,
    cgroup_folders,
    cgroup_mounts,
    enter_cgroups,
    read_hierarchies,
    script,
)

_HYBRID_CGROUP = "4:memory:/process/abc\n3:cpu,cpuacct:/\n2:name=systemd:/user.slice\n0::/user.slice\n"
_HYBRID_MOUNTS = (
    "24 23 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "25 24 0:22 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory\n"
    "26 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "27 24 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "28 24 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
_V2_CGROUP = "0::/user.slice/session-1.scope\n"
_V2_MOUNTS = "28 24 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"

_V2_ALONE = (Hierarchy((), Path("/sys/fs/cgroup"), PurePosixPath("user.slice/session-1.scope")),)


def test_hierarchies_of_a_hybrid_host_are_found_with_their_mount_points() -> None:
    """Version 1 hierarchies, named and combined ones among them, come before the unified one."""
    found = read_hierarchies(_HYBRID_CGROUP, _HYBRID_MOUNTS)
    assert [(h.controllers, str(h.mountpoint), str(h.path)) for h in found] == [
        (("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct", "."),
        (("memory",), "/sys/fs/cgroup/memory", "process/abc"),
        (("name=systemd",), "/sys/fs/cgroup/systemd", "user.slice"),
        ((), "/sys/fs/cgroup/unified", "user.slice"),
    ]


def test_hierarchy_that_is_not_mounted_is_left_out() -> None:
    """A controller that exists but is mounted nowhere cannot be given to a machine."""
    assert read_hierarchies("5:freezer:/\n0::/\n", _V2_MOUNTS) == (
        Hierarchy((), Path("/sys/fs/cgroup"), PurePosixPath(".")),
    )


def test_path_in_a_mount_of_a_part_of_the_hierarchy_is_relative_to_it() -> None:
    """In a container the mount shows only a part of the hierarchy; our path is below that part."""
    mounts = "28 24 0:25 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    found = read_hierarchies("0::/docker/abc/init\n", mounts)
    assert found[0].path == PurePosixPath("init")


def test_cgroups_of_a_hybrid_host_lie_below_our_own() -> None:
    """So that accounting stays where it was."""
    found = cgroup_folders(read_hierarchies(_HYBRID_CGROUP, _HYBRID_MOUNTS), "m1")
    assert Path("/sys/fs/cgroup/memory/process/abc/m1") in found
    assert Path("/sys/fs/cgroup/unified/user.slice/m1") in found


def test_cgroup_with_v2_alone_lies_below_the_root_and_gets_controllers() -> None:
    """A cgroup with processes, such as ours, cannot hand controllers to its children."""
    assert cgroup_folders(_V2_ALONE, "m1") == (Path("/sys/fs/cgroup/m1"),)
    commands = enter_cgroups(_V2_ALONE, "m1")
    assert ("mkdir", "-p", "/sys/fs/cgroup/m1") in commands
    assert ("try", "write", "+memory", "/sys/fs/cgroup/cgroup.subtree_control") in commands
    assert commands[-1] == ("enter", "/sys/fs/cgroup/m1/cgroup.procs")


def test_cpuset_of_version_1_is_filled_before_it_is_entered() -> None:
    """A new cpuset is empty, and nobody can enter an empty one."""
    cpuset = Hierarchy(("cpuset",), Path("/sys/fs/cgroup/cpuset"), PurePosixPath())
    commands = enter_cgroups((cpuset, Hierarchy((), Path("/c"), PurePosixPath())), "m1")
    filled = commands.index(("copy", "/sys/fs/cgroup/cpuset/cpuset.cpus", "/sys/fs/cgroup/cpuset/m1/cpuset.cpus"))
    assert filled < commands.index(("enter", "/sys/fs/cgroup/cpuset/m1/cgroup.procs"))


def test_cgroup_mounts_with_v2_alone_are_one() -> None:
    """With version 2 alone the machine sees one unified hierarchy, directly below sys/fs/cgroup."""
    assert cgroup_mounts(_V2_ALONE) == [("mount", "-t", "cgroup2", "cgroup2", "sys/fs/cgroup")]


def test_cgroup_mounts_of_a_hybrid_host_are_all_of_them() -> None:
    """Each hierarchy is mounted under its name; combined controllers are reachable by each name."""
    commands = cgroup_mounts(read_hierarchies(_HYBRID_CGROUP, _HYBRID_MOUNTS))
    assert ("mount", "-t", "cgroup", "-o", "memory", "cgroup", "sys/fs/cgroup/memory") in commands
    assert ("mount", "-t", "cgroup", "-o", "none,name=systemd", "cgroup", "sys/fs/cgroup/systemd") in commands
    assert ("mount", "-t", "cgroup2", "cgroup2", "sys/fs/cgroup/unified") in commands
    assert ("ln", "-s", "cpu,cpuacct", "sys/fs/cgroup/cpuacct") in commands


def test_boot_plan_leaves_the_hosts_root() -> None:
    """The old root is unmounted before systemd starts, and kernel parameters outside net are read-only by then."""
    facts = HostFacts(
        _V2_ALONE, frozenset({"kmsg"}), frozenset({"kernel", "vm", "kernel/panic"}), frozenset({"sysrq-trigger"})
    )
    plan = boot_plan(facts, Path("/base"), "m1")
    left = plan.index(("umount", "--lazy", "/run/old-root"))
    for path in ("proc/sys/kernel", "proc/sys/vm", "proc/sysrq-trigger"):
        assert plan.index(("mount", "-o", "remount,bind,ro", path)) < left
    private = ("mount", "--bind", "/base/parameters/kernel_panic", "proc/sys/kernel/panic")
    assert plan.index(("mount", "-o", "remount,bind,ro", "proc/sys/kernel")) < plan.index(private)
    assert not any("proc/sys/net" in word for command in plan for word in command)
    assert ("mount", "--bind", "/dev/kmsg", "dev/kmsg") in plan
    assert ("mount", "--bind", "/dev/fuse", "dev/fuse") not in plan


def test_script_quotes_and_may_ignore_a_failure() -> None:
    """Names are quoted; `try` is the only command whose failure does not end the script."""
    text = script([("mkdir", "a b"), ("try", "write", "+cpu", "/x y"), ("copy", "a", "b"), ("enter", "/p")])
    assert text == "set -e\nmkdir 'a b'\necho +cpu > '/x y' 2>/dev/null || true\ncat a > b\necho $$ > /p\n"
