"""A limit of the kernel is raised while labs are up, and put back after the last of them."""

from pathlib import Path

import pytest

from tests.lab.host_limits import WANTED, raise_limits
from tests.lab.state import Ledger


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    """A file like those below /proc/sys."""
    made = tmp_path / "setting"
    made.write_text("128\n")
    return made


def ledger(tmp_path: Path, name: str) -> Ledger:
    """Return the empty ledger of a lab."""
    made = Ledger(name, root=tmp_path / "labs")
    made.create()
    return made


def test_the_last_lab_puts_it_back(tmp_path: Path, setting: Path) -> None:
    """Raised by the first, kept by the second, as it was after both; twice in one lab is once."""
    first, second = ledger(tmp_path, "a"), ledger(tmp_path, "b")
    for one in (first, first, second):
        raise_limits(one, setting=setting)
        assert setting.read_text() == f"{WANTED}\n"
    first.remove()
    assert setting.read_text() == f"{WANTED}\n"
    second.remove()
    assert setting.read_text() == "128\n"


def test_what_is_enough_is_left_alone(tmp_path: Path, setting: Path) -> None:
    """A larger limit of the operator's stays, during a lab and after it."""
    setting.write_text("8192\n")
    one = ledger(tmp_path, "a")
    raise_limits(one, setting=setting)
    assert (setting.read_text(), one.entries()) == ("8192\n", [])
    one.remove()
    assert setting.read_text() == "8192\n"
