"""Progress of what takes long: a line that changes on a terminal, plain lines elsewhere."""

import io
import re
import sys
import threading

import pytest

from tests.lab.progress import ticking, to_stderr


class Stream(io.StringIO):
    """Notes that somebody wrote so many times."""

    def __init__(self, *, terminal: bool, writes: int) -> None:
        super().__init__()
        self._terminal, self._left = terminal, writes
        self.enough = threading.Event()

    def isatty(self) -> bool:
        """Say whether it is a terminal."""
        return self._terminal

    def write(self, text: str) -> int:
        """Write, and count what has a number of seconds."""
        self._left -= bool(re.search(r": \d+ s", text))
        if self._left <= 0:
            self.enough.set()
        return super().write(text)


def test_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the seconds in its place, and only the result is left."""
    stream = Stream(terminal=True, writes=2)
    monkeypatch.setattr(sys, "stderr", stream)
    with ticking("building", to_stderr):
        assert stream.enough.wait(10)
    shown = stream.getvalue()
    assert shown.startswith("\r\x1b[Kbuilding ...\r\x1b[Kbuilding: 1 s\r\x1b[Kbuilding: 2 s")
    assert re.search(r"\r\x1b\[Kbuilding: done in \d+ s\n$", shown)


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain lines, without control characters, also where only the caller's own printer is a pipe."""
    stream = Stream(terminal=False, writes=2)
    monkeypatch.setattr(sys, "stderr", stream)
    with ticking("building", to_stderr, every=0.01):
        assert stream.enough.wait(10)
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("building ...", "building: 0 s", "building: done in 0 s")
    said: list[str] = []
    with ticking("building", said.append):
        pass
    assert said == ["building ...", "building: done in 0 s"]


def test_what_failed_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure leaves no line that says done, and no half line on the terminal."""
    stream = Stream(terminal=True, writes=1)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(OSError, match="disk"), ticking("building", to_stderr):
        raise OSError("disk")
    assert stream.getvalue() == "\r\x1b[Kbuilding ...\r\x1b[K"
