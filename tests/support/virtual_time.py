"""An event loop whose clock jumps to the next timer when nothing is left to do.

`await asyncio.sleep(600)` in a test costs nothing and happens in the right order. While a thread works for the loop
(`asyncio.to_thread`), or a program that it started runs, time stands still, as the loop cannot know how long that would
have taken.
"""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

_THREAD_POLL_SECONDS = 0.05
_DEADLOCK_SECONDS = 10.0


class _VirtualSelector(selectors.DefaultSelector):
    def __init__(self, loop: "VirtualTimeLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self._loop.threads:
            return super().select(_THREAD_POLL_SECONDS)
        if timeout is None:
            # A thread that wakes the loop by itself, such as the executor's shutdown, needs real time.
            if not (events := super().select(_DEADLOCK_SECONDS)):
                raise RuntimeError("every task waits for something that no timer will bring: deadlock")
            return events
        self._loop.advance(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module. Starts at 1000 seconds, so that nothing mistakes 0 for a time."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.threads = 0
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        """Return virtual seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._now += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Stop the clock until the thread is done."""
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """Stop the clock until the program has ended."""
        self.threads += 1
        try:
            transport, protocol = await super().subprocess_exec(*args, **kwargs)
        except BaseException:
            self.threads -= 1
            raise
        self._ending = asyncio.ensure_future(transport._wait())  # type: ignore[attr-defined]  # noqa: TID251 - of the loop itself
        self._ending.add_done_callback(self._thread_done)
        return transport, protocol

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Stop the clock until the threads have ended; from Python 3.12 on the loop waits for them with a deadline."""
        self.threads += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self.threads -= 1

    def _thread_done(self, _future: "asyncio.Future[Any]") -> None:
        self.threads -= 1
