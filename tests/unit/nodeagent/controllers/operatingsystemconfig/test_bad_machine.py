"""What is wrong is not the OSC but the machine: said in log and event, all else is applied, and nothing is lost."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agents.kube.models import EVENTS
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from tests.support.osc_agent import SLEEP, OscAgent, containerd, inline

CONFIG = "etc/containerd/config.toml"
ITEM = "configuration of containerd"


def told(node: OscAgent, reason: str) -> list[str]:
    """Return what the events with a reason say."""
    return [event["note"] for event in node.api.stored(EVENTS) if event["reason"] == reason]


def write(path: Path, content: bytes | None) -> None:
    """Put bytes at a path, or a directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"[plugins\nversion = ", "not valid TOML"),
        (b"\xff\xfe\x00", "not valid TOML"),
        (b"version = 2\nx = " + b"9" * 5000 + b"\n", "not valid TOML"),
        (b"version = 2\nx = " + b"[" * 5000 + b"]" * 5000 + b"\n", "not valid TOML"),
        (b"version = 2\nx = 0x" + b"f" * 5000 + b"\n", "cannot be used"),
        (b"version = 2\nx = " + b"[" * 350 + b"]" * 350 + b"\n", "cannot be used"),
        (b"version = 9\n", "9"),
        (b'version = "two"\n', "two"),
        (b"version = 2\nplugins = 5\n", "plugins"),
        (b'version = 2\n[plugins]\n"io.containerd.grpc.v1.cri" = []\n', "io.containerd.grpc.v1.cri"),
        (b"#" * 1024 * 1024 + b"\n", "too large"),
        (None, "not a regular file"),
    ],
    ids=[
        "torn",
        "binary",
        "too many digits",
        "too deep to be read",
        "too many digits to be written",
        "too deep to be written",
        "unknown version",
        "version is text",
        "plugins is no table",
        "cri is no table",
        "huge",
        "directory",
    ],
)
async def test_an_unusable_configuration_of_containerd_fails_alone(
    node: OscAgent, content: bytes | None, cause: str
) -> None:
    """Contract 6.14: a `config.toml` that cannot be read or is wrong is left as it is and named; with a good one all is applied."""
    node.host.write_unit("containerd.service", SLEEP)
    path = node.root / CONFIG
    write(path, content)
    checksum = node.publish(
        files=[inline("/a", "1")], units=[{"name": "a.service", "content": SLEEP}], criConfig=containerd()
    )
    async with node.connected():
        with capture_logs() as lines, pytest.raises(ApplyFailed):
            await node.reconcile()
        assert (node.read("/a"), node.host.units["a.service"].active_state) == ("1", "active")
        assert (path.is_dir() if content is None else path.read_bytes()) == (content is None or content)
        (item,) = node.status_document()["items"]
        assert item["name"] == ITEM
        logged = [str(line["error"]) for line in lines if line["log_level"] == "error" and "step" in line]
        assert (cause in item["cause"], [cause in text for text in logged]) == (True, [True])
        await node.recorder.flush(deadline=5)
        (note,) = told(node, "OSCFailed")
        assert ITEM in note
        assert "config.toml" in note
        if content is None:
            path.rmdir()
        write(path, b"version = 2\n")
        await node.reconcile()
        assert node.applied() == checksum
        assert "pause" in path.read_text()
