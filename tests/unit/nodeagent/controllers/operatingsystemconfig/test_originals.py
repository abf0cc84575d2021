"""What was there before an OSC replaced it."""

from pathlib import Path

import pytest

from tests.support.osc_agent import SLEEP, OscAgent, inline

MOTD = "/etc/motd"


def write(node: OscAgent, path: str, text: str, mode: int = 0o644) -> Path:
    """Do what an administrator does."""
    place = node.root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)
    return place


async def test_an_original_comes_back_when_its_path_leaves_the_osc(node: OscAgent) -> None:
    """Ledger: with bytes and mode, over changes of the OSC's content; what we created is removed."""
    motd = write(node, MOTD, "original", 0o640)
    node.publish(files=[inline(MOTD, "one"), inline("/etc/created", "x")])
    async with node.connected():
        await node.reconcile()
        assert node.read(MOTD) == "one"
        node.publish(files=[inline(MOTD, "two"), inline("/etc/created", "x")])
        await node.reconcile()
        assert node.read(MOTD) == "two"
        node.publish()
        await node.reconcile()
    assert (node.read(MOTD), motd.stat().st_mode & 0o777) == ("original", 0o640)
    assert node.read("/etc/created") is None
    assert [path.name for path in node.paths.originals.iterdir()] == ["ledger.json"]


async def test_an_original_that_equals_the_osc_stays(node: OscAgent) -> None:
    """Ledger: what the operating system brought is not removed because an OSC once named it."""
    write(node, MOTD, "same")
    node.publish(files=[inline(MOTD, "same", 0o600)])
    async with node.connected():
        await node.reconcile()
        assert (node.root / "etc/motd").stat().st_mode & 0o777 == 0o600
        node.publish()
        await node.reconcile()
    assert node.read(MOTD) == "same"
    assert (node.root / "etc/motd").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("kept", [False, True])
async def test_w10_an_original_survives_a_superseded_apply(node: OscAgent, kept: bool) -> None:
    """Contract 9 W10: an OSC that was applied half replaced it; the next one, or the one after that, does not have it."""
    write(node, MOTD, "original")
    async with node.connected():
        node.publish()
        await node.reconcile()
        node.publish(
            files=[inline(MOTD, "half"), {"path": "/x", "content": {"secretRef": {"name": "no", "dataKey": "k"}}}]
        )
        with pytest.raises(Exception, match="items could not be applied"):
            await node.reconcile()
        assert node.read(MOTD) == "half"
        node.start_process()
        if kept:
            node.publish(files=[inline(MOTD, "whole")])
            await node.reconcile()
            assert node.read(MOTD) == "whole"
        node.publish(files=[inline("/etc/other", "x")])
        await node.reconcile()
    assert node.read(MOTD) == "original"


async def test_originals_of_units_and_drop_ins_come_back(node: OscAgent) -> None:
    """Ledger: an administrator's unit file and drop-in under the names that the OSC used for a while."""
    unit, drop_in = "/etc/systemd/system/a.service", "/etc/systemd/system/a.service.d/10.conf"
    write(node, unit, SLEEP.replace("infinity", "1"))
    write(node, drop_in, "[Service]\nNice=1\n")
    drop_ins = [{"name": "10.conf", "content": "[Service]\nNice=2\n"}]
    node.publish(units=[{"name": "a.service", "content": SLEEP, "dropIns": drop_ins}])
    async with node.connected():
        await node.reconcile()
        assert (node.read(unit), "Nice=2" in (node.read(drop_in) or "")) == (SLEEP, True)
        node.publish()
        await node.reconcile()
    assert "sleep 1" in (node.read(unit) or "")
    assert "Nice=1" in (node.read(drop_in) or "")


async def test_what_user_data_brought_for_us_has_no_original(node: OscAgent) -> None:
    """Ledger: the agent's own unit and its files are ours from the first day, and go with the OSC."""
    config = "/var/lib/gardener-node-agent/config-v1.yaml"
    write(node, config, "user data")
    own = {"name": "gardener-node-agent.service", "content": SLEEP, "filePaths": [config]}
    node.publish(files=[inline(config, "osc")], units=[own])
    async with node.connected():
        await node.reconcile()
        node.start_process()
        await node.reconcile()
        node.publish(units=[{**own, "filePaths": []}])
        await node.reconcile()
        node.start_process()
        await node.reconcile()
    assert node.read(config) is None
