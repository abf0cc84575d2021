"""Asking containerd, on a real one of this host."""

import asyncio
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core.process import ProcessError
from nodeagent.host import grpc_call
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

    def freeze(self) -> None:
        """Stop all of its threads: until then one of them could still answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

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
    daemon.freeze()
    containerd = Containerd(daemon.settings, deadline=timedelta(seconds=0.5))
    with pytest.raises(ContainerdUnavailable, match=r"deadlineSeconds=0\.5"):
        async with asyncio.timeout(5):
            await containerd.version()


async def test_a_process_without_means_says_nothing_about_containerd(daemon: Daemon) -> None:
    """Contract 7.5: what keeps us from asking is another error than containerd's own failure, so nobody restarts it for that."""
    daemon.start()
    await answered(Containerd(daemon.settings))
    limits, lowest_free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(ContainerdNotAsked, match="Too many open files"):
            await Containerd(daemon.settings).version()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_an_unknown_method_is_a_failed_call(daemon: Daemon) -> None:
    """Contract 7.5: a server that answers with an error has not answered."""
    daemon.start()
    await answered(Containerd(daemon.settings))
    with pytest.raises(grpc_call.CallFailed, match="without an answer"):
        await grpc_call.call(Path(daemon.settings.address), "/containerd.services.version.v1.Version/Nonsense")


async def test_many_calls_leave_no_connection(daemon: Daemon) -> None:
    """Contract 9 W33: each call closes its connection."""
    daemon.start()
    containerd = Containerd(daemon.settings)
    await answered(containerd)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        await containerd.version()
    await asyncio.sleep(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


async def test_default_configuration_is_toml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Contract 6.14: `containerd config default` gives the configuration; a containerd that is not there is a clear error."""
    assert b"\nversion = " in b"\n" + await Containerd().default_config()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProcessError, match="not started"):
        await Containerd().default_config()
