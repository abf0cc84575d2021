"""What an OSC has made of a machine, as values that can be compared with another machine's.

Everything that may differ between two machines of different pools is left out: names of pools and hosts, times, ids.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.recipes import OWN_UNITS, PATHS, VENDOR_UNITS, Recipe, content_of
from tests.lab.machine import Machine
from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT, KUBELET_UNIT

UNITS = (*OWN_UNITS, *VENDOR_UNITS)
_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
    "MainPID",
)
# Their text names the pool.
_OF_THE_POOL = f"{AGENT_UNIT}|{KUBELET_UNIT}"
_SCRIPT = f"""
cd /
for path in {" ".join(PATHS)} /etc/containerd/config.toml; do
  [ -e $path ] && stat -c '%n %a %U' $path && sha256sum < $path
done
find /etc/systemd/system /etc/containerd/certs.d \\( -type l -printf '%p -> %l\\n' -o -type f -printf '%p %m ' -exec sha256sum {{}} \\; \\) \
  | grep -v -E '/({_OF_THE_POOL}) ' | sort
find /etc /opt/test {AGENT_FOLDER} /var/lib/kubelet/config -name '.*.tmp' 2>/dev/null
find {AGENT_FOLDER}/tmp -mindepth 1 2>/dev/null
cut -d' ' -f5 /proc/self/mountinfo | grep {AGENT_FOLDER}
ctr images ls -q; ctr leases ls -q; ctr snapshots ls | tail -n +2 | cut -d' ' -f1 | grep {AGENT_FOLDER}
true
"""


@dataclass(frozen=True)
class Observed:
    """A machine as it is.

    Attributes:
        lines: files, unit files, links, and what is left over.
        units: states, and what their processes were started with.
    """

    lines: tuple[str, ...]
    units: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, machine: Machine) -> "Observed":
        """Look."""
        lines = machine.run(["sh", "-c", _SCRIPT], timeout=60).stdout.splitlines()
        return cls(tuple(lines), _units(machine))

    def differences(self, other: "Observed") -> list[str]:
        """Return what is here (`-`) or there (`+`) alone."""
        here, there = set(self.lines), set(other.lines)
        found = [f"-{line}" for line in sorted(here - there)] + [f"+{line}" for line in sorted(there - here)]
        for name in UNITS:
            mine, theirs = self.units[name], other.units[name]
            found += [
                f"{name} {key}: {mine.get(key)!r}, there {theirs.get(key)!r}"
                for key in sorted({*mine, *theirs})
                if mine.get(key) != theirs.get(key)
            ]
        return found


def _units(machine: Machine) -> dict[str, dict[str, str]]:
    """Return the properties of all units, and what of their processes' environment and command line tells a start."""
    shown = machine.run(["systemctl", "show", *UNITS, *(f"--property={key}" for key in _PROPERTIES)]).stdout
    found = {}
    for block in shown.split("\n\n"):
        state = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if state:
            # systemd remembers that a unit failed under an earlier OSC; `stop` does not change that.
            state["ActiveState"] = state["ActiveState"].replace("failed", "inactive")
            found[state.pop("Id")] = state
    pids = {name: state.pop("MainPID", "0") for name, state in found.items()}
    script = "".join(
        f"echo @{name}; cat /proc/{pid}/environ /proc/{pid}/cmdline 2>/dev/null | tr '\\0' '\\n';"
        for name, pid in pids.items()
        if pid != "0"
    )
    wanted = ("SEEN=", "DROPPED_", "sleep", "100")
    for part in machine.run(["sh", "-c", script or "true"]).stdout.split("@")[1:]:
        name, *lines = part.splitlines()
        found[name]["process"] = " ".join(sorted(line for line in lines if line.startswith(wanted)))
    return found


def state_problems(machine: Machine, document: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the agent's own state after an OSC was applied to its end."""
    problems = []
    last = json.loads(machine.read(f"{AGENT_FOLDER}/last-applied-osc.yaml"))
    if set(_paths(last)) != set(_paths(document)):
        problems.append("last-applied is not the OSC")
    pending = json.loads(machine.read(f"{AGENT_FOLDER}/last-computed-osc-changes.yaml"))
    for section in ("files", "units"):
        if pending.get(section):
            problems.append(f"the journal still has {section}: {sorted(pending[section])}")
    touched = pending["x-journal"]["touched"]
    problems += [f"the journal still has touched {key}" for key, items in touched.items() if items]
    return problems


def _paths(document: Mapping[str, Any]) -> list[str]:
    return [file["path"] for file in document["spec"]["files"]]


def file_problems(machine: Machine, recipe: Recipe) -> list[str]:
    """Return the files of a recipe that are not as it says, and those of the universe that should not be there."""
    found = []
    for path in PATHS:
        file = recipe["files"].get(path)
        if file is None:
            continue
        if not machine.exists(path):
            found.append(f"missing: {path}")
        elif machine.read(path) != content_of(file):
            found.append(f"other content: {path}")
        elif machine.mode(path) != (0o600 if file["mode"] is None else file["mode"]):
            found.append(f"mode {machine.mode(path):o}: {path}")
    return found
