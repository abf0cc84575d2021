"""What the documents tell an operator to type on a node, typed there."""

import re

import pytest

from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import Worker

UNIT = "containerd.service"
LINES = {
    "journalctl -u gardener-node-agent": r"msg='?Reconcile|Starting",
    "journalctl -u <unit>": "containerd",
    "systemctl status <unit>": r"Active: active \(running\)",
    "systemctl status containerd": r"Active: active \(running\)",
    "systemctl list-jobs": r"^No jobs running\.$",
    "curl localhost:2751/healthz?verbose": r"^\[\+\]informer-sync ok$",
    "curl -k https://<api-server>/healthz": "^(ok|.*Unauthorized.*|.*forbidden.*)$",
    "systemctl restart gardener-node-agent": "^$",
    "systemctl restart <unit>": "^$",
}


@pytest.mark.parametrize(("line", "prints"), LINES.items(), ids=LINES)
def test_what_an_operator_types(worker: Worker, line: str, prints: str) -> None:
    """It ends with 0 and prints what the document says one sees."""
    server = worker.lab.control_plane.server_inside.removeprefix("https://")
    typed = line.replace("<unit>", UNIT).replace("<api-server>", server)
    done = worker.machine.run(["sh", "-c", f"{typed} 2>&1"], check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    assert re.search(prints, done.stdout, re.M), done.stdout
    assert worker.machine.unit(AGENT_UNIT)["ActiveState"] == "active"
