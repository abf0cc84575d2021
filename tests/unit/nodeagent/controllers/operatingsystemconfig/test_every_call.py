"""Each call of an apply fails once, or is the last one of its process: it is caught up with, and nothing of the moment stays.

`make chaos` does the same on machines; here it takes seconds.
"""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from agents.core.errors import AgentError
from tests.support.fake_systemd import FakeSystemd
from tests.support.killed_agent import Killed, deadly
from tests.support.osc_agent import SLEEP, OscAgent, containerd, from_image, from_secret, inline
from tests.support.system_calls import system_calls

KINDS = {
    "fsync": ("fsync",),
    "rename": ("rename", "replace"),
    "unlink": ("unlink", "rmdir"),
    "link": ("link",),
    "mode": ("chmod", "fchmod", "chown", "fchown"),
    "mkdir": ("mkdir",),
}
IMAGE = "registry.local/tool@sha256:1"
PATIENCE = 120
OTHER = "registry.local/tool@sha256:2"


def _publish(node: OscAgent, side: int) -> str:
    """Publish one of two OSCs that differ in every kind of item."""
    unit = {"name": "a.service", "content": SLEEP, "command": "start", "filePaths": ["/opt/a"]}
    if side == 0:
        return node.publish(
            files=[inline("/opt/a", "one", 0o640), from_secret("/opt/b", "s"), from_image("/opt/c", IMAGE, "/tool")],
            units=[
                {**unit, "dropIns": [{"name": "10.conf", "content": "[Service]\n"}]},
                {"name": "b.service", "content": SLEEP},
            ],
            criConfig=containerd(registries=[{"upstream": "one.example", "hosts": [{"url": "https://m.example"}]}]),
        )
    return node.publish(
        files=[inline("/opt/a", "two", 0o600), inline("/etc/d", "d"), from_image("/opt/e/f", OTHER, "/tool")],
        units=[{**unit, "dropIns": [{"name": "20.conf", "content": "[Service]\n"}]}],
        criConfig=containerd(registries=[{"upstream": "two.example", "hosts": [{"url": "https://m.example"}]}]),
    )


def _rest(node: OscAgent) -> None:
    """Assert that nothing is left of the apply."""
    pending = json.loads(node.paths.pending_changes.read_text())
    assert not any(pending["x-journal"]["touched"].values()), pending["x-journal"]["touched"]
    assert not pending.get("files")
    assert not pending.get("units")
    assert list(node.root.rglob(".*.tmp")) == []


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_the_disk_is_caught_up_with(tmp_path: Path, kind: str, side: int) -> None:
    """Each call of one kind fails once."""
    wanted = await _unharmed(tmp_path / "unharmed", side)
    for at in count(1):
        if await _fails_once(tmp_path / str(at), KINDS[kind], at, side, wanted) < at:
            assert at > 1, "there is no such call"
            break


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("part", range(2))
async def test_an_apply_that_is_killed_anywhere_comes_to_its_end(tmp_path: Path, part: int, side: int) -> None:
    """Contract 6.4: the next process goes on from the journal, whichever call was the last one."""
    wanted = await _unharmed(tmp_path / "unharmed", side)
    for at in count(1 + part, 2):
        if await _killed_once(tmp_path / str(at), at, side, wanted) < at:
            assert at > 40
            break


async def _unharmed(folder: Path, side: int) -> Mapping[str, str]:
    """Return what the machine has after an apply without any fault."""
    async with _node(folder, side) as node, node.connected():
        _publish(node, side)
        await node.reconcile()
        return _made(node)


async def _killed_once(folder: Path, at: int, side: int, wanted: Mapping[str, str]) -> int:
    async with _node(folder, side) as node:
        checksum = _publish(node, side)
        async with node.connected():
            with deadly(node, at) as death, suppress(Killed, BaseExceptionGroup):
                await node.reconcile()
            for _ in range(10):
                with suppress(AgentError):
                    await node.reconcile()
                if node.applied() == checksum:
                    break
        assert node.applied() == checksum, death.calls[-1:]
        assert _made(node) == wanted, death.calls[-1:]
        _rest(node)
    return len(death.calls)


async def _fails_once(folder: Path, calls: tuple[str, ...], at: int, side: int, wanted: Mapping[str, str]) -> int:
    seen: list[str] = []

    def fail(name: str) -> None:
        seen.append(name)
        if len(seen) == at:
            raise OSError(errno.EIO, "spoilt", name)

    async with _node(folder, side) as node:
        node.start_process()
        async with node.controlling():
            with system_calls(calls, fail):
                checksum = _publish(node, side)
                for _ in range(PATIENCE):
                    await asyncio.sleep(1)
                    if node.applied() == checksum:
                        break
        assert node.applied() == checksum
        assert _made(node) == wanted
        _rest(node)
    return len(seen)


@asynccontextmanager
async def _node(folder: Path, side: int) -> AsyncIterator[OscAgent]:
    """Have a node that has applied the other OSC."""
    folder.mkdir()
    host = FakeSystemd(folder)
    await host.start()
    try:
        node = OscAgent(folder, host)
        host.write_unit("containerd.service", SLEEP)
        node.put_secret("s", "key", "secret")
        node.images.images = {IMAGE: {"/tool": b"1"}, OTHER: {"/tool": b"2"}}
        node.register_node()
        _publish(node, 1 - side)
        async with node.connected():
            await node.reconcile()
        yield node
    finally:
        await host.stop()


def _made(node: OscAgent) -> Mapping[str, str]:
    """Return what the OSC has made: files with mode and content, links, and the states of units."""
    found = {name: f"{unit.active_state} {node.host.is_enabled(name)}" for name, unit in node.host.units.items()}
    for path in (path for folder in ("opt", "etc") for path in (node.root / folder).rglob("*")):
        name = str(path.relative_to(node.root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = f"{path.stat().st_mode:o} {path.read_text()}"
    return found
