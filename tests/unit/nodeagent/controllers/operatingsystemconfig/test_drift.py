"""What somebody else changed of what is ours: seen, said once, put right within limits."""

import asyncio
import json
import os
import shutil
from hashlib import sha256
from typing import Any

import pytest

from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from nodeagent.host.consistency import Finding
from nodeagent.host.extracted_files import ExtractedFiles
from osc.types import File
from tests.support.drifting import DROP_IN, UNIT, UNIT_FILE, restarted_since, touch
from tests.support.osc_agent import SLEEP, OscAgent, from_image, from_secret, inline


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


async def test_a_file_that_is_to_be_empty_is_looked_at_too(node: OscAgent) -> None:
    """Contract 9 W14, ours: one that got content, and one that is gone; at the start alone it does not count (7.11)."""
    node.publish(files=[inline("/etc/empty", ""), inline("/etc/gone", "")])
    async with node.connected():
        await node.reconcile()
        touch(node, "/etc/empty", "changed")
        (node.root / "etc/gone").unlink()
        await node.reconcile()
        assert (node.read("/etc/empty"), node.read("/etc/gone")) == ("", "")
        assert sorted(node.drifted) == [("FileMismatch", "put right"), ("FileMissing", "put right")]


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
        restarted_since(applied, seconds=-600)
        await applied.reconcile()
        assert (applied.read("/etc/used"), applied.host.jobs) == ("used", [])
        touch(applied, "/etc/used", "wrong")
        restarted_since(applied, seconds=600)
        await applied.reconcile()
        assert (applied.read("/etc/used"), applied.host.jobs) == ("used", [("restart", "a.service")])


async def test_restarts_and_repairs_are_limited(applied: OscAgent) -> None:
    """Contract 9 W14: three restarts and six repairs an hour; then it is said once, and left; an hour later again."""
    async with applied.connected():
        for _ in range(8):
            touch(applied, "/etc/used", "wrong")
            restarted_since(applied, seconds=600)
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
            restarted_since(applied, seconds=600)
            await applied.reconcile()
    applied.budget.spend("a.service")
    applied.start_process()
    async with applied.connected():
        touch(applied, "/etc/used", "wrong")
        restarted_since(applied, seconds=600)
        await applied.reconcile()
        assert applied.read("/etc/used") == "used"
    assert applied.host.jobs == [("restart", "a.service")] * 2


async def test_what_nobody_brings_is_not_said_to_be_put_right(node: OscAgent) -> None:
    """Contract 9 W14: a unit needs a file that is none of ours, and it is gone: said once, and nothing is written."""
    foreign = node.root / "etc/foreign"
    foreign.write_text("x")
    node.publish(units=[{"name": "a.service", "content": SLEEP, "filePaths": ["/etc/foreign"]}])
    async with node.connected():
        await node.reconcile()
        foreign.unlink()
        for _ in range(3):
            await node.reconcile()
    assert node.drifted == [("DependencyMissing", "only reported")]


async def test_a_masked_unit_is_one_item(applied: OscAgent) -> None:
    """Contract 9 W14: the link that masks it lies where its unit file was: that is not said twice."""
    path = applied.root / UNIT_FILE.lstrip("/")
    async with applied.connected():
        path.unlink()
        path.symlink_to("/dev/null")
        await applied.reconcile()
        assert applied.read(UNIT_FILE) == SLEEP
    assert applied.drifted == [("UnitMasked", "put right")]


@pytest.mark.parametrize("runtime", [True, False])
async def test_masks_are_removed(node: OscAgent, runtime: bool) -> None:
    """Contract 9 W14: for good or until the next boot, of a unit of the operating system; it is put right once and stays so."""
    vendor = node.root / "usr/lib/systemd/system"
    vendor.mkdir(parents=True)
    (vendor / "os.service").write_text(SLEEP)
    node.publish(units=[{"name": "os.service", "dropIns": [{"name": "d.conf", "content": "[Unit]\n"}]}])
    async with node.connected():
        await node.reconcile()
        node.host.mask("os.service", runtime=runtime)
        for _ in range(3):
            await node.reconcile()
        assert await node.units.unit_file_state("os.service") == "enabled"
    assert node.drifted == [("UnitMasked", "put right")]


async def test_a_unit_file_below_run_is_no_mask(node: OscAgent) -> None:
    """Contract 9 W14: foreign files are never touched: only a link to /dev/null goes."""
    foreign = node.root / "run/systemd/system/a.service"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("[Service]\n")
    node.publish(units=[{"name": "a.service", "content": SLEEP}])
    async with node.connected():
        await node.reconcile()
        (node.root / UNIT_FILE.lstrip("/")).unlink()
        node.host.mask("a.service")
        await node.reconcile()
        assert (node.read(UNIT_FILE), node.drifted) == (SLEEP, [("UnitMasked", "put right")])
    assert foreign.read_text() == "[Service]\n"


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


@pytest.mark.parametrize("moved", [False, True])
async def test_a_directory_that_was_gone_is_watched_again(applied: OscAgent, moved: bool) -> None:
    """Contract 9 W14: removed or moved away as a whole: what was in it is back at once, and so is what is changed there later."""
    folder = applied.root / "etc/systemd/system/a.service.d"
    async with applied.controlling():
        await asyncio.sleep(2)
        if moved:
            folder.rename(applied.root / "elsewhere")
        else:
            shutil.rmtree(folder)
        await asyncio.sleep(2)
        assert applied.read(DROP_IN) == "[Unit]\n"
        for _ in range(2):
            touch(applied, DROP_IN, "bad")
            await asyncio.sleep(2)
            assert applied.read(DROP_IN) == "[Unit]\n"
        if moved:
            touch(applied, "/elsewhere/d.conf", "bad")
            told = len(applied.drifted)
            await asyncio.sleep(2)
            assert len(applied.drifted) == told


async def test_a_directory_above_was_moved_away(applied: OscAgent) -> None:
    """Contract 9 W14: nobody tells of that: noticed at the sync period, and from then on watched where it is now."""
    async with applied.controlling():
        await asyncio.sleep(2)
        (applied.root / "etc/systemd").rename(applied.root / "etc/other")
        (applied.root / "etc/systemd/system").mkdir(parents=True)
        await asyncio.sleep(660)
        assert applied.read(DROP_IN) == "[Unit]\n"
        touch(applied, DROP_IN, "bad")
        await asyncio.sleep(2)
        assert applied.read(DROP_IN) == "[Unit]\n"


async def test_a_directory_that_stays_away_is_watched_from_the_next_look_after_it_is_back(applied: OscAgent) -> None:
    """Contract 9 W14: drift is only reported, so nobody but its owner brings it back; no loop meanwhile."""
    applied.repairs_drift = False
    applied.start_process()
    folder, aside = applied.root / "etc/systemd/system/a.service.d", applied.root / "aside"
    async with applied.controlling():
        await asyncio.sleep(2)
        folder.rename(aside)
        await asyncio.sleep(60)
        assert sorted(reason for reason, _action in applied.drifted) == ["DropInMissing", "DropInMissing"]
        aside.rename(folder)
        await asyncio.sleep(660)
        applied.drifted.clear()
        touch(applied, DROP_IN, "bad")
        await asyncio.sleep(2)
        assert applied.drifted == [("DropInMismatch", "only reported")]


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


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_changed_file_out_of_a_secret_is_put_right(node: OscAgent, restarted: bool) -> None:
    """Contract 9 W14, W44: seen by its digest, also by the next process; the event has no digest, that could be guessed from."""
    node.put_secret("referenced", "key", "secret")
    unit = {"name": "a.service", "content": SLEEP, "filePaths": ["/etc/s"]}
    node.publish(files=[from_secret("/etc/s", "referenced")], units=[unit])
    async with node.connected():
        await node.reconcile()
        node.host.jobs.clear()
        if restarted:
            node.start_process()
        await node.reconcile()
        assert node.drifted == []
        touch(node, "/etc/s", "wrong")
        restarted_since(node, seconds=600)
        await node.reconcile()
        assert node.read("/etc/s") == "secret"
        await node.reconcile()
    assert node.drifted == [("FileMismatch", "put right")]
    assert node.messages == ["file /etc/s differs from what its Secret held"]
    assert node.host.jobs == [("restart", "a.service")]


async def test_a_new_content_of_a_secret_is_no_drift(node: OscAgent) -> None:
    """Contract 9 W44: the Secret changes: the file follows, and nobody has touched it."""
    node.put_secret("referenced", "key", "one")
    node.publish(files=[from_secret("/etc/s", "referenced")])
    async with node.connected():
        await node.reconcile()
        node.put_secret("referenced", "key", "two")
        for _ in range(2):
            await node.reconcile()
        assert node.read("/etc/s") == "two"
    assert node.drifted == []


async def test_a_file_out_of_a_secret_of_which_nothing_is_known_is_no_drift(node: OscAgent) -> None:
    """Contract 9 W14, W44: another node agent wrote it, as its Secret was then: it gets what the Secret holds, and nobody is told of a drift."""
    node.put_secret("referenced", "key", "one")
    node.publish(files=[from_secret("/etc/s", "referenced")])
    async with node.connected():
        await node.reconcile()
        node.paths.pending_changes.unlink()
        node.start_process()
        touch(node, "/etc/s", "other")
        await node.reconcile()
    assert (node.read("/etc/s"), node.drifted) == ("one", [])


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
    restarted_since(tool, seconds=600)
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


TAGGED = "registry.example/tool:v1"


@pytest.fixture
async def tagged(node: OscAgent) -> OscAgent:
    """A node with a program out of an image that is named by a tag."""
    node.images.images[TAGGED] = {"/tool": b"program"}
    node.publish(files=[from_image(TOOL, TAGGED, "/tool")])
    async with node.connected():
        await node.reconcile()
    return node


def digest(content: bytes) -> str:
    """Return a SHA-256 as it is told."""
    return sha256(content).hexdigest()


async def test_a_repair_from_a_tag_that_moved_is_said(tagged: OscAgent) -> None:
    """Contract 6.16, OURS: the repair brings another program than the one that was there: image, path and both digests are told."""
    async with tagged.connected():
        tagged.images.images[TAGGED] = {"/tool": b"newer"}
        await tagged.reconcile()
        assert (tagged.read(TOOL), tagged.moved_tags) == ("program", [])
        touch(tagged, TOOL, "damaged")
        tagged.start_process()
        tagged.identity.start()
        for _ in range(3):
            await tagged.reconcile()
        assert (tagged.read(TOOL), tagged.drifted) == ("newer", [("FileMismatch", "put right")])
    (note,) = tagged.moved_tags
    assert all(word in note for word in (TOOL, TAGGED, digest(b"program"), digest(b"newer")))


async def test_a_tag_that_moved_is_said_although_its_registry_was_away(tagged: OscAgent) -> None:
    """Contract 6.16, OURS: the looks beside a repair that fails do not forget what the file was."""
    async with tagged.connected():
        await tagged.reconcile()
        touch(tagged, TOOL, "damaged")
        del tagged.images.images[TAGGED]
        for _ in range(3):
            with pytest.raises(ApplyFailed):
                await tagged.reconcile()
            tagged.clock.advance(700)
        tagged.images.images[TAGGED] = {"/tool": b"newer"}
        await tagged.reconcile()
    assert (tagged.read(TOOL), len(tagged.moved_tags)) == ("newer", 1)


@pytest.mark.parametrize("image", [TAGGED, "registry.example/tool:v2"])
async def test_another_image_or_the_same_program_is_no_tag_that_moved(tagged: OscAgent, image: str) -> None:
    """Contract 6.16, OURS: a repair that brings what was there, and an OSC that names another image."""
    tagged.images.images["registry.example/tool:v2"] = {"/tool": b"newer"}
    async with tagged.connected():
        await tagged.reconcile()
        tagged.publish(files=[from_image(TOOL, image, "/tool", 0o700)])
        await tagged.reconcile()
        touch(tagged, TOOL, "damaged")
        await tagged.reconcile()
        assert tagged.read(TOOL) == ("program" if image == TAGGED else "newer")
    assert tagged.moved_tags == []


async def test_a_tag_that_moved_is_said_also_of_what_an_older_agent_copied(tagged: OscAgent) -> None:
    """Contract 6.16, OURS: its record does not say which image it was; the applied OSC does."""
    record = json.loads(tagged.paths.extracted.read_text())
    for known in record["files"]:
        del known["image"]
    tagged.paths.extracted.write_text(json.dumps(record))
    tagged.start_process()
    async with tagged.connected():
        await tagged.reconcile()
        tagged.images.images[TAGGED] = {"/tool": b"newer"}
        touch(tagged, TOOL, "damaged")
        await tagged.reconcile()
    assert len(tagged.moved_tags) == 1


async def test_what_nobody_brings_does_not_keep_the_look_for_secrets_away(node: OscAgent) -> None:
    """Contract 7.11, 9 W44: a missing file that no OSC brings, found at the start, is no reason to apply all again at each sync."""
    node.put_secret("s", "key", "one")
    unit = {"name": "a.service", "content": SLEEP, "filePaths": ["/etc/of-the-os"]}
    node.publish(files=[from_secret("/etc/secret", "s")], units=[unit])
    async with node.connected():
        await node.reconcile()
        node.start_process()
        node.identity.start()
        node.reconciler.repair([Finding("DependencyMissing", "file is missing", path="/etc/of-the-os")])
        await node.reconcile()
        patches = len(node.api.requests("PATCH"))
        node.put_secret("s", "key", "two")
        for _ in range(2):
            await node.reconcile()
        assert node.read("/etc/secret") == "two"
        assert len(node.api.requests("PATCH")) <= patches + 1
