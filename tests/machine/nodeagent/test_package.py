"""The Debian package on a node that Gardener made: beside Gardener's own files, and in their place."""

import gzip
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deb.build import build

from onefile.programs import PROGRAMS
from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.machine import Machine
from tests.lab.worker_osc import AGENT_BINARY, AGENT_UNIT
from tests.support.worker import Worker, service

NAME = "gardener-node-agent"
PROGRAM = f"/usr/lib/{NAME}/{NAME}"
UNIT = f"/usr/lib/systemd/system/{AGENT_UNIT}"
DROP_IN = f"/run/systemd/system/{AGENT_UNIT}.d/package.conf"
GATE, STARTS = "/root/go", "/root/starts"
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_GARDENERS = ("/opt/bin", "/etc/systemd/system", "/var/lib/gardener-node-agent/config-v1.150.0.yaml")
_APT = (
    *("/etc/apt/apt.conf.d", "/etc/apt/sources.list.d", "/etc/apt/preferences.d", "/etc/dpkg/dpkg.cfg.d"),
    *("/var/lib/dpkg/info", "/var/lib/dpkg/updates", "/var/lib/dpkg/triggers", "/var/lib/apt/lists/partial"),
    *("/var/cache/apt/archives/partial", "/var/log/apt"),
)


@pytest.fixture(scope="module")
def packages(agent: AgentSource, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package, and the one before it: the same with a smaller version."""
    if agent.kind != "binary":
        pytest.skip("the agent comes from the source tree")
    folder = tmp_path_factory.mktemp("deb")
    package = build(PROGRAMS[NAME], folder)
    tree, before = folder / "before", folder / "before.deb"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True, timeout=60)
    control = tree / "DEBIAN/control"
    version = next(line for line in control.read_text().splitlines() if line.startswith("Version: "))
    control.write_text(control.read_text().replace(version, "Version: 0.0.1"))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, before], check=True, timeout=60)
    return before, package


@pytest.fixture
def installed(worker: Worker, packages: tuple[Path, Path]) -> Iterator[Worker]:
    """A worker with the earlier package; none afterwards."""
    apt(worker.machine, packages[0])
    yield worker
    worker.machine.run(["apt-get", "purge", "--yes", NAME], check=False, timeout=120)


def apt(machine: Machine, package: Path) -> None:
    """Install a package as an operator does, without a network."""
    if not machine.exists("/var/lib/dpkg/status"):
        # A machine of the lab has the host's programs, and knows of no packages.
        machine.run(["mkdir", "-p", *_APT])
        machine.write("/var/lib/dpkg/status", Path("/var/lib/dpkg/status").read_bytes())
    machine.write("/root/package.deb", package.read_bytes())
    machine.run(
        ["apt-get", "install", "--yes", "--no-install-recommends", "/root/package.deb"],
        env={"DEBIAN_FRONTEND": "noninteractive"},
        timeout=120,
    )


def gardeners_files(machine: Machine) -> list[str]:
    """Return what Gardener brought: kinds, modes and targets of everything, digests of files."""
    find = f"find {' '.join(_GARDENERS)} -xdev -not -path '*/.{NAME}.unpacked*'"
    listed = machine.run(
        ["sh", "-c", f"{find} -printf '%p %y %l %m %u\\n'; {find} -type f -exec sha256sum {{}} +"]
    ).stdout
    assert f"/{AGENT_UNIT} l " in listed, "no unit is enabled"
    return sorted(listed.splitlines())


def test_it_lies_beside_what_gardener_brought(worker: Worker, packages: tuple[Path, Path]) -> None:
    """Installed, upgraded while an OSC is applied, removed and purged: Gardener's files, its running agent and the state stay."""
    machine, before = worker.machine, gardeners_files(worker.machine)
    main = machine.main_pid(AGENT_UNIT)
    apt(machine, packages[0])
    assert machine.run([NAME, "--version"]).stdout == machine.run([AGENT_BINARY, "--version"]).stdout
    checksum = worker.publish(worker.base.with_file("/opt/test/during", "1\n"))
    apt(machine, packages[1])
    worker.wait_applied(checksum)
    assert machine.main_pid(AGENT_UNIT) == main
    assert AGENT_BINARY in machine.unit(AGENT_UNIT)["ExecStart"]
    assert machine.run(["man", "-P", "cat", f"/usr/share/man/man8/{NAME}.8.gz"], check=False).returncode in (0, 127)
    example = f"/usr/share/doc/{NAME}/examples/config-example.yaml"
    assert machine.run([NAME, "validate", example]).stdout.endswith("valid NodeAgentConfiguration\n")
    machine.run(["apt-get", "remove", "--yes", NAME], timeout=120)
    assert not machine.exists(f"/usr/lib/{NAME}")
    said = machine.run(["apt-get", "purge", "--yes", NAME], timeout=120)
    assert "/var/lib/gardener-node-agent is kept" in said.stdout + said.stderr
    assert machine.main_pid(AGENT_UNIT) == main
    worker.apply(worker.base)
    assert gardeners_files(machine) == before


def test_it_enables_nothing_and_has_a_man_page(machine: Machine, packages: tuple[Path, Path]) -> None:
    """On a machine without a node agent its unit is there, neither enabled nor started; the man page has every flag of `--help`."""
    apt(machine, packages[1])
    assert machine.systemctl("is-enabled", AGENT_UNIT, check=False) == "disabled"
    assert machine.systemctl("is-active", AGENT_UNIT, check=False) == "inactive"
    assert machine.unit(AGENT_UNIT)["FragmentPath"].removeprefix("/usr") == UNIT.removeprefix("/usr")
    page = gzip.decompress(machine.read(f"/usr/share/man/man8/{NAME}.8.gz")).decode().replace("\\-", "-")
    sections = dict(section.split("\n", 1) for section in page.split(".SH ")[1:])
    commands = [title.strip('"').lower().split()[1:] for title in sections if title.startswith(f'"{NAME.upper()} ')]
    assert ["reset"] in commands
    for command in ([], *commands):
        title = " ".join([NAME, *command]).upper() if command else "SYNOPSIS AND OPTIONS"
        flags = set(_FLAG.findall(machine.run([NAME, *command, "--help"]).stdout))
        assert "--help" in flags
        assert flags - set(_FLAG.findall(sections[f'"{title}"'])) == set(), title


@pytest.fixture
def packaged(installed: Worker) -> Iterator[Worker]:
    """A worker whose agent runs with the program and the [Service] section of the earlier package."""
    machine = installed.machine
    section = machine.read(UNIT).decode().partition("[Service]\n")[2].partition("[Install]")[0]
    machine.write(DROP_IN, f"[Service]\nExecStart=\n{section}".encode())
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", AGENT_UNIT)
    yield installed
    machine.path(DROP_IN).unlink()
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", AGENT_UNIT)


def test_an_upgrade_in_the_middle_of_an_apply(packaged: Worker, packages: tuple[Path, Path]) -> None:
    """While a unit's start is under way the next version takes over: the OSC is applied, and the start was the only one."""
    machine = packaged.machine
    wait = f"until [ -e {GATE} ]; do sleep 0.1; done"
    content = service(
        command=f'/bin/sh -c "echo x >>{STARTS}; {wait}"', kind="oneshot", extra="TimeoutStartSec=infinity\n"
    )
    osc = packaged.base.with_file("/opt/test/upgraded", "1\n").with_unit("gated.service", content=content)
    checksum, before = packaged.publish(osc), machine.main_pid(AGENT_UNIT)
    wait_for(lambda: machine.unit("gated.service")["ActiveState"] == "activating", timeout=20, what="the unit's start")
    apt(machine, packages[1])
    assert machine.main_pid(AGENT_UNIT) != before
    assert machine.unit("gated.service")["ActiveState"] == "activating"
    assert packaged.applied() != checksum
    machine.write(GATE, b"")
    packaged.wait_applied(checksum, timeout=60)
    assert machine.read(STARTS) == b"x\n"
    packaged.apply(osc.with_file("/opt/test/upgraded", "2\n"))
    assert machine.journal("gated.service").count("Starting gated.service") == 1
    machine.run(["rm", GATE, STARTS])


def test_its_unit_can_do_a_node_agents_work(packaged: Worker, packages: tuple[Path, Path]) -> None:
    """With the package's [Service] section: ready, watched, an OSC with a unit is applied; an upgrade restarts it, and it goes on."""
    machine = packaged.machine
    unit = machine.unit(AGENT_UNIT)
    assert (unit["Type"], unit["ActiveState"], unit["NoNewPrivileges"]) == ("notify", "active", "yes")
    assert int(unit["WatchdogTimestampMonotonic"]) > 0
    osc = packaged.base.with_unit("packaged.service", content="[Service]\nExecStart=/bin/sleep infinity\n")
    packaged.apply(osc.with_file("/opt/test/packaged", "1\n"))
    assert machine.systemctl("is-active", "packaged.service") == "active"
    before = machine.main_pid(AGENT_UNIT)
    apt(machine, packages[1])
    assert machine.main_pid(AGENT_UNIT) != before
    packaged.apply(osc.with_file("/opt/test/packaged", "2\n"))


def test_gardenlets_package(worker: Worker, packages: tuple[Path, Path], tmp_path: Path) -> None:
    """It runs where there is no Python of ours, knows its example, starts nothing, and purged leaves nothing behind."""
    machine, name = worker.machine, PROGRAMS["gardenlet"].name
    assert packages  # built from the one-file programs, as this one
    apt(machine, build(PROGRAMS[name], tmp_path))
    assert machine.run([name, "version"]).stdout.startswith("gardenlet v")
    example = f"/usr/share/doc/{name}/examples/config-example.yaml"
    assert machine.run([name, "validate", example]).stdout.endswith("valid GardenletConfiguration\n")
    assert machine.exists(f"/usr/share/man/man8/{name}.8.gz")
    assert "0 unit files" in machine.run(["systemctl", "list-unit-files", f"{name}*"], check=False).stdout
    machine.run(["apt-get", "purge", "--yes", name], timeout=120)
    left = machine.run(
        ["find", "/usr", "/etc", "/var/lib", "-xdev", "-path", f"*/{name}*", "-not", "-path", "*/dpkg/*"]
    )
    assert left.stdout == ""
