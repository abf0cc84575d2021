"""What a machine sees of the host: cgroups and mounts, computed from what the host has and tested without a machine.

The plan is a list of commands. It runs as a shell script in the machine's fresh namespaces, before systemd: the root is
an overlay of the host's root, `/var` is a folder of the machine's own disk, `/run`, `/tmp` and `/dev` are new, and the
old root is gone at the end, so that nothing of the host can be reached by a path.

The kernel is the host's. Its parameters are read-only in a machine, except those below `net`, which belong to the
machine's network namespace; the six that kubelet insists on writing are private copies.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Command = tuple[str, ...]

_READ_ONLY_PARAMETERS = ("abi", "debug", "dev", "fs", "kernel", "user", "vm")
_READ_ONLY_PROC = ("bus", "irq", "sysrq-trigger")
KUBELET_PARAMETERS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_OPTIONAL_DEVICES = ("kmsg", "fuse")
_DEVICE_LINKS = (
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
)
# Loading modules, setting the clock and raw I/O would reach the host's kernel.
WITHHELD_CAPABILITIES = ("sys_module", "sys_rawio", "sys_time")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy of the host.

    Attributes:
        controllers: of version 1: their names; a named one has the single entry `name=...`; of version 2: empty.
        mountpoint: where the host has it.
        path: our own cgroup in it, as a path below the mount point.
    """

    controllers: tuple[str, ...]
    mountpoint: Path
    path: PurePosixPath

    @property
    def is_v2(self) -> bool:
        """Whether this is the unified hierarchy."""
        return not self.controllers


def read_hierarchies(self_cgroup: str, mountinfo: str) -> tuple[Hierarchy, ...]:
    """Return the hierarchies that exist and are mounted, version 1 first.

    Args:
        self_cgroup: text of /proc/self/cgroup.
        mountinfo: text of /proc/self/mountinfo.
    """
    found = []
    for line in self_cgroup.splitlines():
        _, names, path = line.split(":", 2)
        controllers = tuple(names.split(",")) if names else ()
        for fields, kind, options in _cgroup_mounts(mountinfo):
            matches = kind == "cgroup2" if not controllers else kind == "cgroup" and set(controllers) <= options
            if matches:
                root, mountpoint = fields[3], fields[4]
                relative = PurePosixPath(path).relative_to(root) if path.startswith(root) else PurePosixPath(path[1:])
                found.append(Hierarchy(controllers, Path(mountpoint), relative))
                break
    return tuple(sorted(found, key=lambda h: (h.is_v2, h.controllers)))


def _cgroup_mounts(mountinfo: str) -> list[tuple[list[str], str, set[str]]]:
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            mounts.append((left.split(), kind, set(options.split(","))))
    return mounts


def cgroup_folders(hierarchies: Sequence[Hierarchy], name: str) -> tuple[Path, ...]:
    """Return the cgroups that are to be a machine's roots, one per hierarchy.

    Below our own cgroup, so that accounting stays where it was. With version 2 alone below the root instead: there a
    cgroup with processes, such as ours, cannot hand controllers to its children.
    """
    v2_alone = all(hierarchy.is_v2 for hierarchy in hierarchies)
    return tuple(h.mountpoint / name if v2_alone else h.mountpoint / h.path / name for h in hierarchies)


def enter_cgroups(hierarchies: Sequence[Hierarchy], name: str) -> list[Command]:
    """Return the commands that make those cgroups and move the calling shell into them."""
    commands: list[Command] = []
    v2_alone = all(hierarchy.is_v2 for hierarchy in hierarchies)
    for hierarchy, folder in zip(hierarchies, cgroup_folders(hierarchies, name), strict=True):
        commands.append(("mkdir", "-p", str(folder)))
        if hierarchy.is_v2 and v2_alone:
            for controller in ("cpuset", "cpu", "io", "memory", "pids"):
                control = folder.parent / "cgroup.subtree_control"
                commands.append(("try", "write", f"+{controller}", str(control)))
        if "cpuset" in hierarchy.controllers:
            for file in ("cpuset.cpus", "cpuset.mems"):
                commands.append(("copy", str(folder.parent / file), str(folder / file)))
        commands.append(("enter", str(folder / "cgroup.procs")))
    return commands


def cgroup_mounts(hierarchies: Sequence[Hierarchy]) -> list[Command]:
    """Return the commands that mount a machine's view of the cgroups below `sys/fs/cgroup`."""
    if all(hierarchy.is_v2 for hierarchy in hierarchies):
        return [("mount", "-t", "cgroup2", "cgroup2", "sys/fs/cgroup")]
    commands: list[Command] = [("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "sys/fs/cgroup")]
    for hierarchy in hierarchies:
        if hierarchy.is_v2:
            commands.append(("mkdir", "sys/fs/cgroup/unified"))
            commands.append(("mount", "-t", "cgroup2", "cgroup2", "sys/fs/cgroup/unified"))
            continue
        names = ",".join(hierarchy.controllers)
        named = names.startswith("name=")
        target = "sys/fs/cgroup/" + names.removeprefix("name=")
        commands.append(("mkdir", target))
        commands.append(("mount", "-t", "cgroup", "-o", f"none,{names}" if named else names, "cgroup", target))
        if not named and len(hierarchy.controllers) > 1:
            commands += [("ln", "-s", names, f"sys/fs/cgroup/{one}") for one in hierarchy.controllers]
    return commands


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a mount plan depends on.

    Attributes:
        hierarchies: cgroup hierarchies.
        devices: which of the optional device nodes exist (`kmsg`, `fuse`).
        parameters: which kernel parameters exist, relative to /proc/sys: folders, and those that kubelet writes.
        controls: which other files below /proc act on the kernel.
    """

    hierarchies: tuple[Hierarchy, ...]
    devices: frozenset[str]
    parameters: frozenset[str]
    controls: frozenset[str]

    @classmethod
    def read(cls) -> "HostFacts":
        """Look at this host."""
        cgroup = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        parameters = {p for p in (*_READ_ONLY_PARAMETERS, *KUBELET_PARAMETERS) if Path("/proc/sys", p).exists()}
        devices = {device for device in _OPTIONAL_DEVICES if Path("/dev", device).exists()}
        controls = {control for control in _READ_ONLY_PROC if Path("/proc", control).exists()}
        return cls(read_hierarchies(cgroup, mountinfo), frozenset(devices), frozenset(parameters), frozenset(controls))


def boot_plan(facts: HostFacts, base: Path, hostname: str) -> list[Command]:
    """Return the commands that turn fresh namespaces into a machine, up to the start of its PID 1.

    Args:
        facts: what the host has.
        base: folder of the machine's disk, with `upper`, `work`, `root`, `var` and `parameters`.
        hostname: its host name.
    """
    layers = f"lowerdir=/,upperdir={base / 'upper'},workdir={base / 'work'}"
    return [
        ("mount", "--make-rprivate", "/"),
        ("mount", "-t", "overlay", "overlay", "-o", layers, str(base / "root")),
        ("cd", str(base / "root")),
        *_kernel_mounts(facts, base),
        *cgroup_mounts(facts.hierarchies),
        *_device_mounts(facts),
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "run"),
        ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "tmp"),
        ("mount", "--bind", str(base / "var"), "var"),
        ("hostname", hostname),
        ("mkdir", "run/old-root"),
        ("pivot_root", ".", "run/old-root"),
        ("cd", "/"),
        ("umount", "--lazy", "/run/old-root"),
        ("rmdir", "/run/old-root"),
        ("mount", "--make-rshared", "/"),
    ]


def _kernel_mounts(facts: HostFacts, base: Path) -> list[Command]:
    commands: list[Command] = [("mount", "-t", "proc", "proc", "proc")]
    for parameter in KUBELET_PARAMETERS:
        if parameter in facts.parameters:
            commands.append(("copy", f"/proc/sys/{parameter}", str(private_parameter(base, parameter))))
    folders = [f"proc/sys/{name}" for name in _READ_ONLY_PARAMETERS if name in facts.parameters]
    for path in (*folders, *(f"proc/{name}" for name in sorted(facts.controls))):
        commands += [("mount", "--bind", path, path), ("mount", "-o", "remount,bind,ro", path)]
    for parameter in KUBELET_PARAMETERS:
        if parameter in facts.parameters:
            commands.append(("mount", "--bind", str(private_parameter(base, parameter)), f"proc/sys/{parameter}"))
    commands.append(("mount", "-t", "sysfs", "-o", "ro", "sysfs", "sys"))
    return commands


def private_parameter(base: Path, parameter: str) -> Path:
    """Return the file that stands in for a kernel parameter in a machine."""
    return base / "parameters" / parameter.replace("/", "_")


def _device_mounts(facts: HostFacts) -> list[Command]:
    commands: list[Command] = [("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "dev")]
    for device in (*_DEVICES, *sorted(facts.devices)):
        commands += [("touch", f"dev/{device}"), ("mount", "--bind", f"/dev/{device}", f"dev/{device}")]
    commands += [("ln", "-s", target, f"dev/{name}") for target, name in _DEVICE_LINKS]
    commands += [("mkdir", "dev/shm"), ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "dev/shm")]
    commands += [
        ("mkdir", "dev/pts"),
        ("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", "dev/pts"),
    ]
    return commands


def script(commands: Sequence[Command]) -> str:
    """Return the commands as a shell script that stops at the first failure.

    Four commands are the script's own: `write TEXT FILE`, `copy FROM TO` and `enter FILE` (moves the shell itself into a
    cgroup) write into files of the kernel, which cannot be replaced; `try ...` may fail.
    """
    return "set -e\n" + "".join(_line(command) + "\n" for command in commands)


def _line(command: Command) -> str:
    match command:
        case ("try", *rest):
            return _line(tuple(rest)) + " 2>/dev/null || true"
        case ("write", text, file):
            return f"echo {shlex.quote(text)} > {shlex.quote(file)}"
        case ("copy", source, target):
            return f"cat {shlex.quote(source)} > {shlex.quote(target)}"
        case ("enter", file):
            return f"echo $$ > {shlex.quote(file)}"
        case _:
            return shlex.join(command)
