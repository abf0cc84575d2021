"""`gardener-node-agent bootstrap`: the unit's bytes, the order of steps, and what is fatal."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agents.kube.errors import Forbidden
from nodeagent.bootstrap import BootstrapFailed, DataVolume, bootstrap
from nodeagent.host.block_devices import Signatures
from nodeagent.kubelet_volume import KubeletVolume, VolumeError
from nodeagent.paths import Paths
from systemd.errors import BusUnavailable, SystemdError
from systemd.manager import SystemdUnitManager
from tests.support.fake_disks import GIB, FakeDisk, FakeDisks, disk
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import SLEEP

OWN = "gardener-node-agent.service"
LINES = [
    "[Unit]",
    "Description=Gardener Node Agent",
    "After=network-online.target",
    "",
    "[Service]",
    "LimitMEMLOCK=infinity",
    "ExecStart=/opt/bin/gardener-node-agent --config-dir=/var/lib/gardener-node-agent",
    "Restart=always",
    "RestartSec=5",
    "StandardOutput=journal+console",
    "StandardError=journal",
    "",
    "[Install]",
    "WantedBy=multi-user.target",
]


class Machine:
    """A bare machine with a systemd."""

    def __init__(self, root: Path, host: FakeSystemd) -> None:
        self.paths, self.host = Paths(root=root), host
        self.units = SystemdUnitManager(address=host.address)
        self.disks = FakeDisks(root, {"config": "one"})
        self.volume: DataVolume | None = None
        self.done: list[str] = []
        self.answer: Exception | None = None
        self.silent = False

    @property
    def asked(self) -> int:
        """How often the API server was asked."""
        return self.done.count("GET /version")

    def wants_volume(self) -> None:
        """Let the configuration ask for a data volume."""
        volume = KubeletVolume(paths=self.paths, devices=self.disks, tools=self.disks, mount_table=self.disks.table)
        self.volume = DataVolume(size_bytes=GIB, volume=volume)

    async def clean_init_images(self) -> None:
        """Note that it was called."""
        self.done.append("init images")

    async def get_version(self) -> object:
        """Answer as the API server does."""
        self.done.append("GET /version")
        if self.silent:
            await asyncio.Event().wait()
        if self.answer is not None:
            raise self.answer
        return {"gitVersion": "v1.34.4"}

    async def bootstrap(self) -> None:
        """Run the command."""
        await bootstrap(
            paths=self.paths,
            units=self.units,
            get_version=self.get_version,
            clean_init_images=self.clean_init_images,
            data_volume=self.volume,
        )


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """A machine whose init unit is enabled, as user data leaves it."""
    host = FakeSystemd(tmp_path)
    await host.start()
    host.write_unit("gardener-node-init.service", SLEEP)
    link = tmp_path / "etc/systemd/system/multi-user.target.wants/gardener-node-init.service"
    link.parent.mkdir()
    link.symlink_to("/etc/systemd/system/gardener-node-init.service")
    found = Machine(tmp_path, host)
    yield found
    await found.units.close()
    await host.stop()


async def test_bootstrap_installs_enables_and_starts_the_unit(machine: Machine) -> None:
    """Contract 8.2, 3: `tmp` is there, the unit is written 0644, enabled and running, the init unit is disabled and not stopped."""
    await machine.bootstrap()
    assert machine.paths.own_unit.stat().st_mode & 0o777 == 0o644
    assert machine.host.is_enabled(OWN)
    assert machine.host.units[OWN].active_state == "active"
    assert not machine.host.is_enabled("gardener-node-init.service")
    assert "StopUnit" not in machine.host.received
    assert machine.paths.temporary.is_dir()
    assert machine.asked == 1


async def test_order_of_the_actions(machine: Machine) -> None:
    """Contract 8.2, Appendix C (bootstrap and reset): volume, then daemon-reload, enable, start, disable of the init unit, at last the API server."""
    machine.wants_volume()
    machine.disks.add(FakeDisk(disk(1)))
    await machine.bootstrap()
    calls = [call for call in machine.host.received if call.endswith(("Unit", "UnitFiles", "Reload"))]
    assert calls == ["Reload", "EnableUnitFiles", "StartUnit", "DisableUnitFiles"]
    assert machine.disks.acts[-1] == "mount"
    assert machine.done == ["init images", "GET /version"]


async def test_a_data_volume_that_cannot_be_had_is_fatal(machine: Machine) -> None:
    """Contract 8.2, 8.3: no fitting disk ends the command before the own unit is there; images of the script do not pile up."""
    machine.wants_volume()
    machine.disks.add(FakeDisk(disk(1), Signatures("ext4", "DATA")))
    with pytest.raises(VolumeError):
        await machine.bootstrap()
    assert not machine.paths.own_unit.exists()
    assert machine.host.received == []
    assert machine.done == ["init images"]


async def test_the_unit_is_the_interface_byte_for_byte(machine: Machine) -> None:
    """Contract Appendix D: fourteen lines with one line feed each, the last without."""
    await machine.bootstrap()
    content = machine.paths.own_unit.read_bytes()
    assert content == "\n".join(LINES).encode()


async def test_w22_directories_have_usable_modes(machine: Machine) -> None:
    """Contract 9 W22: `tmp` is 0700 and /var/lib/kubelet 0755, also where another node agent left mode 000 behind."""
    for folder in (machine.paths.temporary, machine.paths.kubelet):
        folder.mkdir(parents=True)
        folder.chmod(0o000)
    machine.wants_volume()
    machine.disks.add(FakeDisk(disk(1)))
    await machine.bootstrap()
    modes = {folder.name: folder.stat().st_mode & 0o777 for folder in (machine.paths.temporary, machine.paths.kubelet)}
    assert modes == {"tmp": 0o700, "kubelet": 0o755}


async def test_bootstrap_can_be_repeated(machine: Machine) -> None:
    """Contract 8.2: a second run changes nothing and harms nothing: the file is not even rewritten."""
    await machine.bootstrap()
    before = machine.paths.own_unit.stat().st_ino
    await machine.bootstrap()
    assert machine.paths.own_unit.stat().st_ino == before
    assert machine.host.units[OWN].active_state == "active"


@pytest.mark.parametrize("fault", ["403", "silence"])
async def test_an_api_server_that_cannot_be_reached_is_only_a_warning(
    machine: Machine, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """Contract 8.2, 9 W25: the connectivity test ends after 10 s; its failure is printed to stdout and is not fatal."""
    machine.answer = Forbidden("not allowed", status=403)
    machine.silent = fault == "silence"
    before = asyncio.get_running_loop().time()
    await machine.bootstrap()
    assert asyncio.get_running_loop().time() - before <= 10.5
    assert "WARNING" in capsys.readouterr().out
    assert machine.host.units[OWN].active_state == "active"


async def test_a_unit_that_cannot_start_is_fatal_and_repeated(machine: Machine) -> None:
    """Contract 8.2: an own unit that cannot be enabled ends the command with an error, so that systemd repeats it."""
    machine.host.silent.add("EnableUnitFiles")
    with pytest.raises((SystemdError, BootstrapFailed)):
        await machine.bootstrap()
    assert machine.asked == 0
    assert machine.host.is_enabled("gardener-node-init.service")


async def test_without_an_init_unit_bootstrap_succeeds(machine: Machine) -> None:
    """Contract 8.2: a machine that was prepared differently has no init unit; that is no failure."""
    (machine.paths.systemd / "gardener-node-init.service").unlink()
    await machine.bootstrap()
    assert machine.host.units[OWN].active_state == "active"


async def test_an_init_unit_that_stays_enabled_because_systemd_did_not_answer_is_disabled_by_the_next_run(
    machine: Machine,
) -> None:
    """Contract 8.2: else user data would run again at each boot; the command fails, and systemd repeats it."""
    machine.host.silent.add("DisableUnitFiles")
    with pytest.raises(BusUnavailable):
        await machine.bootstrap()
    machine.host.silent.clear()
    await machine.bootstrap()
    assert not machine.host.is_enabled("gardener-node-init.service")
