"""The commands that measure and that break things, run as the documents name them, with little of everything."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster import Lab

ROOT = Path(__file__).resolve().parents[2]


def make(target: str, arguments: str) -> str:
    """Run a target to its end; returns what it printed."""
    command = ["make", "--no-print-directory", target, f"ARGS={arguments}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def measured(target: str, arguments: str, output: Path) -> dict[str, dict[str, Any]]:
    """Run a measurement; returns its rows by their names, which are all in the table that was printed."""
    table = make(target, f"{arguments} --output {output}")
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(output.read_text())}
    lines = table.splitlines()
    for name, row in rows.items():
        assert any(line.startswith(f"{name}  ") and row["verdict"] in line for line in lines), table
    return rows


def test_bench(lab: Lab, tmp_path: Path) -> None:
    """`make bench`: a row is measured on a lab of its own, printed and written."""
    assert lab.is_up()  # what is missing on this host is there now
    rows = measured("bench", "--only join", tmp_path / "bench.json")
    assert set(rows) == {"join"}
    assert 0 < rows["join"]["value"] < 600


def test_bench_scale(lab: Lab, tmp_path: Path) -> None:
    """`make bench-scale`: each of a few agents beats, has its two watches, and applies the change."""
    assert lab.is_up()
    small = "--agents 3 --seconds 30 --window 4 --settle 2"
    rows = measured("bench-scale", small, tmp_path / "scale.json")
    values = {name: row["value"] for name, row in rows.items()}
    assert values["agents"] == 3
    assert values["watches per agent"] == 2
    assert values["nodes without it"] == 0
    assert values["agents without a heartbeat"] == 0


def test_bench_gardenlet(tmp_path: Path) -> None:
    """`make bench-gardenlet`: a row is measured on a garden of its own, printed and written."""
    rows = measured("bench-gardenlet", "--only start --repetitions 1", tmp_path / "gardenlet.json")
    assert rows
    assert all(0 < row["value"] < 600 for row in rows.values())


@pytest.mark.parametrize(("target", "campaign"), [("chaos", "cuts"), ("chaos-full", "kills")])
def test_chaos(lab: Lab, target: str, campaign: str) -> None:
    """`make chaos` and `make chaos-full`: cases are tried and counted, and the seed is said with which they can be repeated."""
    assert lab.is_up()
    said = make(target, f"--only {campaign} --cases 2")
    assert said.rstrip().endswith("\n2 passed, 0 failed"), said
    assert re.search(r"^seed: \d+ \(repeat with SEED=\d+\)$", said, re.M), said


def test_a_kept_case_is_repeated(lab: Lab) -> None:
    """`python -m tests.chaos --repeat FILE`: that case and no other one."""
    assert lab.is_up()
    case = "tests/chaos/regressions/power-cut-in-an-extraction.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--repeat", case], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.rstrip().endswith("\n1 passed, 0 failed"), done.stdout
