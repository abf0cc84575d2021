"""A host name that changes."""

import asyncio

from nodeagent.controllers import hostnamecheck
from tests.support.own_node import NAME, OwnNode


class Kernel:
    """The host name of the moment."""

    def __init__(self) -> None:
        self.name = NAME
        self.broken = False
        self.reads = 0

    def read(self) -> str:
        """Return it."""
        self.reads += 1
        if self.broken:
            raise OSError("no host name")
        return self.name


async def test_a_changed_hostname_ends_the_process_within_a_look(machine: OwnNode) -> None:
    """Contract 7.6: looked at every 30 s; another name is said on the Node and ends the process."""
    kernel = Kernel()
    machine.register()
    controller = hostnamecheck.new_controller(
        hostname=NAME, read=kernel.read, events=machine.speaker("hostname-check"), shutdown=machine.shutdown
    )
    async with machine.running(controller):
        await asyncio.sleep(89)
        assert (kernel.reads, machine.shutdown.requested) == (3, None)
        kernel.name = "renamed"
        await asyncio.sleep(33)
        assert machine.shutdown.requested == "host name changed"
    (note,) = machine.notes("HostNameChanged")
    assert note.startswith(f"Warning: host name changed from {NAME} to renamed")


async def test_a_hostname_that_comes_back_at_once_ends_nothing(machine: OwnNode) -> None:
    """Contract 7.6: a name that was there for less than two seconds, as while DHCP sets it, is no change."""
    kernel = Kernel()
    controller = hostnamecheck.new_controller(
        hostname=NAME, read=kernel.read, events=machine.speaker("hostname-check"), shutdown=machine.shutdown
    )
    async with machine.running(controller):
        kernel.name = "localhost"
        await asyncio.sleep(30)
        assert kernel.reads == 2
        kernel.name = NAME
        await asyncio.sleep(300)
        assert machine.shutdown.requested is None


async def test_w25_an_error_reading_the_hostname_backs_off_and_the_check_goes_on(machine: OwnNode) -> None:
    """Contract 7.6, 9 W25: a host name that cannot be read ends nothing; the check goes on within 30 s of its return."""
    kernel = Kernel()
    kernel.broken = True
    controller = hostnamecheck.new_controller(
        hostname=NAME, read=kernel.read, events=machine.speaker("hostname-check"), shutdown=machine.shutdown
    )
    async with machine.running(controller):
        await asyncio.sleep(600)
        assert machine.shutdown.requested is None
        assert kernel.reads < 45
        kernel.broken, kernel.name = False, "renamed"
        await asyncio.sleep(33)
        assert machine.shutdown.requested == "host name changed"
