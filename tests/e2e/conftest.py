"""The two stories, each told once in a run, with a Prometheus that watches."""

from collections.abc import Iterator

import pytest

from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.garden.garden import Garden
from tests.lab.progress import silent
from tests.lab.watched import Watched, watch_node, watch_seed


@pytest.fixture(scope="session")
def node_story(lab: Lab, agent: AgentSource) -> Iterator[Watched]:
    """The story of `make demo`, told to its end."""
    try:
        yield watch_node(lab, agent, "story", print)
    except Exception:
        if "story" in lab.machines:
            print(lab.machine("story").journal("gardener-node-agent.service"))
        raise
    finally:
        if "story" in lab.machines:
            with lab.removed_after(lab.machine("story")):
                pass


@pytest.fixture(scope="session")
def seed_story(garden: Garden, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The story of `make demo-seed`, told to its end, with a shorter outage."""
    watched = watch_seed(garden, tmp_path_factory.mktemp("seed"), "story", silent, garden_away=8)
    yield watched
    watched.prometheus.stop()
