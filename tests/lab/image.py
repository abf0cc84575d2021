"""What a machine's disk holds before user data: the operating system's image.

The host's root is the lower layer of an overlay, so the machine has the host's systemd, D-Bus and tools. What a node
image adds is *copied* into the upper layer: containerd, runc, CNI plugins, their configuration. What belongs to
the host alone is hidden: homes, the clone, enabled units, service configuration; `/var` and `/opt` start empty.
"""

import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.network import REGISTRY_NAME, SERVER_ADDRESS, SERVER_NAME, MachineAddress
from tests.lab.packages import CNI_PLUGINS, cni_folder, program
from tests.lab.pause import PAUSE_IMAGE

_CAP_SYS_RESOURCE = 24
# First-level entries of the host that a machine shares or mounts over, and those that are empty in it; no others exist.
_SHARED = frozenset(
    {"bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "dev", "proc", "sys", "run", "tmp", "var"}
)
_EMPTY = frozenset({"boot", "home", "media", "mnt", "opt", "root", "srv"})
# Configuration of the host that must not act in a machine.
_HIDDEN_CONFIGURATION = (
    "etc/systemd/system",
    "etc/systemd/user",
    "etc/init.d",
    *(f"etc/rc{level}.d" for level in ("0", "1", "2", "3", "4", "5", "6", "S")),
    "etc/sysctl.d",
    "etc/modules-load.d",
    "etc/containerd",
    "etc/cni",
    "etc/kubernetes",
    "etc/ssh",
    "etc/cron.d",
    "etc/apt",
    "usr/local",
    "usr/src",
)
_VAR_FOLDERS = ("log", "lib", "lib/kubelet", "cache", "spool", "tmp", "opt", "local", "lib/containerd")

_CONTAINERD_UNIT = """\
[Unit]
Description=containerd container runtime
After=network.target dbus.service

[Service]
ExecStart=/usr/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""

_CONTAINERD_CONFIGURATION = f"""\
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/usr/sbin/runc"
      SystemdCgroup = true
"""

# A process without CAP_SYS_RESOURCE may not lower oom_score_adj, and runc gives up when it cannot.
_RUNC_WRAPPER = """\
#!/bin/sh
# This kernel does not let us lower oom_score_adj: take the wish out of the bundle, then call the real runc.
previous=
for argument; do
  case "$previous" in
    --bundle|-b) sed -i -e 's/,"oomScoreAdj":-[0-9]*//' -e 's/"oomScoreAdj":-[0-9]*,//' "$argument/config.json" ;;
  esac
  previous=$argument
done
exec /usr/libexec/runc "$@"
"""

_JOURNALD = "[Journal]\nStorage=volatile\nReadKMsg=no\nRateLimitIntervalSec=0\n"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """What goes into a machine's disk.

    Attributes:
        hidden: folders of the host that must not be visible, such as the clone and the cache.
    """

    hidden: tuple[Path, ...] = ()


def write_image(source: ImageSource, base: Path, hostname: str, where: MachineAddress) -> None:
    """Fill the upper layer and `/var` of a new machine.

    Args:
        source: what goes in.
        base: folder of the machine's disk.
        hostname: its host name.
        where: its addresses.
    """
    for folder in ("upper", "work", "root", "var", "parameters"):
        (base / folder).mkdir()
    upper = base / "upper"
    hide(upper, Path("/"), source.hidden)
    for folder in _VAR_FOLDERS:
        (base / "var" / folder).mkdir()
    (base / "var" / "tmp").chmod(0o1777)
    (base / "var" / "run").symlink_to("/run")
    (base / "var" / "lock").symlink_to("/run/lock")
    _copy_programs(upper)
    for path, text in _files(hostname, where).items():
        _write(upper / path, text)
    wants = upper / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "containerd.service").symlink_to("/usr/lib/systemd/system/containerd.service")


def hide(upper: Path, root: Path, hidden: Iterable[Path]) -> None:
    """Cover in an upper layer what belongs to the host alone.

    Folders that every system has become opaque: they are empty, and the machine may fill them. Whatever else lies at the
    first level, and the given folders, get a whiteout: they do not exist.
    """
    entries = {entry.name for entry in root.iterdir()}
    for folder in (*sorted(_EMPTY & entries), *_HIDDEN_CONFIGURATION):
        if (root / folder).is_dir():
            target = upper / folder
            _make_parents(target)
            target.mkdir(mode=0o755)
            os.setxattr(target, "trusted.overlay.opaque", b"y")
    gone = [Path(name) for name in sorted(entries - _SHARED - _EMPTY)]
    gone += [path.relative_to(root) for path in hidden if path.relative_to(root).parts[0] in _SHARED]
    for path in gone:
        _make_parents(upper / path)
        os.mknod(upper / path, 0o600 | stat.S_IFCHR, os.makedev(0, 0))


def may_lower_oom_score(status: str) -> bool:
    """Whether CAP_SYS_RESOURCE can be had here, read from the text of /proc/self/status."""
    bounding = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounding.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)


def _copy_programs(upper: Path) -> None:
    plain_runc = may_lower_oom_score(Path("/proc/self/status").read_text(encoding="utf-8"))
    targets = {
        "containerd": "usr/bin/containerd",
        "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
        "ctr": "usr/bin/ctr",
        "runc": "usr/sbin/runc" if plain_runc else "usr/libexec/runc",
    }
    for name, target in targets.items():
        found = program(name)
        if found is None:
            raise LabError(f"{name} is not on this host")
        _copy(found, upper / target)
    if not plain_runc:
        _write(upper / "usr/sbin/runc", _RUNC_WRAPPER, mode=0o755)
    plugins = cni_folder()
    if plugins is None:
        raise LabError("CNI plugins are not on this host")
    for plugin in CNI_PLUGINS:
        _copy(plugins / plugin, upper / "opt/cni/bin" / plugin)


def _files(hostname: str, where: MachineAddress) -> dict[str, str]:
    return {
        "etc/hostname": f"{hostname}\n",
        "etc/machine-id": f"{uuid.uuid4().hex}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{where.address} {hostname}\n{SERVER_ADDRESS} {SERVER_NAME} {REGISTRY_NAME}\n",
        "etc/resolv.conf": "",
        "etc/fstab": "",
        "etc/environment": "",
        "etc/sysctl.conf": "",
        "etc/systemd/journald.conf.d/10-lab.conf": _JOURNALD,
        "etc/containerd/config.toml": _CONTAINERD_CONFIGURATION,
        "etc/cni/net.d/10-lab.conflist": json.dumps(_cni_configuration(where), indent=1),
        "usr/lib/systemd/system/containerd.service": _CONTAINERD_UNIT,
    }


def _cni_configuration(where: MachineAddress) -> dict[str, object]:
    ipam = {"type": "host-local", "subnet": where.pod_network, "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "0.4.0", "name": "lab", "plugins": [{"type": "ptp", "ipam": ipam}]}


def _copy(source: Path, target: Path) -> None:
    _make_parents(target)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _write(target: Path, text: str, *, mode: int = 0o644) -> None:
    _make_parents(target)
    if target.is_symlink():
        target.unlink()
    target.write_text(text, encoding="utf-8")
    target.chmod(mode)


def _make_parents(target: Path) -> None:
    """Make the folders above a file with the modes that a system has, whatever our umask."""
    missing = [folder for folder in target.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        folder.chmod(0o755)
