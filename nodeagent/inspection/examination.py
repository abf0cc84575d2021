"""Looks at every link of the chain on this machine, those of the way to the API server only as far as they hold."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.core.clock import Clock
from agents.core.errors import AgentError
from nodeagent.host.disk_space import full
from nodeagent.inspection import access, way
from nodeagent.inspection.diagnose import Broken, Finding, Fine, LinkName, NotLooked
from nodeagent.inspection.probes import Answers
from nodeagent.inspection.state import State
from nodeagent.paths import Paths
from osc.types import OWN_UNIT

_NETWORK_LINKS: tuple[LinkName, ...] = (
    "time",
    "dns",
    "tcp",
    "tls",
    "credentials",
    "authorization",
    "secret",
    "validation",
)


@dataclass(frozen=True, slots=True)
class Examined:
    """What is looked at.

    Attributes:
        paths: where the machine's files are.
        config_dir: directory of the agent's configuration.
        state: of the disk.
        answers: of systemd, containerd and the kubelet.
    """

    paths: Paths
    config_dir: Path
    state: State
    answers: Answers


async def examine(examined: Examined, *, clock: Clock) -> Mapping[LinkName, Finding]:
    """Return what was found of each link; takes as long as all deadlines on the way together at most."""
    found: dict[LinkName, Finding] = {"config": _config(examined)}
    found |= await _examine_way(examined, clock)
    found["disk"] = await asyncio.to_thread(_disk, examined.paths)
    found["systemd"] = _systemd(examined)
    found["containerd"] = _containerd(examined.answers)
    found["kubelet"] = _kubelet(examined)
    return found


async def _examine_way(examined: Examined, clock: Clock) -> Mapping[LinkName, Finding]:
    config = examined.state.config
    if config is None:
        unknown = NotLooked("the configuration says where the API server is")
        return dict.fromkeys(_NETWORK_LINKS, unknown)
    try:
        stored = await asyncio.to_thread(access.read_stored, config, examined.paths, clock)
    except AgentError as error:
        next_step = "bring the configuration by user data again"
        return {"credentials": Broken(f"the bundle in the configuration cannot be used: {error.message}", next_step)}
    found = dict(await way.examine(stored.access, clock=clock))
    if any(isinstance(finding, Broken) for name, finding in found.items() if name != "time"):
        # What is on the disk is told all the same.
        return found | ({"credentials": stored.problem} if stored.problem is not None else {})
    return found | dict(await access.examine(stored, config, paths=examined.paths, clock=clock))


def _config(examined: Examined) -> Finding:
    state = examined.state
    if state.config is not None:
        return Fine(str(state.config_file))
    if state.config_file is None:
        return Broken(
            f"there is no configuration in {examined.config_dir}",
            "let user data write it again; if it is elsewhere, name it with --config-dir",
        )
    problem = state.problems.get(str(state.config_file), "")
    return Broken(
        f"{state.config_file} cannot be used: {problem}",
        f"mend it; all problems with their lines: gardener-node-agent validate {state.config_file}",
    )


def _disk(paths: Paths) -> Finding:
    """Look for a file system that is full, read-only or does not answer where the agent, the kubelet and containerd write."""
    places = [paths.base, paths.systemd, *paths.runtime_disks]
    if (place := full(places)) is not None:
        return Broken(
            f"the file system of {place} is full", f"make room: df -h {place}; df -i {place}; crictl rmi --prune"
        )
    for place in places:
        try:
            if os.statvfs(place).f_flag & os.ST_RDONLY:
                return Broken(f"the file system of {place} is read-only", "look for errors of the disk: dmesg; findmnt")
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = error.strerror or type(error).__name__
            return Broken(f"{place} cannot be looked at: {problem}", "look for errors of the disk: dmesg; findmnt")
    return Fine()


def _systemd(examined: Examined) -> Finding:
    answer = examined.answers.agent
    if answer.value is None:
        return Broken(f"systemd does not answer: {answer.problem}", "look at its bus: systemctl status dbus; busctl")
    unit = answer.value
    journal = f"journalctl -u {OWN_UNIT} -n 50"
    if unit.load_state == "masked":
        return Broken("the agent's unit is masked", f"systemctl unmask {OWN_UNIT}")
    if unit.load_state == "not-found":
        return Broken("the agent's unit does not exist", "bootstrap the machine: gardener-node-agent bootstrap")
    if unit.active_state not in ("active", "reloading"):
        return Broken(
            f"the agent does not run: its unit is {unit.description}", f"{journal}; systemctl start {OWN_UNIT}"
        )
    failing = next(_failing_units(examined), None)
    if failing is not None:
        name, cause = failing
        return Broken(f"unit {name} fails: {cause}", f"systemctl status {name}; journalctl -u {name} -n 50")
    return Fine(unit.description)


def _failing_units(examined: Examined) -> Iterator[tuple[str, str]]:
    """Yield those that the agent cannot get to run, and those that have failed since."""
    state = examined.state
    for item in state.board.items if state.board is not None else ():
        if item.name.startswith("unit ") and item.cause:
            yield item.name.removeprefix("unit "), item.cause
    yield from ((unit.name, unit.description) for unit in examined.answers.failed_units.value or ())


def _containerd(answers: Answers) -> Finding:
    if answers.containerd.value is not None:
        return Fine(answers.containerd.value)
    return Broken(answers.containerd.problem, "systemctl status containerd; journalctl -u containerd -n 50")


def _kubelet(examined: Examined) -> Finding:
    answers = examined.answers
    if answers.kubelet.value is not None:
        return Fine()
    if answers.containerd.value is None:
        return NotLooked("it needs containerd")
    return Broken(answers.kubelet.problem, "systemctl status kubelet; journalctl -u kubelet -n 50")
