"""Lines with elapsed time for whatever takes long, so that a newcomer sees that something happens, and what."""

import contextlib
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
    """Say what is being done, again every few seconds while it lasts, and how long it took."""
    started = time.monotonic()
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(every):
            say(f"{what}: {time.monotonic() - started:.0f} s")

    say(f"{what} ...")
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    say(f"{what}: done in {time.monotonic() - started:.0f} s")
