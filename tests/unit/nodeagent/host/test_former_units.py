"""What units of the operating system were before us."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from agents.core import files
from nodeagent.host.former_units import FormerUnits
from nodeagent.host.originals import FormerUnit, Originals
from systemd.errors import BusUnavailable, InvalidUnit, UnitNotFound
from systemd.manager import SystemdUnitManager
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import SLEEP

PATH = "/etc/systemd/system/os.service"


class Machine:
    """A machine with a unit of its own."""

    def __init__(self, root: Path, host: FakeSystemd) -> None:
        self.root, self.host = root, host
        self.units = SystemdUnitManager(address=host.address)
        self.originals = Originals(folder=root / "kept", root=root)
        self.former = FormerUnits(originals=self.originals, units=self.units, root=root)

    @property
    def noted(self) -> FormerUnit | None:
        """What the next process knows."""
        return Originals(folder=self.root / "kept", root=self.root).former_unit(PATH)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """Its unit is enabled and runs, and its file is kept."""
    host = FakeSystemd(tmp_path)
    await host.start()
    found = Machine(tmp_path, host)
    host.write_unit("os.service", SLEEP)
    await found.units.reload()
    await found.units.enable(["os.service"])
    await found.units.start("os.service")
    found.originals.keep([PATH])
    yield found
    await found.units.close()
    await host.stop()


async def test_what_it_was_first_is_what_counts(machine: Machine) -> None:
    """Noted once, before the first change, and not when only we have changed it since."""
    await machine.former.note("os.service")
    assert machine.noted == FormerUnit(enabled=True, active=True)
    await machine.units.disable(["os.service"])
    await machine.former.note("os.service")
    assert machine.noted == FormerUnit(enabled=True, active=True)


async def test_a_file_in_front_of_the_operating_systems_is_no_original(machine: Machine) -> None:
    """Nothing is kept and nothing is put back, but the unit is what it was once ours is gone; with ours there it is too late to look."""
    vendor = machine.root / "usr/lib/systemd/system/vendor.service"
    vendor.parent.mkdir(parents=True)
    vendor.write_text(SLEEP)
    await machine.units.reload()
    await machine.units.enable(["vendor.service"])
    await machine.former.note("vendor.service")
    path = "/etc/systemd/system/vendor.service"
    assert machine.originals.former_unit(path) == FormerUnit(enabled=True, active=False)
    assert not machine.originals.has(path)
    machine.host.write_unit("ours.service", SLEEP)
    await machine.former.note("ours.service")
    assert machine.originals.former_unit("/etc/systemd/system/ours.service") is None


async def test_a_file_that_is_replaced_already_tells_nothing(machine: Machine) -> None:
    """An agent before this one kept the file and did not note the unit: what it is now is what the OSC made of it."""
    files.write_atomic(machine.root / PATH[1:], b"ours", mode=0o600)
    await machine.former.note("os.service")
    assert machine.noted is None
    await machine.former.is_back("os.service")
    assert machine.originals.owed_units == []


async def test_a_mask_comes_back_as_a_mask(machine: Machine) -> None:
    """A link in the place of a unit file is one, and such a unit neither was enabled nor ran."""
    path = machine.root / PATH[1:]
    await machine.units.stop("os.service")
    await machine.units.disable(["os.service"])
    path.unlink()
    path.symlink_to("/dev/null")
    machine.originals.keep([PATH])
    assert machine.originals.is_in_place(PATH)
    await machine.former.note("os.service")
    assert machine.noted == FormerUnit(enabled=False, active=False)
    files.write_atomic(path, b"ours", mode=0o600)
    assert not machine.originals.is_in_place(PATH)


async def test_what_systemd_cannot_tell_is_not_running(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template, for example, has no state of its own; a bus that is away is another matter."""
    with monkeypatch.context() as away:
        away.setattr(machine.units, "unit", AsyncMock(side_effect=BusUnavailable("gone")))
        with pytest.raises(BusUnavailable):
            await machine.former.note("os.service")
    assert machine.noted is None
    monkeypatch.setattr(machine.units, "unit", AsyncMock(side_effect=InvalidUnit("a template")))
    await machine.former.note("os.service")
    assert machine.noted == FormerUnit(enabled=False, active=False)


async def test_what_systemd_refuses_is_not_tried_for_good(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the operating system's unit; only a bus that is away leaves it owed."""
    await machine.former.note("os.service")
    await machine.former.is_back("os.service")
    with monkeypatch.context() as away:
        away.setattr(machine.units, "enable", AsyncMock(side_effect=BusUnavailable("gone")))
        with pytest.raises(BusUnavailable):
            await machine.former.restore_owed()
    assert machine.originals.owed_units == [PATH]
    monkeypatch.setattr(machine.units, "enable", AsyncMock(side_effect=UnitNotFound("gone")))
    await machine.former.restore_owed()
    assert machine.originals.owed_units == []


async def test_a_unit_that_does_not_start_any_more_is_logged(machine: Machine) -> None:
    """What it was is restored as far as systemd can."""
    await machine.former.note("os.service")
    await machine.units.stop("os.service")
    machine.host.write_unit("os.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    await machine.units.reload()
    await machine.former.restore("os.service")
    assert (await machine.units.unit("os.service")).active_state == "failed"
