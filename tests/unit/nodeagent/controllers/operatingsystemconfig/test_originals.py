"""What was there before an OSC replaced it."""

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from agents.core.files import FileError
from systemd.errors import BusUnavailable
from tests.support.osc_agent import SLEEP, OscAgent, containerd, from_secret, inline

MOTD = "/etc/motd"
REGISTRY = {"upstream": "docker.io", "hosts": [{"url": "https://mirror"}]}
HOSTS = "/etc/containerd/certs.d/docker.io/hosts.toml"
OS_UNIT = SLEEP + "# of the operating system\n"
CA = "/etc/containerd/certs.d/docker.io/ca.crt"


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


@pytest.mark.parametrize("damage", ["", "hosts.toml", "everything"])
async def test_a_registrys_folder_of_the_operating_system_is_as_before(node: OscAgent, damage: str) -> None:
    """Ledger: `hosts.toml` comes back when the registry leaves the OSC, whatever became of ours, and what is beside it stays."""
    node.host.write_unit("containerd.service", SLEEP)
    write(node, HOSTS, 'server = "https://of-the-os"', 0o640)
    ca = write(node, CA, "of an administrator")
    node.publish(criConfig=containerd(registries=[REGISTRY]))
    async with node.connected():
        await node.reconcile()
        assert "https://mirror" in (node.read(HOSTS) or "")
        node.publish(criConfig=containerd(registries=[{**REGISTRY, "server": "https://other"}]))
        await node.reconcile()
        assert "https://other" in (node.read(HOSTS) or "")
        if damage:
            write(node, HOSTS, "something else").unlink()
        if damage == "everything":
            ca.unlink()
            ca.parent.rmdir()
        node.start_process()
        checksum = node.publish(criConfig=containerd())
        await node.reconcile()
        node.register_node()
        await node.reconcile()
    assert node.read(HOSTS) == 'server = "https://of-the-os"'
    assert (node.root / HOSTS[1:]).stat().st_mode & 0o777 == 0o640
    assert damage == "everything" or ca.exists()
    assert node.applied() == checksum
    assert HOSTS not in (node.paths.originals / "ledger.json").read_text()


async def test_a_registrys_folder_without_its_file_stays(node: OscAgent) -> None:
    """Ledger: where only the folder was there before us, only our `hosts.toml` goes."""
    node.host.write_unit("containerd.service", SLEEP)
    write(node, CA, "of an administrator")
    node.publish(criConfig=containerd(registries=[REGISTRY]))
    async with node.connected():
        await node.reconcile()
        node.publish(criConfig=containerd())
        await node.reconcile()
    assert (node.read(HOSTS), node.read(CA)) == (None, "of an administrator")


async def test_what_was_put_beside_our_registry_is_not_from_before(node: OscAgent) -> None:
    """Contract 6.15: a folder that we made goes as a whole, also if its file was lost, written by hand or asked for again meanwhile."""
    node.host.write_unit("containerd.service", SLEEP)
    node.publish(criConfig=containerd(registries=[REGISTRY]))
    async with node.connected():
        await node.reconcile()
        write(node, CA, "x")
        write(node, HOSTS, "by hand")
        node.publish(criConfig=containerd(registries=[{**REGISTRY, "server": "https://other"}]))
        await node.reconcile()
        assert "https://other" in (node.read(HOSTS) or "")
        node.publish(criConfig=containerd())
        await node.reconcile()
    assert not (node.root / HOSTS[1:]).parent.exists()


async def test_a_removal_of_a_registry_that_was_killed_is_repeated(node: OscAgent) -> None:
    """Ledger: a kill after its file was put back and before the journal knew; the original is not dropped before the end."""
    node.host.write_unit("containerd.service", SLEEP)
    write(node, HOSTS, 'server = "https://of-the-os"')
    node.publish(criConfig=containerd(registries=[REGISTRY]))
    async with node.connected():
        await node.reconcile()
        node.publish(files=[from_secret("/x", "missing")], criConfig=containerd())
        for _ in range(2):
            with pytest.raises(Exception, match="items could not be applied"):
                await node.reconcile()
            assert node.read(HOSTS) == 'server = "https://of-the-os"'
            node.containerd_files.remove_registry("docker.io")
            node.start_process()
        node.publish(criConfig=containerd(registries=[REGISTRY]))
        await node.reconcile()
        assert "https://mirror" in (node.read(HOSTS) or "")
        node.publish(criConfig=containerd())
        await node.reconcile()
    assert node.read(HOSTS) == 'server = "https://of-the-os"'


async def state(node: OscAgent, name: str) -> tuple[bool, str]:
    """Return whether a unit is enabled, and what it does."""
    return node.host.is_enabled(name), (await node.units.unit(name)).active_state


async def bring(node: OscAgent, name: str, *, running: bool, folder: str = "/etc/systemd/system") -> None:
    """Do what the image of an operating system does."""
    write(node, f"{folder}/{name}", OS_UNIT)
    await node.units.reload()
    if running:
        await node.units.enable([name])
        await node.units.start(name)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("enable", [True, False])
@pytest.mark.parametrize("folder", ["/etc/systemd/system", "/usr/lib/systemd/system"])
async def test_a_unit_of_the_operating_system_is_what_it_was(
    node: OscAgent, running: bool, enable: bool, folder: str
) -> None:
    """Ledger: with its file a unit that was enabled and ran is so again, whatever the OSC made of it; one that did not is not."""
    await bring(node, "os.service", running=running, folder=folder)
    before = await state(node, "os.service")
    async with node.connected():
        for text in (SLEEP, SLEEP + "# two\n"):
            node.publish(units=[{"name": "os.service", "content": text, "enable": enable}])
            await node.reconcile()
            node.start_process()
        assert (await state(node, "os.service"))[0] is enable
        node.publish()
        await node.reconcile()
        assert node.read(f"{folder}/os.service") == OS_UNIT
        assert await state(node, "os.service") == before
    assert (node.root / "etc/systemd/system/os.service").exists() is (folder == "/etc/systemd/system")
    assert [path.name for path in node.paths.originals.iterdir()] == ["ledger.json"]


async def test_a_unit_file_that_somebody_removed_is_back(node: OscAgent) -> None:
    """Ledger: the operating system's unit file comes back also if ours is gone when the unit leaves the OSC."""
    await bring(node, "os.service", running=True)
    before = await state(node, "os.service")
    node.publish(units=[{"name": "os.service", "content": SLEEP}])
    async with node.connected():
        await node.reconcile()
        (node.root / "etc/systemd/system/os.service").unlink()
        node.publish()
        await node.reconcile()
        assert node.read("/etc/systemd/system/os.service") == OS_UNIT
        assert await state(node, "os.service") == before


async def test_a_unit_is_what_it_was_after_a_kill(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger: what it was survives, and is made so again, wherever the process ended; also beside an item that fails."""
    await bring(node, "os.service", running=True)
    before = await state(node, "os.service")
    node.publish(units=[{"name": "os.service", "content": SLEEP}])
    async with node.connected():
        await node.reconcile()
        node.publish(files=[from_secret("/x", "missing")])
        with monkeypatch.context() as away:
            away.setattr(node.units, "reload", AsyncMock(side_effect=BusUnavailable("gone")))
            with pytest.raises(Exception, match="items could not be applied"):
                await node.reconcile()
        assert node.read("/etc/systemd/system/os.service") == OS_UNIT
        assert await state(node, "os.service") != before
        node.start_process()
        for _ in range(2):
            with pytest.raises(Exception, match="items could not be applied"):
                await node.reconcile()
            assert await state(node, "os.service") == before
            # A journal that lagged behind: the removal is repeated.
            await node.units.disable(["os.service"])
            await node.units.stop("os.service")
            node.originals.owe_unit("/etc/systemd/system/os.service", owed=True)
            node.start_process()


async def test_a_unit_that_is_ours_once_more_is_as_the_osc_says(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger: what is owed to a unit that left is not done to it after it came back."""
    await bring(node, "os.service", running=True)
    before = await state(node, "os.service")
    node.publish(units=[{"name": "os.service", "content": SLEEP}])
    async with node.connected():
        await node.reconcile()
        node.publish()
        with monkeypatch.context() as away:
            away.setattr(node.units, "reload", AsyncMock(side_effect=BusUnavailable("gone")))
            with pytest.raises(Exception, match="items could not be applied"):
                await node.reconcile()
        node.publish(units=[{"name": "os.service", "content": SLEEP, "enable": False, "command": "stop"}])
        await node.reconcile()
        assert await state(node, "os.service") == (False, "inactive")
        node.publish()
        await node.reconcile()
        assert await state(node, "os.service") == before


async def test_a_file_in_place_of_our_registrys_has_no_original(node: OscAgent) -> None:
    """Ledger: what a registry of an OSC brought is ours: it does not come back when a file of the next OSC in its place goes."""
    node.host.write_unit("containerd.service", SLEEP)
    node.publish(criConfig=containerd(registries=[REGISTRY]))
    async with node.connected():
        await node.reconcile()
        assert "https://mirror" in (node.read(HOSTS) or "")
        node.publish(files=[inline(HOSTS, "of a file")], criConfig=containerd())
        await node.reconcile()
        assert node.read(HOSTS) == "of a file"
        node.publish(criConfig=containerd())
        await node.reconcile()
    assert node.read(HOSTS) is None


@pytest.mark.parametrize("original", [None, "of the os"])
async def test_a_registry_in_place_of_our_file_has_what_was_before_both(node: OscAgent, original: str | None) -> None:
    """Ledger: a file of an OSC whose place a registry of the next one takes is no original, and does not replace the real one."""
    node.host.write_unit("containerd.service", SLEEP)
    if original is not None:
        write(node, HOSTS, original)
    node.publish(files=[inline(HOSTS, "of a file")], criConfig=containerd())
    async with node.connected():
        await node.reconcile()
        assert node.read(HOSTS) == "of a file"
        node.publish(criConfig=containerd(registries=[REGISTRY]))
        await node.reconcile()
        assert "https://mirror" in (node.read(HOSTS) or "")
        node.publish(criConfig=containerd())
        await node.reconcile()
    assert node.read(HOSTS) == original


async def test_originals_are_dropped_also_where_that_failed_at_first(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State that heals: an original of a path that left is not kept for ever because the disk was full at the end of the apply."""
    write(node, MOTD, "original")
    node.publish(files=[inline(MOTD, "one")])
    async with node.connected():
        await node.reconcile()
        node.publish()
        with monkeypatch.context() as full:
            full.setattr(node.originals, "drop", Mock(side_effect=FileError("file not written", node.root / "x")))
            with pytest.raises(FileError):
                await node.reconcile()
        await node.reconcile()
    assert node.originals.paths == frozenset()
    assert [path.name for path in node.paths.originals.iterdir()] == ["ledger.json"]


async def test_a_registrys_folder_is_as_before_although_the_ledger_is_damaged(node: OscAgent) -> None:
    """Ledger: where the original itself is kept, neither it nor what was beside it goes with the registry."""
    node.host.write_unit("containerd.service", SLEEP)
    write(node, HOSTS, 'server = "https://of-the-os"')
    write(node, CA, "of an administrator")
    node.publish(criConfig=containerd(registries=[REGISTRY]))
    async with node.connected():
        await node.reconcile()
        (node.paths.originals / "ledger.json").write_text("{")
        node.start_process()
        node.publish(criConfig=containerd())
        await node.reconcile()
    assert node.read(HOSTS) == 'server = "https://of-the-os"'
    assert node.read(CA) == "of an administrator"
