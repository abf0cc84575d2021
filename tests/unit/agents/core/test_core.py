"""Errors, clock and shutdown."""

import asyncio
import weakref
from datetime import UTC, timedelta

from agents.core.clock import SystemClock
from agents.core.errors import AgentError, FatalError, RetriableError, TerminalError
from agents.core.memory import release_memory
from agents.core.shutdown import Shutdown


def test_errors_carry_fields_and_exactly_one_kind() -> None:
    """An error prints its message with its fields; the kinds exclude each other."""
    assert str(AgentError("file not written", path="/x")) == "file not written (path=/x)"
    assert str(AgentError("file not written")) == "file not written"
    assert RetriableError("later", after=timedelta(seconds=3)).after == timedelta(seconds=3)
    kinds = (RetriableError, TerminalError, FatalError)
    assert all(sum(issubclass(kind, other) for other in kinds) == 1 for kind in kinds)


def test_system_clock_is_aware_and_monotonic() -> None:
    """Wall time is aware UTC; monotonic time does not go back."""
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


async def test_shutdown_keeps_the_first_reason() -> None:
    """The first request wins, and whoever waits gets its reason."""
    shutdown = Shutdown()
    assert shutdown.requested is None
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(shutdown.wait())
        shutdown.request("certificate renewed")
        shutdown.request("hostname changed")
    assert waiter.result() == shutdown.requested == "certificate renewed"


def test_memory_is_released_without_harm() -> None:
    """Garbage with a cycle is collected; calling it again is fine."""

    class Node:
        other: object = None

    node = Node()
    node.other = node
    gone = weakref.ref(node)
    del node
    release_memory()
    release_memory()
    assert gone() is None
