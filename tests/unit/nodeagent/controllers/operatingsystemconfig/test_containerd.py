"""containerd's configuration file, from what containerd itself brings."""

import asyncio
import socket
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agents.core.names import Names
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles, RegistryNotReady
from nodeagent.host.originals import Originals
from osc.merge import Runtime
from osc.types import Plugin, Registry

GOLDEN = Path(__file__).parents[4] / "data/containerd"
CONFIG = "etc/containerd/config.toml"
OLD, IMAGES, RUNTIME = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
GVISOR = {"path": [OLD, "containerd", "runtimes", "gvisor"], "values": {"runtime_type": "io.containerd.runsc.v1"}}
SETTINGS = Runtime(
    sandbox_image="registry.example/pause:3.10",
    cgroup_driver="systemd",
    plugins=(Plugin.model_validate(GVISOR),),
)
ONE_TABLE = {
    ("imports",),
    ("plugins", OLD, "sandbox_image"),
    ("plugins", OLD, "registry", "config_path"),
    ("plugins", OLD, "containerd", "runtimes", "runc", "options", "SystemdCgroup"),
    ("plugins", OLD, "containerd", "runtimes", "gvisor", "runtime_type"),
}
TWO_TABLES = {
    ("plugins", IMAGES, "pinned_images", "sandbox"),
    ("plugins", IMAGES, "registry", "config_path"),
    ("plugins", RUNTIME, "containerd", "runtimes", "runc", "options", "SystemdCgroup"),
    ("plugins", RUNTIME, "containerd", "runtimes", "gvisor", "runtime_type"),
}
BIN_DIR = ("plugins", RUNTIME, "cni", "bin_dir")


class Installed:
    """A containerd of some release."""

    def __init__(self, release: str) -> None:
        self.release = release

    async def version(self) -> str:
        """Return its version, as Debian has it."""
        return f"{self.release}.1~ds1"

    async def default_config(self) -> bytes:
        """Return what it prints."""
        return (GOLDEN / f"{self.release}.toml").read_bytes()


def leaves(table: Mapping[str, object], *path: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield each value that is no table, or an empty one, with its path."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, *path, key)
        else:
            yield (*path, key), value


@pytest.mark.parametrize("exists", [False, True], ids=["new file", "file of the image"])
@pytest.mark.parametrize(
    ("release", "version", "changed"),
    [
        ("1.6", 2, ONE_TABLE),
        ("2.0", 3, TWO_TABLES | {("imports",)}),
        ("2.1", 3, TWO_TABLES | {("imports",), BIN_DIR}),
        ("2.2", 3, TWO_TABLES | {BIN_DIR}),
        ("2.3", 4, TWO_TABLES | {BIN_DIR}),
    ],
)
async def test_default_configurations_of_releases(
    tmp_path: Path, release: str, version: int, changed: set[tuple[str, ...]], exists: bool
) -> None:
    """Contract 6.14, Appendix C (containerd): only our keys differ from what containerd prints, all else survives; once written it stays."""
    path = tmp_path / CONFIG
    default = await Installed(release).default_config()
    if exists:
        path.parent.mkdir(parents=True)
        path.write_bytes(default)
    originals = Originals(folder=tmp_path / "originals", root=tmp_path)
    files = ContainerdFiles(containerd=Installed(release), originals=originals, root=tmp_path)
    assert await files.configure(SETTINGS)
    before, after = tomllib.loads(default.decode()), tomllib.loads(path.read_text())
    assert after == tomllib.loads((GOLDEN / f"{release}.expected.toml").read_text())
    assert before["version"] == after["version"] == version
    old, new = dict(leaves(before)), dict(leaves(after))
    assert {leaf for leaf in old.keys() | new.keys() if old.get(leaf) != new.get(leaf)} == changed
    assert not await files.configure(SETTINGS)


async def test_mirrors_whose_names_do_not_resolve_take_no_thread_of_others(tmp_path: Path) -> None:
    """Contract 6.15, ours: asked for again and again, each name has one lookup, and the threads that all share stay free."""
    silent, asked = threading.Event(), list[str]()

    def look_up(host: str, *_arguments: object, **_more: object) -> list[object]:
        asked.append(host)
        silent.wait(10)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    originals = Originals(folder=tmp_path / "originals", root=tmp_path)
    names = Names(look_up=look_up)
    files = ContainerdFiles(containerd=Installed("1.6"), originals=originals, root=tmp_path, names=names)
    hosts = [{"url": f"https://dead-{index}.example"} for index in range(8)]
    registry = Registry.model_validate({"upstream": "docker.io", "hosts": hosts})
    try:
        for _ in range(4):
            with pytest.raises(RegistryNotReady, match="no answer within"):
                await files.probe(registry)
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert sorted(asked) == [f"dead-{index}.example" for index in range(8)]
    finally:
        silent.set()
