"""What somebody else changed of what is ours: seen, said once, put right within limits."""

import asyncio
import os
import time
from typing import Any

import pytest

from nodeagent.host.extracted_files import ExtractedFiles
from osc.types import File
from tests.support.osc_agent import SLEEP, OscAgent, from_image, inline

UNIT = {
    "name": "a.service",
    "content": SLEEP,
    "filePaths": ["/etc/used"],
    "dropIns": [{"name": "d.conf", "content": "[Unit]\n"}],
}
FILES = [inline("/etc/a", "one", 0o644), inline("/etc/used", "used", 0o644)]
UNIT_FILE, DROP_IN = "/etc/systemd/system/a.service", "/etc/systemd/system/a.service.d/d.conf"


@pytest.fixture
async def applied(node: OscAgent) -> OscAgent:
    """A node with two files and a unit that uses one of them."""
    node.publish(files=FILES, units=[UNIT])
    async with node.connected():
        await node.reconcile()
    node.host.jobs.clear()
    return node


def touch(node: OscAgent, path: str, text: str) -> None:
    """Do what somebody else does."""
    (node.root / path.lstrip("/")).write_text(text)


def restarted_since(node: OscAgent, *, hours: int) -> None:
    """Let the unit have been started so long after (or before) everything that is on the disk."""
    node.host.units["a.service"].since = int(time.time()) + hours * 3600


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("/etc/a", "changed", "FileMismatch"),
        ("/etc/used", "changed", "FileMismatch"),
        (UNIT_FILE, "[Service]\n", "UnitMismatch"),
        (DROP_IN, "[Service]\n", "DropInMismatch"),
    ],
)
async def test_changed_content_is_put_right(applied: OscAgent, path: str, text: str, reason: str) -> None:
    """Contract 9 W14: files, also those that units use, unit files and drop-ins; one event each."""
    before = applied.read(path)
    async with applied.connected():
        touch(applied, path, text)
        await applied.reconcile()
        assert applied.read(path) == before
        assert applied.drifted == [(reason, "put right")]
        await applied.reconcile()
        assert len(applied.drifted) == 1


@pytest.mark.parametrize("path", ["/etc/a", UNIT_FILE, DROP_IN])
async def test_a_huge_file_is_put_right_as_any_other(applied: OscAgent, path: str) -> None:
    """Contract 9 W14: somebody made a small file a terabyte: it is not read, and what else has changed is put right with it."""
    before = applied.read(path)
    async with applied.connected():
        os.truncate(applied.root / path.lstrip("/"), 2**40)
        touch(applied, "/etc/used", "changed")
        await applied.reconcile()
        assert (applied.read(path), applied.read("/etc/used")) == (before, "used")
        assert len(applied.drifted) == 2


async def test_what_is_gone_comes_back(applied: OscAgent) -> None:
    """Contract 9 W14: a missing file, unit file and drop-in."""
    async with applied.connected():
        for path in ("/etc/a", UNIT_FILE, DROP_IN):
            (applied.root / path.lstrip("/")).unlink()
        await applied.reconcile()
        assert applied.read("/etc/a") == "one"
        assert applied.read(UNIT_FILE) == SLEEP
        assert applied.read(DROP_IN) == "[Unit]\n"
        assert {reason for reason, _action in applied.drifted} == {"FileMissing", "UnitFileMissing"}


async def test_mode_and_owner_are_put_right(applied: OscAgent) -> None:
    """Contract 9 W14: nothing is restarted for them."""
    path = applied.root / "etc/used"
    async with applied.connected():
        path.chmod(0o666)
        await applied.reconcile()
        assert path.stat().st_mode & 0o777 == 0o644
        if os.geteuid() == 0:
            os.chown(path, 1234, 1234)
            await applied.reconcile()
            assert (path.stat().st_uid, path.stat().st_gid) == (0, 0)
    assert applied.host.jobs == []
    assert applied.drifted[0] == ("FileModeMismatch", "put right")


async def test_a_unit_is_restarted_only_if_it_may_have_read_what_was_wrong(applied: OscAgent) -> None:
    """Contract 9 W14: one that runs since before the change has not."""
    async with applied.connected():
        touch(applied, "/etc/used", "wrong")
        restarted_since(applied, hours=-1)
        await applied.reconcile()
        assert (applied.read("/etc/used"), applied.host.jobs) == ("used", [])
        touch(applied, "/etc/used", "wrong")
        restarted_since(applied, hours=1)
        await applied.reconcile()
        assert (applied.read("/etc/used"), applied.host.jobs) == ("used", [("restart", "a.service")])


async def test_restarts_and_repairs_are_limited(applied: OscAgent) -> None:
    """Contract 9 W14: three restarts and six repairs an hour; then it is said once, and left; an hour later again."""
    async with applied.connected():
        for _ in range(8):
            touch(applied, "/etc/used", "wrong")
            restarted_since(applied, hours=1)
            await applied.reconcile()
        assert applied.host.jobs == [("restart", "a.service")] * 3
        assert applied.read("/etc/used") == "wrong"
        assert [action for _reason, action in applied.drifted].count("put right") == 6
        assert len(applied.drifted) == 7
        applied.clock.advance(3600)
        await applied.reconcile()
        assert applied.read("/etc/used") == "used"


async def test_the_limit_of_restarts_outlives_the_agent_and_is_everybodys(applied: OscAgent) -> None:
    """Contract 9 W14, OURS: two restarts for drift and one by the health check: no more in this hour, nor after our own restart."""
    async with applied.connected():
        for _ in range(2):
            touch(applied, "/etc/used", "wrong")
            restarted_since(applied, hours=1)
            await applied.reconcile()
    applied.budget.spend("a.service")
    applied.start_process()
    async with applied.connected():
        touch(applied, "/etc/used", "wrong")
        restarted_since(applied, hours=1)
        await applied.reconcile()
        assert applied.read("/etc/used") == "used"
    assert applied.host.jobs == [("restart", "a.service")] * 2


async def test_enablement_is_put_right(applied: OscAgent) -> None:
    """Contract 9 W14: disabled by hand; nothing runs differently for it."""
    link = applied.root / "etc/systemd/system/multi-user.target.wants/a.service"
    async with applied.connected():
        link.unlink()
        await applied.reconcile()
        assert applied.host.is_enabled("a.service")
        assert applied.drifted == [("UnitEnableMismatch", "put right")]
    assert applied.host.jobs == []


async def test_report_only(applied: OscAgent) -> None:
    """Contract 9 W14: the option `report`: one event, nothing is changed."""
    applied.repairs_drift = False
    applied.start_process()
    async with applied.connected():
        touch(applied, "/etc/a", "changed")
        for _ in range(3):
            await applied.reconcile()
        assert applied.read("/etc/a") == "changed"
        assert applied.drifted == [("FileMismatch", "only reported")]
        touch(applied, "/etc/a", "one")
        await applied.reconcile()
        touch(applied, "/etc/a", "again")
        await applied.reconcile()
        assert len(applied.drifted) == 2


async def test_foreign_files_are_not_looked_at(applied: OscAgent) -> None:
    """Contract 9 W14: beside ours, in the same directories."""
    foreign = applied.root / "etc/systemd/system/a.service.d/90-admin.conf"
    foreign.write_text("[Service]\n")
    async with applied.connected():
        touch(applied, DROP_IN, "x")
        await applied.reconcile()
    assert foreign.read_text() == "[Service]\n"


async def test_a_touched_file_is_put_right_at_once(applied: OscAgent) -> None:
    """Contract 9 W14: through inotify, without waiting for the sync period; only that file is looked at."""
    async with applied.controlling():
        await asyncio.sleep(1)
        (applied.root / "etc/systemd/system/multi-user.target.wants/a.service").unlink()
        touch(applied, "/etc/a", "changed")
        await asyncio.sleep(2)
        assert applied.read("/etc/a") == "one"
        assert applied.drifted == [("FileMismatch", "put right")]
        assert not applied.host.is_enabled("a.service")
        await asyncio.sleep(600)
        assert applied.host.is_enabled("a.service")


async def test_extension_units_and_files_are_looked_after(node: OscAgent) -> None:
    """Contract 9 W14: those in the OSC's status."""
    status: dict[str, Any] = {"extensionFiles": [inline("/etc/ext", "one")], "extensionUnits": [UNIT]}
    node.publish(files=[inline("/etc/used", "used")], status=status)
    async with node.connected():
        await node.reconcile()
        touch(node, "/etc/ext", "changed")
        touch(node, DROP_IN, "changed")
        await node.reconcile()
        assert (node.read("/etc/ext"), node.read(DROP_IN)) == ("one", "[Unit]\n")


TOOL, IMAGE = "/opt/bin/tool", "registry.example/tool@sha256:1"


@pytest.fixture
async def tool(node: OscAgent) -> OscAgent:
    """A node with a program out of an image, and a unit that runs it."""
    node.images.images[IMAGE] = {"/tool": b"program"}
    unit = {"name": "a.service", "content": SLEEP, "filePaths": [TOOL]}
    node.publish(files=[from_image(TOOL, IMAGE, "/tool")], units=[unit])
    async with node.connected():
        await node.reconcile()
    node.host.jobs.clear()
    node.images.pulls.clear()
    return node


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_changed_program_out_of_an_image_is_put_right(tool: OscAgent, replaced: bool) -> None:
    """Contract 6.16, 9 W14: changed in place with its old size and time, or replaced: fetched again, and the unit restarted if it ran it."""
    path = tool.root / TOOL.lstrip("/")
    before = path.stat()
    restarted_since(tool, hours=1)
    async with tool.connected():
        await tool.reconcile()
        assert tool.drifted == []
        if replaced:
            path.unlink()
        path.write_bytes(b"pr0gram")
        path.chmod(0o755)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await tool.reconcile()
        assert tool.read(TOOL) == "program"
        assert tool.drifted == [("FileMismatch", "put right")]
        assert tool.images.pulls == [IMAGE]
        assert [unit for _kind, unit in tool.host.jobs] == ["a.service"]
        tool.start_process()
        await tool.reconcile()
        assert tool.images.pulls == [IMAGE]


async def test_a_huge_program_is_put_right_without_being_read(tool: OscAgent) -> None:
    """Contract 6.16, 9 W14: its size tells that it did not come out of the image; where it is only reported it is said once."""
    path = tool.root / TOOL.lstrip("/")
    async with tool.connected():
        os.truncate(path, 2**40)
        (finding,) = ExtractedFiles(record=tool.paths.extracted, root=tool.root).changed(
            [File.model_validate(from_image(TOOL, IMAGE, "/tool"))]
        )
        assert finding.message.endswith(f"found {2**40} bytes")
        await tool.reconcile()
        assert tool.read(TOOL) == "program"
        assert tool.drifted == [("FileMismatch", "put right")]


async def test_a_program_that_was_only_touched_is_left_alone(tool: OscAgent) -> None:
    """Other times, the same content: nothing is fetched, nothing said."""
    os.utime(tool.root / TOOL.lstrip("/"))
    async with tool.connected():
        await tool.reconcile()
    assert (tool.drifted, tool.images.pulls) == ([], [])


@pytest.mark.parametrize("content", [None, b"{", b"[]"])
async def test_a_program_of_which_nothing_is_known_is_taken_as_it_is(tool: OscAgent, content: bytes | None) -> None:
    """An agent before this one copied it, or the record is damaged: what is there now is what later ones are compared with."""
    tool.paths.extracted.unlink()
    if content is not None:
        tool.paths.extracted.write_bytes(content)
    async with tool.connected():
        tool.start_process()
        await tool.reconcile()
        assert (tool.drifted, tool.images.pulls) == ([], [])
        touch(tool, TOOL, "other")
        await tool.reconcile()
        assert (tool.read(TOOL), tool.images.pulls) == ("program", [IMAGE])


async def test_a_new_image_is_no_drift(tool: OscAgent) -> None:
    """What an OSC brings is what is remembered; what leaves the OSC is forgotten."""
    newer = IMAGE.replace("1", "2")
    tool.images.images[newer] = {"/tool": b"newer"}
    tool.publish(files=[from_image(TOOL, newer, "/tool")])
    async with tool.connected():
        await tool.reconcile()
        await tool.reconcile()
        assert (tool.read(TOOL), tool.drifted) == ("newer", [])
        tool.publish(files=[])
        await tool.reconcile()
        await tool.reconcile()
    assert TOOL not in tool.paths.extracted.read_text()
    assert tool.drifted == []
