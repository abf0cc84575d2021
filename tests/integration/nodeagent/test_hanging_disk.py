"""A disk that does not answer, as one over a network: in real time, because a thread that hangs stops virtual time."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from agents.core.clock import SystemClock
from nodeagent.controllers.healthcheck import remedy
from nodeagent.controllers.healthcheck.remedy import Remedy
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from systemd.manager import UnitManager


class Units:
    """Fails the test if it is reached while the disk hangs."""

    async def unit(self, name: str) -> object:
        """Take it that a unit was asked for."""
        raise LookupError(name)


async def test_a_disk_that_hangs_takes_one_thread_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 7.5: looked at every 30 s for ever, it would take all threads of the process, and with them the heartbeat's new connections."""
    monkeypatch.setattr(remedy, "_DISK_DEADLINE_SECONDS", 0.01)
    answers, asked = threading.Event(), 0

    def full() -> Path | None:
        nonlocal asked
        asked += 1
        answers.wait(30)
        return None

    clock = SystemClock()
    asking = Remedy(
        units=cast("UnitManager", Units()),
        in_use=UnitsInUse(),
        budget=RestartBudget(path=tmp_path / "restarts", clock=clock, boot_id="b"),
        events=cast("NodeEvents", None),
        clock=clock,
        full_disk=full,
        threshold=timedelta(minutes=1),
    )
    try:
        for _ in range(50):
            refusal = await asking.refusal("kubelet.service")
            assert refusal is not None
            assert "does not answer" in refusal.text
        assert asked == 1
        monkeypatch.setattr(remedy, "_DISK_DEADLINE_SECONDS", 10)
        answers.set()
        for _ in range(2):
            with pytest.raises(LookupError):
                await asking.refusal("kubelet.service")
        assert asked == 2
    finally:
        answers.set()
