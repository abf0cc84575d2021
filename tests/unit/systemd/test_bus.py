"""The connection to the bus: it never hangs, comes back, and leaves nothing on stderr."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest
from dbus_next import BusType, Message
from dbus_next.aio import MessageBus

from systemd.bus import Method, SystemBus
from systemd.errors import BusUnavailable, CallFailed, SystemdError, UnitNotFound
from tests.support.fake_systemd import MANAGER, MANAGER_PATH, FakeSystemd

LIST = Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "ListUnits")
RELOAD = Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "Reload")


@pytest.fixture
async def unretrieved() -> list[str]:
    """What the event loop would print on stderr."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(str(context["message"])))
    return found


async def test_call_returns_the_answer(host: FakeSystemd) -> None:
    """A call connects, authenticates and returns the body of the answer; the connection stays."""
    bus = SystemBus(address=host.address)
    assert await bus.call(LIST) == [[]]
    assert await bus.call(RELOAD) == []
    assert host.received == ["Hello", "ListUnits", "Reload"]
    await bus.close()


async def test_first_calls_in_parallel_share_one_connection(host: FakeSystemd) -> None:
    """Contract 6.7: one long-lived connection."""
    bus = SystemBus(address=host.address)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(bus.call(LIST))
    assert host.received.count("Hello") == 1
    await bus.close()


async def test_error_replies_become_our_errors(host: FakeSystemd) -> None:
    """An error reply is raised as the class of its name, with its text and what the call was about."""
    bus = SystemBus(address=host.address)
    start = Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "StartUnit", "ss")
    with pytest.raises(UnitNotFound) as caught:
        await bus.call(start, "x.service", "replace", about={"unit": "x.service"})
    assert caught.value.fields["unit"] == "x.service"
    assert caught.value.fields["call"] == "StartUnit"
    assert caught.value.fields["answer"] == "Unit x.service not found."
    with pytest.raises(CallFailed):
        await bus.call(Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "Unknown"))
    await bus.close()


async def test_bus_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """Without a bus a call fails at once, with the address."""
    with pytest.raises(BusUnavailable, match="not reached") as caught:
        await SystemBus(address=f"unix:path={tmp_path}/none").call(LIST)
    assert caught.value.fields["address"] == f"unix:path={tmp_path}/none"


@pytest.mark.parametrize("address", ["", "tcp:host=localhost,port=1", "unix:tmpdir=/tmp", "nonsense"])
async def test_address_that_is_no_unix_socket_is_refused(address: str) -> None:
    """Only unix sockets are addresses of a system bus."""
    with pytest.raises(BusUnavailable, match="not the address of a unix socket"):
        await SystemBus(address=address).call(LIST)


@pytest.mark.parametrize("address", ["tcp:host=x;unix:path={}", "unix:guid=1,path={}"])
async def test_address_may_be_one_of_several_and_escaped(tmp_path: Path, address: str) -> None:
    """The first unix socket of a list is used, percent escapes are undone."""
    folder = tmp_path / "a b"
    fake = FakeSystemd(folder)
    await fake.start()
    bus = SystemBus(address=address.format(str(folder / "bus").replace(" ", "%20")))
    assert await bus.call(LIST) == [[]]
    await bus.close()
    await fake.stop()


async def test_abstract_socket_is_an_address_too() -> None:
    """An abstract socket is connected by its name."""
    name = f"gardener-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        with pytest.raises(BusUnavailable, match="does not answer"):
            await SystemBus(address=f"unix:abstract={name}", call_deadline=1).call(LIST)


async def test_call_without_an_answer_ends_at_its_deadline(host: FakeSystemd) -> None:
    """Contract 9 W25: every call has a deadline; the connection can be used afterwards."""
    bus = SystemBus(address=host.address, call_deadline=25)
    host.silent = {"Reload"}
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(BusUnavailable, match="in time"):
        await bus.call(RELOAD)
    assert loop.time() - before == pytest.approx(25, abs=0.1)
    assert await bus.call(LIST) == [[]]
    await bus.close()


async def test_connection_without_hello_ends_at_its_deadline(host: FakeSystemd) -> None:
    """A bus that accepts and then says nothing is unavailable after the deadline."""
    host.silent = {"Hello"}
    with pytest.raises(BusUnavailable, match="does not answer"):
        await SystemBus(address=host.address, call_deadline=25).call(LIST)


async def test_end_of_file_during_authentication_is_an_error(host: FakeSystemd) -> None:
    """A bus that closes the connection during authentication is unavailable, at once."""
    host.refuse_login = True
    with pytest.raises(BusUnavailable, match="not reached"):
        await SystemBus(address=host.address).call(LIST)


async def test_endless_line_during_authentication_is_an_error(tmp_path: Path) -> None:
    """A peer that is no bus cannot make us read for ever."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 10_000)
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_unix_server(babble, tmp_path / "bus"):
        with pytest.raises(BusUnavailable, match="not reached"):
            await SystemBus(address=f"unix:path={tmp_path}/bus").call(LIST)


async def test_refused_authentication_is_an_error(tmp_path: Path) -> None:
    """A bus that does not accept our user is unavailable."""

    async def reject(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"REJECTED EXTERNAL\r\n")
        writer.close()

    async with await asyncio.start_unix_server(reject, tmp_path / "bus"):
        with pytest.raises(BusUnavailable, match="not reached"):
            await SystemBus(address=f"unix:path={tmp_path}/bus").call(LIST)


async def test_lost_connection_fails_calls_and_the_next_call_reconnects(
    host: FakeSystemd, unretrieved: list[str]
) -> None:
    """Contract 6.7: with reconnect; a call in flight fails, nothing hangs and nothing is printed."""
    lost: list[int] = []
    bus = SystemBus(address=host.address, on_lost=lambda: lost.append(1))
    host.silent = {"Reload"}
    async with asyncio.TaskGroup() as group:
        pending = [group.create_task(expect_unavailable(bus)) for _ in range(3)]
        await host.wait_called("Reload")
        await host.restart_bus()
    assert all(task.result() for task in pending)
    assert await bus.call(LIST) == [[]]
    assert lost == [1]
    await bus.close()
    await asyncio.sleep(0.1)
    gc.collect()
    await asyncio.sleep(0)
    assert unretrieved == []
    assert lost == [1]


async def expect_unavailable(bus: SystemBus) -> bool:
    """Call something that is never answered."""
    try:
        await bus.call(RELOAD)
    except BusUnavailable as error:
        return error.message in ("system bus connection broke", "system bus connection is gone")
    return False


async def test_answer_that_cannot_be_read_ends_the_connection(host: FakeSystemd) -> None:
    """Garbage on the connection fails the call, not the program; the next call has a new connection."""
    bus = SystemBus(address=host.address)
    assert await bus.call(LIST) == [[]]
    host.silent = {"Reload"}
    async with asyncio.TaskGroup() as group:
        call = group.create_task(expect_unavailable(bus))
        await host.wait_called("Reload")
        host.write_garbage(b"\xff" * 64)
    assert call.result()
    assert await bus.call(LIST) == [[]]
    await bus.close()


async def test_argument_that_cannot_be_sent_is_an_error(host: FakeSystemd) -> None:
    """A value that does not fit its signature never leaves the process, and is our kind of error."""
    bus = SystemBus(address=host.address)
    with pytest.raises(SystemdError):
        await bus.call(Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "StartUnit", "ss"), 1, 2)
    assert await bus.call(LIST) == [[]]
    await bus.close()


async def test_set_up_runs_on_each_connection_before_any_call(host: FakeSystemd) -> None:
    """Contract 6.7: the match rule is installed before the method call, also after a reconnect."""

    async def set_up(bus: SystemBus) -> None:
        await bus.call_during_connect(Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "Subscribe"))

    bus = SystemBus(address=host.address, on_connected=set_up)
    await bus.call(LIST)
    await host.restart_bus()
    await asyncio.sleep(0.1)
    await bus.call(LIST)
    assert host.received == ["Hello", "Subscribe", "ListUnits"] * 2
    await bus.close()


async def test_failed_set_up_leaves_no_connection(host: FakeSystemd) -> None:
    """A connection without its match rules is not used; the next call tries again."""

    async def set_up(bus: SystemBus) -> None:
        await bus.call_during_connect(Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "Nonsense"))

    bus = SystemBus(address=host.address, on_connected=set_up)
    for _ in range(2):
        with pytest.raises(CallFailed):
            await bus.call(LIST)
    assert "ListUnits" not in host.received
    assert host.received.count("Hello") == 2
    with pytest.raises(BusUnavailable, match="broke"):
        await bus.call_during_connect(LIST)


async def test_connection_that_broke_during_set_up_is_not_waited_for(host: FakeSystemd) -> None:
    """Contract 6.7: the library would never answer on such a connection; the call fails at once instead."""

    async def set_up(_bus: SystemBus) -> None:
        await host.stop_bus()
        await asyncio.sleep(0.1)

    bus = SystemBus(address=host.address, on_connected=set_up)
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(BusUnavailable, match="gone"):
        await bus.call(LIST)
    assert loop.time() - before < 1


async def test_call_on_a_connection_that_is_just_being_cut_off_fails_quietly(
    host: FakeSystemd, unretrieved: list[str]
) -> None:
    """A write that fails is the call's error and leaves nothing for stderr."""
    bus = SystemBus(address=host.address)
    await bus.call(LIST)
    host.cut_off()
    with pytest.raises(BusUnavailable, match="broke"):
        await bus.call(RELOAD)
    await bus.close()
    await asyncio.sleep(0.1)
    gc.collect()
    await asyncio.sleep(0)
    assert unretrieved == []


async def test_signals_reach_the_handler(host: FakeSystemd) -> None:
    """Signals are handed over with member and body; answers are not."""
    seen: list[tuple[str, Sequence[object]]] = []

    def handler(member: str, body: Sequence[object]) -> None:
        seen.append((member, body))

    async def set_up(bus: SystemBus) -> None:
        await bus.call_during_connect(Method("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "Subscribe"))

    bus = SystemBus(address=host.address, on_connected=set_up, on_signal=handler)
    await bus.call(LIST)
    host.broadcast(Message.new_signal(MANAGER_PATH, MANAGER, "Something", "s", ["text"]))
    await bus.call(LIST)
    assert seen == [("Something", ["text"])]
    await bus.close()


async def test_close_twice_and_use_again(host: FakeSystemd) -> None:
    """Closing is repeatable, and a later call connects again."""
    bus = SystemBus(address=host.address)
    await bus.close()
    await bus.call(LIST)
    await bus.close()
    await bus.close()
    assert await bus.call(LIST) == [[]]
    await bus.close()


async def test_close_fails_calls_in_flight(host: FakeSystemd) -> None:
    """A call that waits when the connection is closed ends with an error."""
    bus = SystemBus(address=host.address)
    host.silent = {"Reload"}
    async with asyncio.TaskGroup() as group:
        call = group.create_task(expect_unavailable(bus))
        await host.wait_called("Reload")
        await bus.close()
    assert call.result()


async def test_cancelled_call_leaves_the_connection_usable(host: FakeSystemd) -> None:
    """Cancelling who waits for an answer harms nobody else; a late answer is dropped."""
    bus = SystemBus(address=host.address)
    host.silent = {"Reload"}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await bus.call(RELOAD)
    assert await bus.call(LIST) == [[]]
    await bus.close()


async def test_cancelled_connect_leaves_nothing_open(host: FakeSystemd) -> None:
    """Cancelling who connects closes the socket; the next call connects anew."""
    bus = SystemBus(address=host.address)
    host.silent = {"Hello"}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await bus.call(LIST)
    host.silent = set()
    assert await bus.call(LIST) == [[]]
    await bus.close()
    gc.collect()


class Endless(Exception):
    """A loop without a pause had to be interrupted from outside."""


class TestLibraryDefects:
    """Each known defect of dbus-next 0.2.3 that we work around: these fail when the library is repaired."""

    async def test_call_after_the_connection_broke_never_returns(self, host: FakeSystemd) -> None:
        """The library's own call on a broken connection waits for ever; ours looks first."""
        plain = await MessageBus(bus_address=host.address, bus_type=BusType.SYSTEM).connect()
        await host.restart_bus()
        with pytest.raises(EOFError):
            await plain.wait_for_disconnect()
        message = Message("org.freedesktop.systemd1", MANAGER_PATH, MANAGER, "ListUnits")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await plain.call(message)
        asyncio.get_running_loop().remove_writer(plain._fd)
        plain._stream.close()
        plain._sock.close()

    async def test_end_of_file_during_authentication_is_read_for_ever(self, host: FakeSystemd) -> None:
        """The library's reader loops without a pause at an end of file, so that not even a timeout can end it."""
        plain = MessageBus(bus_address=host.address, bus_type=BusType.SYSTEM)
        plain._sock.shutdown(socket.SHUT_RDWR)

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            raise Endless

        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Endless):
                async with asyncio.timeout(0.01):
                    await plain._auth_readline()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            plain._stream.close()
            plain._sock.close()

    async def test_unasked_exceptions_are_printed(self, host: FakeSystemd, unretrieved: list[str]) -> None:
        """The library leaves the exception of a broken connection in a future that nobody reads."""
        plain = await MessageBus(bus_address=host.address, bus_type=BusType.SYSTEM).connect()
        await host.restart_bus()
        await asyncio.sleep(0.1)
        plain._stream.close()
        plain._sock.close()
        del plain
        gc.collect()
        assert unretrieved == ["Future exception was never retrieved"]
