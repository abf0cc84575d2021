"""Names of hosts: looked up beside everything else."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.resolver import ThreadedResolver

from agents.core.names import Names, TooManyLookups

ADDRESS = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 443))]


class NameServer:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def look_up(self, host: str, _port: int, **_more: object) -> list[Any]:
        """Wait, and return an address, or none for a bad name."""
        self.asked.append(host)
        self.answers.wait(10)
        if host == "bad.example":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ADDRESS


@pytest.fixture
def server() -> Iterator[NameServer]:
    """A name server that is silent so far."""
    found = NameServer()
    yield found
    found.answers.set()


async def test_the_answers_are_those_of_the_library() -> None:
    """The same addresses, in the same form, as aiohttp finds by itself."""
    for family in (socket.AF_INET, socket.AF_UNSPEC):
        ours = await Names().resolve("localhost", 443, family)
        assert ours == await ThreadedResolver().resolve("localhost", 443, family)
        assert ours


async def test_a_name_is_looked_up_once_at_a_time(server: NameServer) -> None:
    """However often it is asked for, and although whoever asked first has given up; afterwards it is looked up anew."""
    names = Names(look_up=server.look_up)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await names.resolve("slow.example", 443)
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(names.resolve("slow.example", 443)) for _ in range(2)]
        await asyncio.sleep(0)
        server.answers.set()
    assert [task.result()[0]["host"] for task in both] == ["192.0.2.1", "192.0.2.1"]
    assert server.asked == ["slow.example"]
    await names.resolve("slow.example", 443)
    assert server.asked == ["slow.example"] * 2


async def test_names_without_an_answer_take_no_thread_of_others(server: NameServer) -> None:
    """The threads that all share stay free, and there is an end to the number of lookups."""
    names = Names(look_up=server.look_up)
    for index in range(32):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await names.resolve(f"dead-{index}.example", 443)
    with pytest.raises(TooManyLookups):
        await names.resolve("one-more.example", 443)
    assert await asyncio.to_thread(lambda: "free") == "free"


@pytest.mark.parametrize("name", ["bad.example", "x" * 64 + ".example"])
async def test_a_name_without_address_is_an_error(server: NameServer, name: str) -> None:
    """As for the library: an OSError, also for what is no name at all."""
    server.answers.set()
    names = Names(look_up=server.look_up) if name == "bad.example" else Names()
    with pytest.raises(OSError, match=r"unknown|not a name"):
        await names.resolve(name, 443)
