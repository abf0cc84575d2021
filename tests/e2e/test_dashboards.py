"""The dashboards and the pictures, about agents that really ran: asked of a Prometheus that scraped both stories."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.lab.watched import ROOT, Watched

DASHBOARDS = {
    "gardener-node-agent": ROOT / "packaging/monitoring/node-agent-dashboard.json",
    "gardenlet": ROOT / "packaging/monitoring/gardenlet-dashboard.json",
}
PICTURES = {
    "gardener-node-agent": {f"node-agent-{name}.svg" for name in ("heartbeat", "steps", "drift", "requests")},
    "gardenlet": {f"gardenlet-{name}.svg" for name in ("heartbeat", "heartbeats", "requests")},
}


@pytest.fixture(params=["node_story", "seed_story"])
def story(request: pytest.FixtureRequest) -> Watched:
    """Each story."""
    found: Watched = request.getfixturevalue(request.param)
    return found


def test_every_query_has_data(story: Watched) -> None:
    """Every expression of every panel has at least one value that is a number, for agents that ran for a minute."""
    asked = story.graphs("--ask")
    assert asked.stdout == ""
    assert asked.returncode == 0, asked.stderr
    panels = json.loads(DASHBOARDS[story.program].read_text())["panels"]
    queries = sum(len(panel["targets"]) for panel in panels if panel["type"] != "row")
    assert queries > 20
    assert asked.stderr == f"{queries} queries, 0 without data\n"


def test_a_query_without_data_is_named(story: Watched, tmp_path: Path) -> None:
    """One letter wrong in a metric's name: the panel is named, and the exit code is 1."""
    broken = tmp_path / "dashboard.json"
    broken.write_text(DASHBOARDS[story.program].read_text().replace("process_open_fds", "process_open_fd"))
    asked = story.graphs("--ask", f"--dashboard={broken}")
    assert asked.returncode == 1
    assert asked.stdout.startswith("Open files: no data: process_open_fd{")
    assert len(asked.stdout.splitlines()) == 1


def test_pictures_are_drawn_of_the_answers(story: Watched, tmp_path: Path) -> None:
    """Each picture is an SVG with a line for each series, marks for what happened, and colours for light and dark pages."""
    done = story.graphs(f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == PICTURES[story.program]
    for path in tmp_path.iterdir():
        tree = ET.fromstring(path.read_text())
        classes = [element.get("class") or "" for element in tree.iter("{http://www.w3.org/2000/svg}path")]
        assert any(one.startswith("l c") for one in classes), path.name
        assert classes.count("k") >= 2, path.name
        assert "prefers-color-scheme:dark" in path.read_text()
        assert path.stat().st_size < 40_000
        assert (ROOT / "docs/pictures" / path.name).exists()
