"""Errors, clock and shutdown."""

import asyncio
import os
import weakref
from datetime import UTC, timedelta

import pytest

from agents.core import memory
from agents.core.clock import SystemClock
from agents.core.errors import AgentError, FatalError, RetriableError, TerminalError
from agents.core.memory import release_memory
from agents.core.shutdown import Shutdown
from tests.support.tasks import running


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


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was given back so far."""
    found: list[str] = []
    monkeypatch.setattr(memory, "release_memory", lambda: found.append("released"))
    return found


async def wait_for_threads(released: list[str], number: int) -> None:
    """Let a thread come to its end; virtual time stands still meanwhile."""
    while len(released) < number:
        await asyncio.to_thread(os.sched_yield)


async def test_memory_is_released_after_quiet_only(released: list[str]) -> None:
    """Whoever asks again within 2 s is not held up by it; after quiet it is done, and once more 10 s later."""
    release = memory.MemoryRelease()
    async with running(release.run):
        await asyncio.sleep(60)
        for _ in range(3):
            release.ask()
            await asyncio.sleep(1.5)
        assert not released
        await asyncio.sleep(1)
        await wait_for_threads(released, 1)
        await asyncio.sleep(8)
        assert len(released) == 1
        await asyncio.sleep(4)
        await wait_for_threads(released, 2)
        await asyncio.sleep(1000)
        assert len(released) == 2


async def test_memory_is_released_now_and_then_where_there_is_never_quiet(released: list[str]) -> None:
    """Changes without end do not let it grow."""
    release = memory.MemoryRelease()
    async with running(release.run):
        for _ in range(9):
            release.ask()
            await asyncio.sleep(1)
        assert not released
        for _ in range(3):
            release.ask()
            await asyncio.sleep(1)
        await wait_for_threads(released, 1)


async def test_memory_that_cannot_be_given_back_ends_nothing(
    released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can be started, whoever runs this goes on, and it is tried again when somebody asks."""
    release = memory.MemoryRelease()

    async def refuse(_function: object) -> None:
        raise RuntimeError("can't start new thread")

    async with running(release.run):
        with monkeypatch.context() as full:
            full.setattr(asyncio, "to_thread", refuse)
            release.ask()
            await asyncio.sleep(60)
        assert not released
        release.ask()
        await asyncio.sleep(3)
        await wait_for_threads(released, 1)
