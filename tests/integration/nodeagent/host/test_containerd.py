"""Asking containerd, on a real one of this host."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core.process import ProcessError
from nodeagent.host.containerd import Containerd, ContainerdNotAsked, ContainerdUnavailable
from nodeagent.host.ctr import CtrSettings

CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/containerd.sock"
"""


@dataclass
class Daemon:
    """A containerd of this test's own."""

    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def settings(self) -> CtrSettings:
        """How it is reached."""
        return CtrSettings(address=f"{self.folder}/containerd.sock")

    def start(self) -> None:
        """Start it."""
        config = self.folder / "config.toml"
        config.write_text(CONFIG.format(folder=self.folder))
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(["containerd", "--config", str(config)], stdout=log, stderr=log)

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A containerd that was not started yet; its folder has a short name, because a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="ctd-") as folder:
        found = Daemon(Path(folder))
        yield found
        found.stop()


async def answered(containerd: Containerd) -> str:
    """Wait until containerd answers."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await containerd.version()
            except ContainerdUnavailable:
                await asyncio.sleep(0.05)


async def test_w32_containerd_is_not_needed_until_it_is_asked(daemon: Daemon) -> None:
    """Contract 9 W32: the object is made while containerd is down; the call says so, and works once it is there, also after a restart."""
    containerd = Containerd(daemon.settings)
    with pytest.raises(ContainerdUnavailable, match=r"does not listen.*No such file"):
        await containerd.version()
    daemon.start()
    version = await answered(containerd)
    assert version.startswith(("1.", "2."))
    daemon.stop()
    with pytest.raises(ContainerdUnavailable, match=r"does not listen.*Connection refused"):
        await containerd.version()
    daemon.start()
    assert await answered(containerd) == version


async def test_w25_a_frozen_containerd_is_given_up_in_time(daemon: Daemon) -> None:
    """Contract 7.5, 9 W25: the version call of a containerd that does not answer ends at its deadline, and leaves no process."""
    daemon.start()
    await answered(Containerd(daemon.settings))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    containerd = Containerd(daemon.settings, deadline=timedelta(seconds=0.5))
    with pytest.raises(ContainerdUnavailable, match=r"deadlineSeconds=0\.5"):
        async with asyncio.timeout(5):
            await containerd.version()
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [
        command for command in commands if command.startswith(b"ctr\0") and str(daemon.folder).encode() in command
    ]


async def test_a_missing_ctr_says_nothing_about_containerd(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 7.5: what keeps us from asking is another error than containerd's own failure, so nobody restarts it for that."""
    daemon.start()
    await answered(Containerd(daemon.settings))
    monkeypatch.setenv("PATH", str(daemon.folder))
    with pytest.raises(ContainerdNotAsked, match="cannot be run"):
        await Containerd(daemon.settings).version()
    for script, text in (("kill -9 $$", "was killed"), ("echo nonsense", "prints no version")):
        program = daemon.folder / "ctr"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with pytest.raises(ContainerdNotAsked, match=text):
            await Containerd(daemon.settings).version()


async def test_ctr_that_fails_is_containerds_failure(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 7.5: what `ctr` says when it fails is the cause in the error."""
    daemon.start()
    await answered(Containerd(daemon.settings))
    program = daemon.folder / "ctr"
    program.write_text("#!/bin/sh\necho transport is closing >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{daemon.folder}:{os.environ['PATH']}")
    with pytest.raises(ContainerdUnavailable, match="transport is closing"):
        await Containerd(daemon.settings).version()


async def test_default_configuration_is_toml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Contract 6.14: `containerd config default` gives the configuration; a containerd that is not there is a clear error."""
    assert b"\nversion = " in b"\n" + await Containerd().default_config()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProcessError, match="not started"):
        await Containerd().default_config()
