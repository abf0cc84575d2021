"""Lines with elapsed time for whatever takes long, so that a newcomer sees that something happens, and what."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator

Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Print one line for a person."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Drop a line."""


class Stopwatch:
    """Prefixes lines with the seconds since it was made."""

    def __init__(self, say: Say = to_stderr) -> None:
        self._say = say
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def __call__(self, line: str) -> None:
        """Say a line with the elapsed time."""
        self._say(f"{self.seconds:7.1f}s  {line}")


@contextlib.contextmanager
def ticking(what: str, say: Say, *, every: float = 15.0) -> Iterator[None]:
    """Say what is being done, for how long, and how long it took: on a terminal in one line that changes, else in lines of their own."""
    started = time.monotonic()
    ended = threading.Event()
    live = say is to_stderr and sys.stderr.isatty()

    def tick() -> None:
        while not ended.wait(1.0 if live else every):
            seconds = time.monotonic() - started
            if live:
                _rewrite(f"{what}: {seconds:.0f} s")
            else:
                say(f"{what}: {seconds:.0f} s")

    if live:
        _rewrite(f"{what} ...")
    else:
        say(f"{what} ...")
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if live:
            _rewrite("")
    say(f"{what}: done in {time.monotonic() - started:.0f} s")


def _rewrite(text: str) -> None:
    """Put a text in the place of the terminal's last line."""
    sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
    sys.stderr.flush()
