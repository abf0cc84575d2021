"""`gardener-node-agent reset`: order, what goes, what stays, failures, and that it can be repeated."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from pathlib import Path

import pytest

from agents.core.errors import AgentError, RetriableError
from agents.core.files import write_atomic
from agents.core.generations import Generations
from nodeagent.commands import already_reset, nothing_to_reset
from nodeagent.host.block_devices import Signatures
from nodeagent.host.cri import CriPodSandboxes
from nodeagent.host.former_units import FormerUnits
from nodeagent.host.originals import Originals
from nodeagent.paths import Paths
from nodeagent.remains import Remains, UnitRemains
from nodeagent.reset import Dependencies, Reset, ResetFailed
from nodeagent.reset_folders import NodeFolders
from systemd.manager import SystemdUnitManager
from tests.support.fake_cri import FakeCri
from tests.support.fake_disks import FakeDisk, FakeDisks, disk
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import SLEEP

OWN = "gardener-node-agent.service"
CONFIG = "var/lib/gardener-node-agent/config-v1.150.0.yaml"
OWN_REMAINS = UnitRemains(OWN, True, ())


class Node:
    """A worker node that is to be reset."""

    def __init__(self, root: Path, host: FakeSystemd, cri: FakeCri) -> None:
        self.root, self.host, self.cri = root, host, cri
        self.paths = Paths(root=root)
        self.disks = FakeDisks(root, {})
        self.units = SystemdUnitManager(address=host.address)
        self.remains = Remains(units=(OWN_REMAINS,))
        self.find: Callable[[], Remains] = lambda: self.remains
        self.tokens: tuple[Path, ...] = ()
        self.lines: list[str] = []
        self.unmounted: list[str] = []
        self.stuck: set[str] = set()
        self.folders: type[NodeFolders] = NodeFolders
        for name in (OWN, "kubelet.service"):
            host.write_unit(name, SLEEP)
        self.write(CONFIG, "config")
        self.write("var/lib/gardener-node-agent/credentials/kubeconfig", "secret")
        self.write("run/gardener-node-agent/status.json", "{}")
        self.write("var/lib/kubelet/pki/key", "key")

    def write(self, path: str, text: str) -> Path:
        """Write a file of the machine."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    async def start(self, *names: str) -> None:
        """Enable and start units."""
        await self.units.reload()
        for name in (OWN, "kubelet.service", *names):
            await self.units.enable([name])
            await self.units.start(name)
        self.host.received.clear()

    async def unmount(self, point: Path) -> None:
        """Unmount, unless it is stuck."""
        if str(point) in self.stuck:
            raise RetriableError("cannot be unmounted")
        self.unmounted.append(str(point.relative_to(self.root)))
        await self.disks.unmount(point)

    async def reset(self) -> None:
        """Run the command as a process does."""
        async with CriPodSandboxes(socket=self.cri.socket) as sandboxes:
            folders = self.folders(
                paths=self.paths, devices=self.disks, unmount=self.unmount, mount_table=self.disks.table
            )
            await Reset(
                Dependencies(
                    paths=self.paths,
                    config_file=self.root / CONFIG,
                    tokens=self.tokens,
                    units=self.units,
                    sandboxes=sandboxes,
                    folders=folders,
                    originals=Originals(folder=self.paths.originals, root=self.root),
                    find_remains=lambda: self.find(),
                    report=self.lines.append,
                )
            ).run()

    def left(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return sorted(path.name for path in (self.root / folder).iterdir())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with the agent and the kubelet running, two Pods, and nothing of an OSC."""
    host, cri = FakeSystemd(tmp_path), FakeCri(tmp_path)
    await host.start()
    await cri.start()
    cri.sandboxes = {"one": True, "two": True}
    found = Node(tmp_path, host, cri)
    await found.start()
    yield found
    await found.units.close()
    await cri.stop()
    await host.stop()


async def test_order_of_the_actions(node: Node) -> None:
    """Contract 8.4, Appendix C (bootstrap and reset): agent, kubelet, sandboxes, then units and files, then both folders, the configuration at last."""
    node.host.write_unit("ours.service", SLEEP)
    await node.start("ours.service")
    node.remains = Remains(units=(UnitRemains("ours.service", True, ()), OWN_REMAINS))
    await node.reset()
    calls = [call for call in node.host.received if call.endswith(("Unit", "UnitFiles", "Reload"))]
    assert calls == [
        *("StopUnit", "StopUnit", "StopUnit"),
        *("DisableUnitFiles", "StopUnit", "DisableUnitFiles", "Reload", "ResetFailedUnit", "ResetFailedUnit"),
    ]
    assert sorted(node.cri.calls) == [
        ("list", ""),
        *(("remove", name) for name in ("one", "two")),
        *(("stop", name) for name in ("one", "two")),
    ]
    assert node.lines[:6] == [
        "Stopping agent, kubelet and containers ...",
        "Stopping agent, kubelet and containers: done",
        "Removing units and files ...",
        "Removing units and files: done",
        "Emptying the agent's folder ...",
        "Emptying the kubelet's folder ...",
    ]
    assert sorted(node.lines[6:8]) == ["Emptying the agent's folder: done", "Emptying the kubelet's folder: done"]
    assert node.lines[8:] == ["Removing the configuration file ...", "Removing the configuration file: done"]


async def test_everything_that_is_ours_goes(node: Node) -> None:
    """Contract 8.4: sandboxes, units with files and links, drop-ins, files, tokens, state; the two directories stay, empty."""
    node.host.write_unit("ours.service", SLEEP)
    node.write("etc/systemd/system/ours.service.d/10.conf", "[Unit]\n")
    token = node.write("var/lib/valitail/auth-token", "token")
    node.tokens = (Path("/var/lib/valitail/auth-token"),)
    path = node.write("etc/ours", "x")
    node.remains = Remains(
        units=(UnitRemains("ours.service", True, ("10.conf",)), OWN_REMAINS), files=("/etc/ours", "/etc/missing")
    )
    await node.start("ours.service")
    await node.reset()
    assert node.cri.sandboxes == {}
    for name in (OWN, "kubelet.service", "ours.service"):
        assert node.host.units[name].active_state == "inactive"
    assert node.left("etc/systemd/system") == ["kubelet.service", "multi-user.target.wants"]
    assert node.left("etc/systemd/system/multi-user.target.wants") == ["kubelet.service"]
    assert node.host.units["ours.service"].load_state == "not-found"
    assert not path.exists()
    assert not token.exists()
    for folder in (node.paths.base, node.paths.kubelet):
        assert list(folder.iterdir()) == []
    assert not node.paths.runtime.exists()


async def test_what_was_there_before_us_comes_back(node: Node) -> None:
    """Contract 8.4: files, unit files, drop-ins and containerd's configuration are as the operating system brought them."""
    paths = ["/etc/os", "/etc/systemd/system/os.service", "/etc/systemd/system/os.service.d/a.conf"]
    originals = Originals(folder=node.paths.originals, root=node.root)
    for path in paths:
        node.write(path[1:], "before")
    originals.keep(paths)
    originals.keep_first("/etc/containerd/config.toml")
    for path in (*paths, "/etc/containerd/config.toml"):
        write_atomic(node.root / path[1:], b"ours", mode=0o600)
    node.host.write_unit("containerd.service", SLEEP)
    await node.start("containerd.service")
    node.remains = Remains(
        units=(UnitRemains("os.service", True, ("a.conf",)), OWN_REMAINS),
        files=("/etc/containerd/config.toml", "/etc/os"),
    )
    await node.reset()
    assert [(node.root / path[1:]).read_text() for path in paths] == ["before"] * 3
    assert not (node.root / "etc/containerd/config.toml").exists()
    assert node.host.received.count("RestartUnit") == 1


async def test_originals_come_back_although_their_ledger_is_damaged(node: Node) -> None:
    """Contract 8.4: what is kept is put back, also in a registry's folder, and in the place of the agent's program."""
    program = f"/{node.paths.own_program.relative_to(node.root)}"
    hosts = "/etc/containerd/certs.d/theirs/hosts.toml"
    for path in (program, hosts):
        node.write(path[1:], "before")
    Originals(folder=node.paths.originals, root=node.root).keep([program, hosts])
    for path in (program, hosts):
        write_atomic(node.root / path[1:], b"# managed by gardener-node-agent\n", mode=0o644)
    (node.paths.originals / "ledger.json").write_text("{")
    node.remains = Remains(units=(OWN_REMAINS,), files=(program,), registries=("theirs",))
    await node.reset()
    assert [(node.root / path[1:]).read_text() for path in (program, hosts)] == ["before"] * 2


async def test_a_unit_of_the_operating_system_runs_as_before_us(node: Node) -> None:
    """Contract 8.4: with its file it is enabled and running as before the join, also after a reset that is repeated."""
    unit = node.write("etc/systemd/system/os.service", SLEEP + "# of the operating system\n")
    await node.start("os.service")
    originals = Originals(folder=node.paths.originals, root=node.root)
    originals.keep(["/etc/systemd/system/os.service"])
    await FormerUnits(originals=originals, units=node.units, root=node.root).note("os.service")
    write_atomic(unit, SLEEP.encode(), mode=0o600)
    for files in (("/etc",), ()):  # a folder is no file: the first reset fails
        node.remains = Remains((UnitRemains("os.service", True, ()), OWN_REMAINS), files)
        with suppress(ResetFailed):
            await node.reset()
        assert (await node.units.unit("os.service")).active_state == "active"
        assert (node.host.is_enabled("os.service"), unit.read_text() == SLEEP) == (True, False)


async def test_originals_that_were_put_back_survive_a_reset_that_is_repeated(node: Node) -> None:
    """Contract 8.4: what says that a path is ours goes before what says how it was, so that no kill in between loses it."""
    for state in (node.paths.last_applied, node.paths.pending_changes, node.paths.desired):
        node.write(str(state.relative_to(node.root)), "{}")
    Generations(node.paths.generations).write(node.paths.last_applied, b"{}", mode=0o600)
    seen: list[bool] = []

    class Looking(NodeFolders):
        async def empty_own(self, *, keep: Collection[Path]) -> None:
            states = (node.paths.last_applied, node.paths.pending_changes, node.paths.desired, node.paths.generations)
            seen.append(any(state.exists() for state in states))
            await super().empty_own(keep=keep)

    node.folders = Looking
    await node.reset()
    assert seen == [False]


async def test_originals_that_were_put_back_survive_a_kill_while_the_folder_is_emptied(node: Node) -> None:
    """Contract 8.4: killed when what was kept is gone and other state is not: the next reset does not delete what was put back."""
    place = node.write("etc/os", "before")
    Originals(folder=node.paths.originals, root=node.root).keep(["/etc/os"])
    write_atomic(place, b"ours", mode=0o600)
    # Whatever else is known of: what the ledger names is looked after.
    node.find = lambda: Remains(
        units=(OWN_REMAINS,),
        files=tuple(Originals(folder=node.paths.originals, root=node.root).paths),
    )

    class Killed(NodeFolders):
        async def empty_own(self, *, keep: Collection[Path]) -> None:
            for kept in node.paths.originals.iterdir():
                if kept.suffix != ".json":
                    kept.unlink()
            raise RetriableError("killed")

    folders, node.folders = node.folders, Killed
    with suppress(ResetFailed):
        await node.reset()
    assert place.read_text() == "before"
    node.folders = folders
    await node.reset()
    assert place.read_text() == "before"


async def test_w41_units_of_the_operating_system_keep_running(node: Node) -> None:
    """Contract 9 W41: a unit without content of ours is neither stopped nor disabled; it loses our drop-ins and runs without."""
    node.host.write_unit("containerd.service", SLEEP)
    node.write("etc/systemd/system/containerd.service.d/30-env_config.conf", "[Service]\n")
    node.write("etc/systemd/system/containerd.service.d/admin.conf", "[Service]\n")
    node.remains = Remains(units=(UnitRemains("containerd.service", False, ("30-env_config.conf",)), OWN_REMAINS))
    await node.start("containerd.service")
    await node.reset()
    assert node.host.units["containerd.service"].active_state == "active"
    assert node.host.is_enabled("containerd.service")
    assert node.left("etc/systemd/system/containerd.service.d") == ["admin.conf"]
    assert node.host.received.count("RestartUnit") == 1


async def test_a_unit_of_the_operating_system_that_does_not_run_is_not_started(node: Node) -> None:
    """Contract 9 W41: losing a drop-in is no reason to start what was stopped."""
    node.host.write_unit("os.service", SLEEP)
    node.write("etc/systemd/system/os.service.d/a.conf", "[Service]\n")
    node.remains = Remains(units=(UnitRemains("os.service", False, ("a.conf",)), OWN_REMAINS))
    await node.reset()
    assert "RestartUnit" not in node.host.received


async def test_a_repeated_reset_still_restarts_a_unit_that_lost_its_drop_ins(node: Node) -> None:
    """Contract 8.4: ended between the removal of drop-ins and the restart, the next reset has the unit run without our settings."""
    node.host.write_unit("os.service", SLEEP)
    node.write("etc/systemd/system/os.service.d/a.conf", "[Service]\n")
    node.remains = Remains(units=(UnitRemains("os.service", False, ("a.conf",)), OWN_REMAINS))
    await node.start("os.service")
    reload = node.units.reload

    async def refuse() -> None:
        raise RetriableError("systemd does not answer")

    node.units.reload = refuse  # type: ignore[method-assign]
    with suppress(AgentError):
        await node.reset()
    assert "RestartUnit" not in node.host.received
    node.units.reload = reload  # type: ignore[method-assign]
    await node.reset()
    assert node.host.received.count("RestartUnit") == 1


async def test_a_unit_that_systemd_does_not_restart_holds_no_reset_up(node: Node) -> None:
    """Contract 8.4, 9 W41: a unit that runs and was masked loses our drop-ins; that it cannot be restarted is no end of all resets."""
    node.write("usr/lib/systemd/system/os.service", SLEEP)
    await node.units.reload()
    node.write("etc/systemd/system/os.service.d/a.conf", "[Service]\n")
    await node.start("os.service")
    node.host.mask("os.service")
    await node.units.reload()
    node.remains = Remains(units=(UnitRemains("os.service", False, ("a.conf",)), OWN_REMAINS))
    await node.reset()
    assert any(line.startswith("Not restarted: os.service") for line in node.lines)
    assert not (node.root / "etc/systemd/system/os.service.d").exists()
    assert list(node.paths.base.iterdir()) == []


async def test_a_masked_or_replaced_unit_is_left_as_the_administrator_made_it(node: Node) -> None:
    """Contract 9 W41: a mask in the place of our unit file is not ours, and no error."""
    node.host.mask("masked.service")
    node.remains = Remains(units=(UnitRemains("masked.service", True, ()), OWN_REMAINS))
    await node.reset()
    assert (node.paths.systemd / "masked.service").is_symlink()


async def test_registries_go_if_they_are_ours(node: Node) -> None:
    """Contract 6.15, 8.4: a `hosts.toml` with our first line goes with its folder; an administrator's stays."""
    node.write("etc/containerd/certs.d/ours/hosts.toml", '# managed by gardener-node-agent\nserver = "x"\n')
    node.write("etc/containerd/certs.d/shared/hosts.toml", "# managed by gardener-node-agent\n")
    node.write("etc/containerd/certs.d/shared/ca.crt", "of an administrator")
    node.write("etc/containerd/certs.d/theirs/hosts.toml", 'server = "y"\n')
    node.remains = Remains(units=(OWN_REMAINS,), registries=("ours", "shared", "theirs", "missing"))
    await node.reset()
    assert node.left("etc/containerd/certs.d") == ["shared", "theirs"]
    assert node.left("etc/containerd/certs.d/shared") == ["ca.crt"]


async def test_folders_of_registries_that_were_there_before_us_are_as_before(node: Node) -> None:
    """Contract 8.4: the operating system's `hosts.toml` is back, and a folder that it brought stays, also an empty one."""
    hosts, folder = node.write("etc/containerd/certs.d/theirs/hosts.toml", "theirs"), "etc/containerd/certs.d"
    (node.root / folder / "empty").mkdir()
    kept = [f"/{folder}/{name}/hosts.toml" for name in ("theirs", "empty", "ours")]
    Originals(folder=node.paths.originals, root=node.root).keep([], in_folders=kept)
    for path in kept:
        write_atomic(node.root / path[1:], b"# managed by gardener-node-agent\n", mode=0o644)
    node.remains = Remains(units=(OWN_REMAINS,), registries=("ours", "theirs", "empty"))
    await node.reset()
    assert (node.left(folder), node.left(f"{folder}/empty"), hosts.read_text()) == (["empty", "theirs"], [], "theirs")


@pytest.mark.parametrize("fault", ["no socket", "silence", "no CRI"])
async def test_w41_a_dead_container_runtime_holds_nothing_up(node: Node, fault: str) -> None:
    """Contract 8.4, 9 W25, W41: without an answer the reset goes on after its deadline, and says so; systemd stops the Pods' slice."""
    node.host.write_unit("kubepods.slice", "[Slice]\n")
    await node.start("kubepods.slice")
    node.cri.silent = {"list"} if fault == "silence" else set()
    node.cri.unimplemented = fault == "no CRI"
    if fault == "no socket":
        await node.cri.stop()
    before = asyncio.get_running_loop().time()
    await node.reset()
    assert asyncio.get_running_loop().time() - before < 20
    assert "The container runtime does not answer; going on without it" in node.lines
    assert node.host.units["kubepods.slice"].active_state == "inactive"
    assert list(node.paths.base.iterdir()) == []


async def test_a_pod_that_never_stops_is_left_to_systemd(node: Node) -> None:
    """Contract 9 W41: the others are removed, and the reset goes on."""
    node.cri.silent = {"one"}
    await node.reset()
    assert list(node.cri.sandboxes) == ["one"]
    assert list(node.paths.base.iterdir()) == []


async def test_a_sandbox_is_tried_five_times(node: Node) -> None:
    """Contract 8.4: up to five immediate tries for each sandbox."""
    node.cri.refuse = {"one": 4}
    await node.reset()
    assert node.cri.sandboxes == {}
    assert node.cri.calls.count(("stop", "one")) == 5


async def test_a_sandbox_that_cannot_be_removed_ends_the_reset(node: Node) -> None:
    """Contract 8.4: errors are collected, all sandboxes are tried, and no later step is begun."""
    node.cri.refuse = {"one": 5}
    path = node.write("etc/ours", "x")
    node.remains = Remains(units=(OWN_REMAINS,), files=("/etc/ours",))
    with pytest.raises(ResetFailed, match=r"pods not removed.*kube-system/pod-one.*failed to destroy network"):
        await node.reset()
    assert list(node.cri.sandboxes) == ["one"]
    assert path.exists()
    assert node.paths.own_unit.exists()
    assert node.lines[-1] == "Stopping agent, kubelet and containers: failed"


async def test_an_agent_that_does_not_stop_ends_the_reset(node: Node) -> None:
    """Contract 8.4: nothing is removed under an agent or a kubelet that still runs; the wait has an end (W25)."""
    node.host.silent.add("StopUnit")
    with pytest.raises(AgentError):
        await node.reset()
    assert node.cri.calls == []
    assert node.paths.own_unit.exists()


async def test_a_failed_file_does_not_keep_the_others(node: Node) -> None:
    """Contract 8.4: errors of units and files are collected and named; the folders are not touched then."""
    (node.root / "etc/a-directory").mkdir()
    path = node.write("etc/ours", "x")
    node.remains = Remains(units=(OWN_REMAINS,), files=("/etc/a-directory", "/etc/ours"))
    with pytest.raises(ResetFailed, match="/etc/a-directory"):
        await node.reset()
    assert not path.exists()
    assert not node.paths.own_unit.exists()
    assert node.left("var/lib/kubelet") == ["pki"]
    assert "credentials" in node.left("var/lib/gardener-node-agent")


async def test_w41_mounts_are_undone_from_the_deepest_up(node: Node) -> None:
    """Contract 8.4, 9 W41: nested mounts first, names with blanks too; then the kubelet's folder is emptied."""
    base = node.paths.kubelet / "pods/a/volumes"
    for point in (base, base / "in side", base / "in side/deep"):
        point.mkdir(parents=True, exist_ok=True)
        node.disks.mount_somewhere(FakeDisk(disk(5)), point)
    await node.reset()
    start = "var/lib/kubelet/pods/a/volumes"
    assert node.unmounted == [f"{start}/in side/deep", f"{start}/in side", start]
    assert list(node.paths.kubelet.iterdir()) == []


async def test_w41_nothing_is_deleted_below_a_mount_that_stays(node: Node) -> None:
    """Contract 8.4, 9 W41: what cannot be unmounted keeps its folder; the agent's own is emptied, the configuration stays."""
    point = node.paths.kubelet / "pods/a/nfs"
    node.write("var/lib/kubelet/pods/a/nfs/precious", "data of a user")
    node.disks.mount_somewhere(FakeDisk(disk(5)), point)
    node.stuck = {str(point)}
    with pytest.raises(ResetFailed, match="cannot be unmounted"):
        await node.reset()
    assert (point / "precious").read_text() == "data of a user"
    assert node.left("var/lib/gardener-node-agent") == ["config-v1.150.0.yaml"]
    node.stuck = set()
    await node.reset()
    assert list(node.paths.base.iterdir()) == []
    assert list(node.paths.kubelet.iterdir()) == []


async def test_a_data_volume_is_emptied_and_unmounted(node: Node) -> None:
    """Contract 8.3, 8.4: the volume loses the old kubelet's content before it is unmounted; then the folder below it, too."""
    volume = node.disks.add(FakeDisk(disk(1), Signatures("ext4", "KUBEDEV")))
    node.disks.mount_somewhere(volume, node.paths.kubelet)
    await node.reset()
    assert node.unmounted == ["var/lib/kubelet"]
    assert list(node.paths.kubelet.iterdir()) == []
    assert volume.signatures == Signatures("ext4", "KUBEDEV")


async def test_another_file_system_at_the_kubelets_folder_stays_mounted(node: Node) -> None:
    """Contract 8.4: a partition of the operating system is emptied and not unmounted; an unreadable device counts as that."""
    for signatures in (Signatures("xfs", "DATA"), None):
        node.disks.mounts = []
        node.disks.mount_somewhere(node.disks.add(FakeDisk(disk(1), signatures)), node.paths.kubelet)
        await node.reset()
        assert node.unmounted == []
        assert list(node.paths.kubelet.iterdir()) == []


async def test_the_volume_is_emptied_before_its_unit_unmounts_it(node: Node) -> None:
    """Contract 8.4: the OSC's mount unit is stopped like any other, but not before the volume is empty."""
    node.host.write_unit("var-lib-kubelet.mount", "[Mount]\n")
    await node.start("var-lib-kubelet.mount")
    node.remains = Remains(
        units=(UnitRemains("var-lib-kubelet.mount", True, ()), OWN_REMAINS), files=("/etc/a-directory",)
    )
    (node.root / "etc/a-directory").mkdir()
    with pytest.raises(ResetFailed):
        await node.reset()  # fails after the units, before the folders
    assert list(node.paths.kubelet.iterdir()) == []
    assert not (node.paths.systemd / "var-lib-kubelet.mount").exists()


async def test_a_reset_can_be_repeated(node: Node) -> None:
    """Contract 8.4: a second run succeeds, finds nothing and harms nothing."""
    await node.reset()
    node.remains = Remains(units=(OWN_REMAINS, UnitRemains("gone.service", True, ("x.conf",))), files=("/etc/gone",))
    await node.reset()
    assert list(node.paths.base.iterdir()) == []


async def test_what_is_left_alone_is_said(node: Node) -> None:
    """Contract 8.4: a file that perhaps was to be written stays, and the operator is told."""
    path = node.write("etc/os", "of the operating system")
    node.remains = Remains(units=(OWN_REMAINS,), unproven=("/etc/os",))
    await node.reset()
    assert path.exists()
    assert any(line.startswith("Left: /etc/os") for line in node.lines)


async def test_state_that_cannot_be_read_ends_the_reset(node: Node) -> None:
    """Contract 8.4: without knowing what is ours nothing is removed."""

    def find() -> Remains:
        raise RetriableError("damaged")

    node.find = find
    with pytest.raises(RetriableError, match="damaged"):
        await node.reset()
    assert node.paths.own_unit.exists()
    assert "credentials" in node.left("var/lib/gardener-node-agent")


def test_a_completed_reset_is_recognised(tmp_path: Path) -> None:
    """Contract 1.2, 8.4: without a configuration a reset fails, unless the reset before has removed everything."""
    paths = Paths(root=tmp_path)
    assert nothing_to_reset(paths)
    paths.base.mkdir(parents=True)
    assert nothing_to_reset(paths)
    paths.last_applied.write_text("{}")
    assert not nothing_to_reset(paths)


PROGRAM = "/opt/bin/gardener-node-agent"


async def test_the_program_goes_last(node: Node) -> None:
    """Contract 8.4: killed while folders are emptied, when nothing tells any more that it is ours: the next reset removes it."""
    program = node.write(PROGRAM.lstrip("/"), "agent")
    node.remains = Remains(units=(OWN_REMAINS,), files=(PROGRAM,))

    class Failing(NodeFolders):
        async def leave_kubelet(self) -> None:
            raise RetriableError("killed")

    node.folders = Failing
    with pytest.raises(ResetFailed):
        await node.reset()
    assert program.exists()
    assert (node.root / CONFIG).exists()
    node.folders, node.remains = NodeFolders, Remains(units=(OWN_REMAINS,))
    await node.reset()
    assert not program.exists()
    assert list(node.paths.base.iterdir()) == []


async def test_a_program_that_no_osc_brought_stays(node: Node) -> None:
    """Contract 8.4: what user data brought is there for the next join."""
    program = node.write(PROGRAM.lstrip("/"), "agent")
    await node.reset()
    assert program.exists()


async def test_a_program_with_an_original_is_as_before(node: Node) -> None:
    """Contract 8.4: what was there before us comes back, and is not removed at the end."""
    program = node.write(PROGRAM.lstrip("/"), "of the operating system")
    Originals(folder=node.paths.originals, root=node.root).keep([PROGRAM])
    write_atomic(program, b"ours", mode=0o755)
    node.remains = Remains(units=(OWN_REMAINS,), files=(PROGRAM,))
    await node.reset()
    assert program.read_text() == "of the operating system"


def test_a_reset_that_was_killed_before_its_last_act_is_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 8.4: the configuration is gone, the program is not: the same command removes it."""
    paths = Paths(root=tmp_path)
    for path in (paths.reset_end, paths.own_program):
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert nothing_to_reset(paths)
    assert already_reset(paths) == 0
    assert not paths.own_program.exists()
    assert nothing_to_reset(paths)
    assert "it can join again" in capsys.readouterr().out
