"""What a process holds: tasks, file descriptors, timers, and the entries of every container of our own objects."""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

_FEW = 4
"""An event that was read last, a directory in which somebody was busy a moment ago, a timer of either."""


def count(rooms: Sequence[str]) -> dict[str, int]:
    """Count what this process holds, at a moment without faults.

    Args:
        rooms: packages whose objects are looked into.
    """
    gc.collect()
    loop = asyncio.get_running_loop()
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - of this process
        "timers": len(timers),
        **{f"keys of {name}": number for name, number in sorted(_held(rooms).items())},
    }


def grown(counted: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Return what grew from the first to the last count by more than one quiet moment differs from another."""
    first, last = counted[0], counted[-1]
    return {
        name: [one.get(name, 0) for one in counted]
        for name in last
        if last[name] > first.get(name, 0) + (0 if name in ("tasks", "descriptors") else _FEW)
    }


def _held(rooms: Sequence[str]) -> Counter[str]:
    """Return how many entries the containers of our own objects have, by class and attribute."""
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        # An error is held by whoever waits to try again; errors that are kept are entries of what keeps them.
        if str(kind.__module__).partition(".")[0] not in rooms or issubclass(kind, BaseException):
            continue
        for name, value in _attributes(thing):
            if isinstance(value, Sized) and not isinstance(value, str | bytes):
                found[f"{kind.__qualname__}.{name}"] += len(value)
        found[f"{kind.__qualname__} objects"] += 1
    return found


def _attributes(thing: Any) -> Iterator[tuple[str, object]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(thing, name):
                yield name, getattr(thing, name)
