"""Blocking work that must not be left behind: a thread cannot be cancelled, so whoever is cancelled waits for it."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def run_to_end(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a thread like `asyncio.to_thread`, and outlive a cancellation until it has returned.

    For work after which somebody else may touch the same state; the work itself must be short.
    """
    context = contextvars.copy_context()
    call = functools.partial(context.run, function, *args, **kwargs)
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # retrieved: the cancellation is what counts
        raise


class Stopped(Exception):
    """The work was given up, because whoever waited for it is cancelled."""


Stop = Callable[[], None]
"""Called by the work now and then: raises Stopped once it is to be given up."""


async def run_until_stopped(function: Callable[[Stop], R]) -> R:
    """Run longer work in a thread; after a cancellation it is given up at its next look at `stop`, and waited for."""
    given_up = threading.Event()

    def stop() -> None:
        if given_up.is_set():
            raise Stopped

    future = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, function, stop)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        given_up.set()
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # retrieved: the cancellation is what counts
        raise
