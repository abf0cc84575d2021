"""systemd's watchdog is served as long as the heartbeat is tried."""

import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from agents.runtime.reconcile import Request, Result
from nodeagent.controllers.watchdog import WatchdogReconciler, period
from systemd.notify import Notifier, ServiceEnvironment

KEY = Request("", "watchdog")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(1)
        yield listening


@pytest.mark.parametrize(("text", "seconds"), [("30000000", 15.0), ("", None), ("0", None), ("x", None), ("-1", None)])
def test_half_of_what_systemd_waits(text: str, seconds: float | None) -> None:
    """Issue section 2: only where WATCHDOG_USEC is set, and in time."""
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert period(ServiceEnvironment.of({"WATCHDOG_USEC": text}).watchdog_usec) == expected


async def test_it_is_served_only_while_the_heartbeat_is_tried(manager: socket.socket, tmp_path: Path) -> None:
    """Issue section 2: before there is a Node, and while the heartbeat is tried; not once it is stuck; then again."""
    silence: list[float | None] = [None]
    notifier = Notifier(address=str(tmp_path / "notify"))
    reconciler = WatchdogReconciler(notifier=notifier, every=timedelta(seconds=15), silence=lambda: silence[0])
    for value in (None, 0.0, 60.0):
        silence[0] = value
        assert await reconciler.reconcile(KEY) == Result(requeue_after=timedelta(seconds=15))
        assert manager.recv(100) == b"WATCHDOG=1"
    silence[0] = 60.1
    await reconciler.reconcile(KEY)
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)
    silence[0] = 1.0
    await reconciler.reconcile(KEY)
    assert manager.recv(100) == b"WATCHDOG=1"
