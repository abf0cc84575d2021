"""What a running process is doing, under the paths at which Go programs tell it: stacks of tasks and threads, and where time goes.

Only where the configuration enables it (`debugging.enableProfiling`). Stacks have names of functions and lines, and no values. The
profile is a list of stacks with how often each was seen, "folded" as flame graph tools and speedscope read it; Go's own format
would need Go's tools for a Python program.

Source: gardener pkg/controllerutils/routes/profiling.go (contract core 1.6).
"""

import asyncio
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from aiohttp import web

SAMPLES_PER_SECOND = 100
LONGEST_SECONDS = 300.0
_INDEX = """\
/debug/pprof/profile?seconds=30  stacks of all threads, {rate} times a second, folded: one line each, with how often it was seen
/debug/pprof/trace               the tasks of the event loop, with their stacks
/debug/pprof/symbol              nothing: stacks have names already

{threads}"""


def profiling_routes() -> list[web.RouteDef]:
    """Return the routes; one profile at a time."""
    busy = asyncio.Lock()

    async def redirect(_request: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently("/debug/pprof/")

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=_INDEX.format(rate=SAMPLES_PER_SECOND, threads="\n".join(thread_stacks())))

    async def profile(request: web.Request) -> web.Response:
        seconds = _seconds(request)
        if busy.locked():
            raise web.HTTPConflict(text="another profile is being taken\n")
        async with busy:
            return web.Response(text="\n".join(await asyncio.to_thread(folded_stacks, seconds)) + "\n")

    async def trace(_request: web.Request) -> web.Response:
        return web.Response(text="\n".join(task_stacks()))

    async def symbol(_request: web.Request) -> web.Response:
        return web.Response(text="num_symbols: 0\n")

    return [
        web.get("/debug/pprof", redirect),
        web.get("/debug/pprof/", index),
        web.get("/debug/pprof/profile", profile),
        web.get("/debug/pprof/trace", trace),
        web.get("/debug/pprof/symbol", symbol),
        web.post("/debug/pprof/symbol", symbol),
    ]


def _seconds(request: web.Request) -> float:
    text = request.query.get("seconds", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_SECONDS:
        raise web.HTTPBadRequest(text=f"seconds: {text!r} is not above 0 and at most {LONGEST_SECONDS:g}\n")
    return seconds


def folded_stacks(seconds: float) -> list[str]:
    """Look at the stacks of all other threads for so long, from this thread; returns `outer;inner count`, the most frequent first."""
    own, seen, end = threading.get_ident(), Counter[str](), time.monotonic() + seconds
    while time.monotonic() < end:
        for thread, frame in _frames().items():
            if thread != own:
                seen[";".join(reversed(list(_names(frame))))] += 1
        time.sleep(1 / SAMPLES_PER_SECOND)
    return [f"{stack} {count}" for stack, count in seen.most_common()]


def _frames() -> dict[int, FrameType]:
    return sys._current_frames()  # noqa: SLF001 - documented, and there is no other way


def _names(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"
        frame = frame.f_back


def thread_stacks() -> Iterator[str]:
    """Yield each thread with its stack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in _frames().items():
        yield f"thread {names.get(ident, ident)}:"
        yield "".join(traceback.format_stack(frame))


def task_stacks() -> Iterator[str]:
    """Yield each task of the running event loop with what it waits for, by name."""
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        yield f"task {task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')}"
        frames = list(_awaiting(task.get_coro())) or task.get_stack()
        yield "".join(line for frame in frames for line in traceback.format_stack(frame, limit=1))


def _awaiting(waiting: object) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of those that it awaits, the outermost first; a task that runs has none."""
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            return
        yield frame
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
