"""Readiness notification."""

import os
import socket
from pathlib import Path

import pytest

from systemd.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_states_are_sent_as_datagrams(tmp_path: Path, abstract: bool) -> None:
    """Each state is one datagram to the socket, on the file system or in the abstract namespace."""
    name = f"@gardener-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if abstract else name)
        notifier = Notifier(address=name)
        for send, expected in (
            (notifier.ready, b"READY=1"),
            (notifier.stopping, b"STOPPING=1"),
            (notifier.watchdog, b"WATCHDOG=1"),
        ):
            assert send()
            assert receiver.recv(100) == expected


@pytest.mark.parametrize("address", [None, "", "/nonexistent/socket"])
def test_without_a_receiver_nothing_happens(address: str | None) -> None:
    """No socket, or one that nobody reads, is not an error."""
    assert not Notifier(address=address).ready()
