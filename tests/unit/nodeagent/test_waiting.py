"""What the process tells systemd while it waits for an API server that is away."""

import asyncio
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from agents.core.shutdown import Shutdown
from nodeagent import app, config
from nodeagent.credentials import CredentialsManager
from nodeagent.host.ctr import CtrSettings
from nodeagent.host.image_extractor import CtrImageExtractor
from nodeagent.paths import Paths
from systemd.notify import ServiceEnvironment

CONFIG = {
    "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
    "kind": "NodeAgentConfiguration",
    "apiServer": {"server": "https://api.example", "caFile": "/ca.crt"},
    "controllers": {"operatingSystemConfig": {"secretName": "osc", "kubernetesVersion": "1.34.4"}},
}


async def forever(*_arguments: object) -> None:
    """Never get an answer."""
    await asyncio.Event().wait()


async def nothing(*_arguments: object) -> None:
    """Find nothing to do."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine from which the API server cannot be reached; returns the process's configuration file."""
    monkeypatch.setattr(app, "Paths", lambda: Paths(root=tmp_path))
    monkeypatch.setattr(app, "read_machine_name", lambda _path: "machine")
    for server in ("health_server", "metrics_server"):
        monkeypatch.setattr(app, server, lambda **_more: nullcontext())
    monkeypatch.setattr(app, "_end_soon", lambda _abort: None)
    monkeypatch.setattr(CtrImageExtractor, "clean", nothing)
    monkeypatch.setattr(CredentialsManager, "obtain", forever)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.mark.parametrize(("watchdog", "calls"), [("120000000", 10), ("", 0)])
async def test_systemd_has_no_reason_to_end_it(machine: Path, tmp_path: Path, watchdog: str, calls: int) -> None:
    """Issue section 2: it is ready, and serves the watchdog where there is one, however long the API server is away."""
    shutdown, heard = Shutdown(), list[bytes]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)

        async def listen(seconds: float) -> None:
            for _ in range(round(seconds)):
                await asyncio.sleep(1)
                try:
                    heard.append(systemd.recv(100))
                except BlockingIOError:
                    continue

        async with asyncio.TaskGroup() as group:
            process = group.create_task(
                app.run(
                    config.load(machine),
                    machine,
                    ctr=CtrSettings(),
                    service=ServiceEnvironment(str(tmp_path / "notify"), watchdog),
                    search_path="/bin",
                    owner=app.Owner(shutdown=shutdown, say=lambda _line: None, abort=lambda _code: None),
                )
            )
            await listen(590)
            assert sorted(heard) == [b"READY=1", *[b"WATCHDOG=1"] * calls]
            shutdown.request("end of the test")
            assert await process == 0
