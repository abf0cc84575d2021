"""The two commands that a newcomer types first, as they are typed."""

import subprocess
from pathlib import Path

import pytest

from tests.lab.cluster import Lab
from tests.lab.state import state_root

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"demo": "lab", "demo-seed": "seed-"}
"""How their labs are called."""


@pytest.mark.parametrize("target", ["demo", "demo-seed"])
def test_a_demo_is_told_to_its_end(lab: Lab, target: str) -> None:
    """`make demo`, `make demo-seed`: every row of the table holds, and nothing is left that they started."""
    assert lab.is_up()  # what is missing on this host is there now
    command = ["make", "--no-print-directory", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.rstrip().endswith("Every row holds."), done.stdout
    ours = [path.name for path in state_root().iterdir() if path.is_dir() and path.name.startswith(NAMES[target])]
    assert ours == []
