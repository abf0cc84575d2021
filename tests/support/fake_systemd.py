"""A system bus with a systemd behind it, in this process, on a unix socket: it parses unit files and runs what they say.

It speaks the D-Bus protocol, so that everything above the socket is the product's. What it does was checked against the
real systemd: `tests/support/systemd_behaviour.py` runs against both.

Commands in unit files that it understands: `/bin/sleep infinity` (runs for ever), `/bin/true`, `/bin/false`, a program that
does not exist, and a gate: `/bin/sh -c "until [ -e /run/gate-NAME ]; do sleep 0.05; done; exit CODE"`.
"""

import asyncio
import configparser
import re
import shlex
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from dbus_next import Message, MessageType, Variant
from dbus_next._private.unmarshaller import Unmarshaller

from systemd.units import object_path

DESTINATION = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
UNIT_DIRECTORY = "etc/systemd/system"
RUNTIME_DIRECTORY = "run/systemd/system"
VENDOR_DIRECTORY = "usr/lib/systemd/system"
ENVIRONMENT = ("LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
_GATE = re.compile(r'/bin/sh -c "until \[ -e /run/gate-(\w+) \]; do sleep 0\.05; done; exit (\d+)"')
_NAME = re.compile(r"^[\w:.\\@-]+\.(service|target|timer|path|socket|mount|slice)$")


class Refused(Exception):
    """An error reply."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass
class FakeUnit:
    """A unit as loaded: its settings, and its state."""

    name: str
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    text: str | None = None
    load_state: str = "loaded"
    fragment: str = ""
    active_state: str = "inactive"
    sub_state: str = "dead"
    result: str = "success"
    changed: float = 0.0
    since: int = 1_767_225_600
    triggered_by: tuple[str, ...] = ()
    job: "FakeJob | None" = None

    def set_state(self, active: str, sub: str) -> None:
        """Change its state now."""
        self.active_state, self.sub_state = active, sub
        self.changed = asyncio.get_running_loop().time()
        # Before whatever is written from now on: files are stamped by a clock of the kernel that ticks a few milliseconds late.
        self.since = int(time.time()) - 1

    def get(self, section: str, key: str, default: str = "") -> str:
        """Return a setting."""
        return self.settings.get(section, {}).get(key.lower(), default)


@dataclass
class FakeJob:
    """A queued or running job."""

    number: int
    unit: FakeUnit
    kind: str
    task: "asyncio.Task[None] | None" = None

    @property
    def path(self) -> str:
        """Its object path."""
        return f"{MANAGER_PATH}/job/{self.number}"


class FakeSystemd:
    """The machine: unit files below `root`, gates, and the bus.

    Attributes:
        signals_before_reply: a job that ends at once sends its signal before the method's reply.
        drop_signals: job results get lost.
        silent: calls of these members are never answered.
        refuse_login: authentication ends with an end of file.
        refuse_next: so many calls of unit files are refused.
        received: members of all calls that came.
        bodies: their arguments.
        jobs: kind and unit of all jobs that were queued.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = f"unix:path={root}/bus"
        self.units: dict[str, FakeUnit] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.signals_before_reply = False
        self.drop_signals = False
        self.silent: set[str] = set()
        self.refuse_login = False
        self.refuse_next = 0
        self.received: list[str] = []
        self.bodies: list[list[Any]] = []
        self.jobs: list[tuple[str, str]] = []
        self._called: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._jobs = 0
        self._serial = 0
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.StreamWriter] = set()
        self._subscribed: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        (root / UNIT_DIRECTORY).mkdir(parents=True)

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, f"{self.root}/bus")

    async def stop(self) -> None:
        """End the bus and all jobs."""
        await self.stop_bus()
        for task in list(self._tasks):
            task.cancel()

    async def stop_bus(self) -> None:
        """End the bus, as a crash of dbus-daemon does; jobs go on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut_off()
        (self.root / "bus").unlink(missing_ok=True)
        await asyncio.sleep(0)

    def cut_off(self) -> None:
        """End all connections."""
        for peer in self._peers:
            peer.transport.abort()
        self._peers.clear()
        self._subscribed.clear()

    async def restart_bus(self) -> None:
        """Restart the bus: every client is cut off."""
        await self.stop_bus()
        await self.start()

    def write_unit(self, name: str, text: str) -> None:
        """Place a unit file."""
        (self.root / UNIT_DIRECTORY / name).write_text(text)

    def unit(self, name: str) -> FakeUnit:
        """Return a unit as loaded."""
        return self._load(name)

    def mask(self, name: str, *, runtime: bool = False) -> None:
        """Mask a unit, for good or until the next boot."""
        folder = self.root / (RUNTIME_DIRECTORY if runtime else UNIT_DIRECTORY)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to("/dev/null")

    async def open_gate(self, name: str) -> None:
        """Let the command that waits for this gate end."""
        self._gate(name).set()

    def is_enabled(self, name: str, *, target: str = "multi-user.target") -> bool:
        """Tell whether the link exists that starts the unit at boot."""
        return (self.root / UNIT_DIRECTORY / f"{target}.wants" / name).is_symlink()

    def broadcast(self, message: Message) -> None:
        """Send a signal to everybody who subscribed."""
        for peer in list(self._subscribed):
            self._send(peer, message)

    async def wait_called(self, member: str) -> None:
        """Wait until a call of this member has come."""
        await self._called[member].wait()

    def write_garbage(self, data: bytes) -> None:
        """Send bytes that are no message to every client."""
        for peer in self._peers:
            peer.write(data)

    def _gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    # The bus.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers.add(writer)
        try:
            await reader.readexactly(1)
            await reader.readuntil(b"\r\n")
            if self.refuse_login:
                return
            writer.write(b"OK 0123456789abcdef0123456789abcdef\r\n")
            await reader.readuntil(b"\r\n")
            while True:
                self._answer(writer, await _read_message(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # A peer that went away, as peers do.
        finally:
            self._peers.discard(writer)
            self._subscribed.discard(writer)
            writer.close()

    def _answer(self, peer: asyncio.StreamWriter, call: Message) -> None:
        member = call.member or ""
        self.received.append(member)
        self.bodies.append(call.body)
        self._called[member].set()
        if member in self.silent:
            return
        try:
            signature, body, after = self._call(peer, call)
            reply = Message.new_method_return(call, signature, body)
        except Refused as error:
            reply, after = Message.new_error(call, error.name, str(error)), None
        if after is not None and self.signals_before_reply:
            after()
            after = None
        self._send(peer, reply)
        if after is not None:
            after()

    def _call(self, peer: asyncio.StreamWriter, call: Message) -> tuple[str, list[object], Callable[[], None] | None]:
        match call.member, call.body:
            case "Hello", _:
                return "s", [":1.7"], None
            case "AddMatch" | "Subscribe", _:
                self._subscribed.add(peer)
                return "", [], None
            case "Reload", _:
                self._reload()
                return "", [], None
            case "GetUnitFileState", [str(name)]:
                return "s", [self._unit_file_state(name)], None
            case "ListUnits", _:
                rows = [_row(unit) for unit in self.units.values()]
                return "a(ssssssouso)", [rows], None
            case "ListUnitsByNames", [list(names)]:
                rows = [_row(self._load(self._primary(str(name)))) for name in names if _NAME.match(str(name))]
                return "a(ssssssouso)", [rows], None
            case (("StartUnit" | "StopUnit" | "RestartUnit"), [str(name), "replace"]):
                job, run = self._queue(str(call.member).removesuffix("Unit").lower(), name)
                return "o", [job.path], run
            case "ResetFailedUnit", [str(name)]:
                self._reset_failed(name)
                return "", [], None
            case "EnableUnitFiles", _ if self.refuse_next:
                self.refuse_next -= 1
                raise Refused("org.freedesktop.DBus.Error.LimitsExceeded", "not now")
            case "EnableUnitFiles", [list(names), False, True]:
                for name in names:
                    self._install(str(name))
                made = [change for name in names for change in self._enable(str(name))]
                return "ba(sss)", [True, made], None
            case "DisableUnitFiles", [list(names), False]:
                gone = [change for name in names for change in self._disable(str(name))]
                return "a(sss)", [gone], None
            case "Get", [str(interface), "Environment"] if interface == MANAGER:
                return "v", [Variant("as", list(ENVIRONMENT))], None
            case (("GetAll" | "Get"), [str(interface), *rest]):
                name = re.sub("_([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), str(call.path).rpartition("/")[2])
                found = self._properties(self._load(name), interface)
                return ("v", [found[str(rest[0])]], None) if rest else ("a{sv}", [found], None)
        raise Refused("org.freedesktop.DBus.Error.UnknownMethod", f"unknown method {call.member}")

    def _unit_file_state(self, name: str) -> str:
        unit = self._read(FakeUnit(name))
        if unit.load_state == "masked":
            return "masked" if self._file(name).is_relative_to(self.root / UNIT_DIRECTORY) else "masked-runtime"
        if unit.load_state == "not-found":
            raise Refused("org.freedesktop.DBus.Error.FileNotFound", "No such file or directory")
        targets = unit.get("Install", "WantedBy").split()
        if not targets:
            return "static"
        return "enabled" if all(self.is_enabled(name, target=target) for target in targets) else "disabled"

    def _properties(self, unit: FakeUnit, interface: str) -> dict[str, Variant]:
        if interface == "org.freedesktop.systemd1.Unit":
            return _unit_properties(unit)
        if not unit.name.endswith(".service"):
            raise Refused("org.freedesktop.DBus.Error.UnknownInterface", f"Unknown interface {interface}.")
        return {
            "Result": Variant("s", unit.result),
            "Type": Variant("s", unit.get("Service", "Type", "simple")),
            "Environment": Variant("as", shlex.split(unit.get("Service", "Environment"))),
        }

    def _send(self, peer: asyncio.StreamWriter, message: Message) -> None:
        self._serial += 1
        message.serial = self._serial
        message.sender = DESTINATION
        if not peer.is_closing():
            peer.write(message._marshall())

    # Unit files.

    def _primary(self, name: str) -> str:
        """Return the name of the unit of which this is an alias."""
        path = self.root / UNIT_DIRECTORY / name
        target = path.readlink().name if path.is_symlink() else "null"
        return name if target == "null" else target

    def _load(self, name: str) -> FakeUnit:
        if "@." in name:
            raise Refused("org.freedesktop.DBus.Error.InvalidArgs", f"Unit name {name} is missing the instance name.")
        if not _NAME.match(name):
            raise Refused("org.freedesktop.DBus.Error.InvalidArgs", f"Unit name {name} is not valid.")
        if name not in self.units or self.units[name].load_state == "not-found":
            self.units[name] = self._read(FakeUnit(name))
        return self.units[name]

    def _file(self, name: str) -> Path:
        template = self.root / UNIT_DIRECTORY / re.sub("@.*\\.", "@.", name)
        places = (self.root / folder / name for folder in (UNIT_DIRECTORY, RUNTIME_DIRECTORY, VENDOR_DIRECTORY))
        return next((path for path in places if path.exists() or path.is_symlink()), template)

    def _read(self, unit: FakeUnit) -> FakeUnit:
        path = self._file(unit.name)
        unit.settings, unit.fragment, unit.text = {}, "", None
        if path.is_symlink() and str(path.readlink()) == "/dev/null":
            unit.load_state = "masked"
        elif not path.is_file():
            unit.load_state = "not-found"
        else:
            unit.text, unit.fragment = path.read_text(), f"/{path.relative_to(self.root)}"
            parser = configparser.ConfigParser(strict=False, interpolation=None)
            try:
                parser.read_string(unit.text)
                unit.settings, unit.load_state = {key: dict(parser[key]) for key in parser.sections()}, "loaded"
            except configparser.Error:
                unit.load_state = "error"
        return unit

    def _reload(self) -> None:
        for unit in self.units.values():
            self._read(unit)

    def _install(self, name: str) -> tuple[FakeUnit, list[Path]]:
        unit = self._read(FakeUnit(name)) if _NAME.match(name) else self._load(name)
        if unit.load_state == "masked":
            raise Refused("org.freedesktop.systemd1.UnitMasked", f"Unit file {name} is masked.")
        if unit.load_state == "not-found":
            raise Refused("org.freedesktop.systemd1.NoSuchUnit", f"Unit file {name} does not exist.")
        folder = self.root / UNIT_DIRECTORY
        links = [folder / f"{target}.wants" / name for target in unit.get("Install", "WantedBy").split()]
        return unit, links + [folder / alias for alias in unit.get("Install", "Alias").split()]

    def _enable(self, name: str) -> list[list[str]]:
        """Make the links of a unit; returns those that were not there as they have to be."""
        unit, links = self._install(name)
        made = []
        for link in links:
            if link.is_symlink() and str(link.readlink()) == unit.fragment:
                continue
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(unit.fragment)
            made.append(["symlink", str(link), unit.fragment])
        return made

    def _disable(self, name: str) -> list[list[str]]:
        """Remove the links of a unit; returns those that were there."""
        gone = [link for link in self._install(name)[1] if link.is_symlink()]
        for link in gone:
            link.unlink()
        return [["unlink", str(link), ""] for link in gone]

    def _reset_failed(self, name: str) -> None:
        unit = self.units.get(name)
        if unit is None or (unit.load_state == "not-found" and unit.active_state == "inactive"):
            raise Refused("org.freedesktop.systemd1.NoSuchUnit", f"Unit {name} not loaded.")
        if unit.active_state == "failed":
            unit.active_state, unit.sub_state, unit.result = "inactive", "dead", "success"

    # Jobs.

    def _queue(self, kind: str, name: str) -> tuple[FakeJob, Callable[[], None]]:
        unit = self._load(name)
        if unit.load_state == "not-found":
            raise Refused("org.freedesktop.systemd1.NoSuchUnit", f"Unit {name} not found.")
        if unit.load_state == "masked":
            raise Refused("org.freedesktop.systemd1.UnitMasked", f"Unit {name} is masked.")
        if unit.load_state == "error":
            raise Refused("org.freedesktop.DBus.Error.InconsistentMessage", f"Unit {name} failed to load properly.")
        if unit.job is not None:
            self._finish(unit.job, "canceled")
        self._jobs += 1
        self.jobs.append((kind, name))
        job = FakeJob(self._jobs, unit, kind)
        unit.job = job
        return job, lambda: self._run(job)

    def _run(self, job: FakeJob) -> None:
        unit = job.unit
        if job.kind == "stop":
            unit.set_state("inactive", "dead")
            unit.result = "success"
            self._finish(job, "done")
            return
        if (early := self._refused_start(unit)) is not None:
            self._finish(job, early)
            return
        command = unit.get("Service", "ExecStart")
        if (gate := _GATE.search(command)) is not None and unit.get("Service", "Type") == "oneshot":
            unit.set_state("activating", "start")
            task = asyncio.get_running_loop().create_task(self._wait_for_gate(job, gate[1], int(gate[2])))
            job.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        failed = command == "/bin/false" or command.startswith("/nonexistent")
        oneshot = unit.get("Service", "Type") == "oneshot"
        self._end_start(unit, failed=failed, oneshot=oneshot or command in ("/bin/true", "/bin/false"))
        self._finish(job, "failed" if failed and oneshot else "done")

    def _refused_start(self, unit: FakeUnit) -> str | None:
        required = unit.get("Unit", "Requires")
        if required and self._load(required).get("Service", "ExecStart") == "/bin/false":
            return "dependency"
        if condition := unit.get("Unit", "ConditionPathExists"):
            return None if Path(condition).exists() else "done"
        if assertion := unit.get("Unit", "AssertPathExists"):
            return None if Path(assertion).exists() else "assert"
        return None

    def _end_start(self, unit: FakeUnit, *, failed: bool, oneshot: bool) -> None:
        unit.result = "exit-code" if failed else "success"
        if failed:
            unit.set_state("failed", "failed")
        else:
            unit.set_state(*(("inactive", "dead") if oneshot else ("active", "running")))

    async def _wait_for_gate(self, job: FakeJob, gate: str, code: int) -> None:
        limit = job.unit.get("Unit", "JobTimeoutSec")
        try:
            async with asyncio.timeout(float(limit) if limit else None):
                await self._gate(gate).wait()
        except TimeoutError:
            self._finish(job, "timeout")
            return
        self._end_start(job.unit, failed=code != 0, oneshot=True)
        self._finish(job, "failed" if code else "done")

    def _finish(self, job: FakeJob, result: str) -> None:
        if job.task is not None and result == "canceled":
            job.task.cancel()
        job.unit.job = None
        if not self.drop_signals:
            body = [job.number, job.path, job.unit.name, result]
            self.broadcast(Message.new_signal(MANAGER_PATH, MANAGER, "JobRemoved", "uoss", body))


def _row(unit: FakeUnit) -> list[object]:
    number, kind, path = (unit.job.number, unit.job.kind, unit.job.path) if unit.job else (0, "", "/")
    states = [unit.load_state, unit.active_state, unit.sub_state]
    return [unit.name, unit.name, *states, "", object_path(unit.name), number, kind, path]


def _unit_properties(unit: FakeUnit) -> dict[str, Variant]:
    job = [unit.job.number, unit.job.path] if unit.job else [0, "/"]
    return {
        "LoadState": Variant("s", unit.load_state),
        "ActiveState": Variant("s", unit.active_state),
        "SubState": Variant("s", unit.sub_state),
        "UnitFileState": Variant("s", ""),
        "FragmentPath": Variant("s", unit.fragment),
        "Job": Variant("(uo)", job),
        "StateChangeTimestamp": Variant("t", unit.since * 1_000_000),
        "StateChangeTimestampMonotonic": Variant("t", int(unit.changed * 1_000_000)),
        "TriggeredBy": Variant("as", list(unit.triggered_by)),
        "InvocationID": Variant("ay", b"\x01\x02"),
        "NeedDaemonReload": Variant("b", False),
    }


async def _read_message(reader: asyncio.StreamReader) -> Message:
    head = await reader.readexactly(16)
    body_length = int.from_bytes(head[4:8], "little")
    fields_length = int.from_bytes(head[12:16], "little")
    rest = await reader.readexactly(fields_length + -fields_length % 8 + body_length)
    message = Unmarshaller(BytesIO(head + rest)).unmarshall()
    assert message is not None
    assert message.message_type is MessageType.METHOD_CALL
    return message
