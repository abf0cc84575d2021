"""The whole process against a real garden and a real seed: from a bootstrap token to heartbeats, and back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.api import wait_for
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import ROOT, SEED_SECRETS, Gardenlet


@pytest.fixture
def process(garden: Garden, tmp_path: Path) -> Iterator[Gardenlet]:
    """A gardenlet with a bootstrap token, not started; refused requests fail the test."""
    found = Gardenlet(garden, tmp_path)
    found.hand_token()
    denied = len(garden.denials())
    yield found
    found.close()
    assert [str(one) for one in garden.denials()[denied:] if found.name in one.user] == []


def test_from_a_token_to_heartbeats(process: Gardenlet) -> None:
    """Contract core 13.1.1, 13.1.3: CSR, kubeconfig, Seed, namespace, Lease; nothing of the bootstrap left; renewed on request."""
    process.start()
    process.until(200, timeout=15)
    process.until(200, "/readyz")
    wait_for(process.renewed, timeout=20, what="a heartbeat")
    seed = process.seed()
    assert seed is not None
    assert seed["metadata"]["labels"]["gardener.cloud/role"] == "seed"
    assert process.garden.api.find(f"/api/v1/namespaces/seed-{process.name}") is not None
    wait_for(
        lambda: process.garden.seed.admin.find(f"{SEED_SECRETS}/{process.name}-bootstrap") is None,
        timeout=20,
        what="the bootstrap Secret to go",
    )
    first = process.stored()
    assert first is not None
    process.ask_for_certificate()
    assert process.process.wait(timeout=20) == 0
    second = process.stored()
    assert second is not None
    assert second["data"] != first["data"]
    before = process.renewed()
    process.start()
    wait_for(lambda: process.renewed() != before, timeout=20, what="a heartbeat with the new certificate")
    assert process.end() == 0
    assert "PRIVATE KEY" not in process.log


def test_killed_and_stopped(process: Gardenlet) -> None:
    """Contract core 1.3, 1.7: SIGTERM gives the lease back; after SIGKILL the same Pod leads again at once."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    before, started = process.renewed(), time.monotonic()
    process.start()
    wait_for(lambda: process.renewed() != before, timeout=30, what="a heartbeat after the kill")
    assert time.monotonic() - started < 12
    assert process.end() == 0
    assert process.leader() == ""


def test_health_says_which_side_fails(process: Gardenlet) -> None:
    """Contract core 1.5, 13.1.4: a seed or garden that is killed: 500 with the side; 200 again after it is back."""
    process.start()
    wait_for(process.renewed, timeout=30, what="a heartbeat")
    for side, plane in (("garden", process.garden.plane), ("seed", process.garden.seed)):
        plane.kill_apiserver()
        try:
            process.until(500, timeout=10)
            assert f"{side}: " in process.ask("/healthz?verbose")[1]
            assert process.ask("/healthz/ping")[0] == 200
        finally:
            plane.start_apiserver()
        if side == "garden":
            process.until(200, timeout=15)
    # The leader's lease could not be renewed meanwhile, or could: it ends with an error, or goes on.
    assert process.process.poll() in (None, 1)


def test_a_wrong_configuration_is_one_line_for_each_problem(process: Gardenlet) -> None:
    """Contract core 1.7, 2: exit code 2, each problem with its path, no traceback."""
    path = process.folder / "wrong.yaml"
    path.write_text(
        json.dumps({"apiVersion": "gardenlet.config.gardener.cloud/v1alpha1", "kind": "GardenletConfiguration"})
    )
    done = subprocess.run(
        [sys.executable, "-m", "gardenlet", "--config", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "seedConfig" in done.stderr
    assert "Traceback" not in done.stderr
