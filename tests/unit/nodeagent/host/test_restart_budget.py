"""How often a unit may be restarted."""

from datetime import timedelta
from pathlib import Path

import pytest

from nodeagent.host.restart_budget import RestartBudget, read_boot_id
from tests.support.clock import FakeClock

UNIT = "kubelet.service"


def budget(path: Path, clock: FakeClock, boot_id: str = "this") -> RestartBudget:
    """Return the budget as a process that has just started has it."""
    return RestartBudget(path=path / "run/restarts.json", clock=clock, boot_id=boot_id)


def test_restarts_get_rarer_and_end_at_three_an_hour(tmp_path: Path, clock: FakeClock) -> None:
    """Contract 7.5, 7.9: the first is free, then a pause of 2 min, then of 10 min, and never more than three within an hour."""
    found, moments = budget(tmp_path, clock), []
    start = clock.monotonic()
    while clock.monotonic() - start < 7200:
        if not found.wait(UNIT):
            found.spend(UNIT)
            moments.append(clock.monotonic() - start)
        clock.advance(1)
    assert moments == [0, 120, 720, 3600, 4200, 4800]
    assert found.wait("containerd.service") == timedelta(0)


def test_the_budget_survives_the_process_but_not_the_boot(tmp_path: Path, clock: FakeClock) -> None:
    """Contract 7.5, 7.9: a restart of the agent grants no further restart; after a reboot everything counts from zero."""
    budget(tmp_path, clock).spend(UNIT)
    clock.advance(20)
    assert budget(tmp_path, clock).wait(UNIT) == timedelta(seconds=100)
    assert budget(tmp_path, clock, "next").wait(UNIT) == timedelta(0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"bootID": "this", "restarts": []}',
        b'{"bootID": "this", "restarts": {"kubelet.service": ["x", 9e9]}}',
    ],
)
def test_a_damaged_file_counts_for_nothing(tmp_path: Path, clock: FakeClock, content: bytes) -> None:
    """Contract 7.5, 7.9: what cannot be read, and moments that have not come yet, hold nothing back."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/restarts.json").write_bytes(content)
    found = budget(tmp_path, clock)
    assert found.wait(UNIT) == timedelta(0)
    found.spend(UNIT)
    assert budget(tmp_path, clock).count(UNIT) == 1


def test_a_file_that_cannot_be_written_is_counted_in_memory(tmp_path: Path, clock: FakeClock) -> None:
    """Contract 7.5, 7.9: with a full /run the restart still counts in this process."""
    (tmp_path / "run").write_text("in the way")
    found = budget(tmp_path, clock)
    found.spend(UNIT)
    assert found.count(UNIT) == 1


def test_the_boot_has_an_id() -> None:
    """Contract 7.5, 7.9: the kernel names this boot."""
    assert len(read_boot_id()) == 36
