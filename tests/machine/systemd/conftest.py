"""One machine for all tests of this folder, seen through its system bus."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.lab.cluster import Lab
from tests.lab.machine import Machine


class RealHost:
    """A systemd machine of the lab; its bus is reached from the host through the machine's root."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def address(self) -> str:
        """D-Bus address of the system bus."""
        return f"unix:path={self.machine.path('/run/dbus/system_bus_socket')}"

    def write_unit(self, name: str, text: str) -> None:
        """Place a unit file in /etc/systemd/system."""
        self.machine.write(f"/etc/systemd/system/{name}", text.encode())

    def mask(self, name: str) -> None:
        """Mask a unit."""
        self.machine.path(f"/etc/systemd/system/{name}").symlink_to("/dev/null")

    def is_enabled(self, name: str, *, target: str = "multi-user.target") -> bool:
        """Tell whether the link exists that starts the unit at boot."""
        return self.machine.path(f"/etc/systemd/system/{target}.wants/{name}").is_symlink()

    async def open_gate(self, name: str) -> None:
        """Let the command of a gated unit end."""
        await self.run("touch", f"/run/gate-{name}")

    async def restart_bus(self) -> None:
        """Kill the bus daemon; its socket brings it back."""
        await self.run("systemctl", "kill", "--signal=KILL", "dbus.service")

    async def run(self, *argv: str) -> str:
        """Run a program in the machine."""
        return (await asyncio.to_thread(self.machine.run, argv)).stdout


@pytest.fixture(scope="package")
def host(lab: Lab) -> Iterator[RealHost]:
    """The machine; tests use unit names of their own."""
    with lab.removed_after(lab.add_machine("systemd-machine")) as machine:
        yield RealHost(machine)
