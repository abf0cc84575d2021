"""What is on a machine, to be compared before and after: files with contents, units, mounts, processes of containers."""

import re
from dataclasses import dataclass

from tests.lab.machine import Machine

# Of a running system, and of containerd and its network plugins, which belong to the operating system.
_MOVING = re.compile(
    r"^/(run|tmp)/|^/var/(log|tmp|cache)/|^/var/lib/(containerd|cni|systemd|private)(/|$)"
    r"|^/etc/(resolv\.conf|\.updated|ld\.so\.cache)"
)
# What the lab mounts over sysfs, where containerd unpacks, and credentials of systemd's own services while the machine
# boots: systemd hears of all these mounts in its own time.
_PASSING = re.compile(r"^(sys-\S*|var-lib-containerd-tmpmounts-\S*|run-credentials-\S*)\.mount ")
_SCRIPT = r"""
cd /
for top in /etc /opt /var /srv /home /root /boot /mnt; do
  find $top -path /opt/gardener-node-agent-src -prune -o -path /var/lib/containerd -prune -o -path /var/log -prune \
    -o -type f -printf '%p|f %m %U:%G ' -exec sha256sum --zero -b {} \; -printf '\n' \
    -o -printf '%p|%y %m %U:%G %l\n'
done 2>/dev/null | tr -d '\0' | sed -e 's/ \*\/.*//'
"""


@dataclass(frozen=True)
class Tree:
    """A machine at one moment.

    Attributes:
        paths: each path with kind, mode, owner, and content's digest or target.
        units: each loaded unit with its states, each unit file with its enablement.
        mounts: mount points below /var and /run/containerd.
        pods: processes of containers.
    """

    paths: frozenset[str]
    units: frozenset[str]
    mounts: frozenset[str]
    pods: frozenset[str]

    @classmethod
    def of(cls, machine: Machine) -> "Tree":
        """Look at a machine."""

        def lines(*argv: str) -> list[str]:
            return machine.run(argv, timeout=120).stdout.splitlines()

        paths = [line for line in lines("sh", "-c", _SCRIPT) if "|" in line and not _MOVING.search(line.split("|")[0])]
        loaded = [
            " ".join(line.split()[:4]) for line in lines("systemctl", "list-units", "--all", "--no-legend", "--plain")
        ]
        loaded = [line for line in loaded if not _PASSING.match(line)]
        installed = [" ".join(line.split()) for line in lines("systemctl", "list-unit-files", "--no-legend")]
        points = [line.split()[4] for line in lines("cat", "/proc/self/mountinfo")]
        shims = [line for line in lines("ps", "-eo", "args") if "containerd-shim" in line]
        return cls(
            frozenset(paths),
            frozenset(loaded + installed),
            frozenset(point for point in points if point.startswith(("/var/", "/run/containerd/", "/run/netns"))),
            frozenset(shims),
        )

    def differences(self, later: "Tree") -> list[str]:
        """Return what is other later: gone with a minus, new with a plus."""
        found = []
        for name in ("paths", "units", "mounts", "pods"):
            before, after = getattr(self, name), getattr(later, name)
            found += [f"-{line}" for line in before - after] + [f"+{line}" for line in after - before]
        return sorted(found)
