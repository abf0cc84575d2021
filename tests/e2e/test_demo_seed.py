"""The story of `make demo-seed`, with a shorter outage."""

from pathlib import Path

from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import Gardenlet
from tests.lab.garden.story import Story
from tests.lab.progress import silent


def test_every_row_of_the_seeds_story_holds(garden: Garden, tmp_path: Path) -> None:
    """Contract core 13.1.1, 13.1.3, 13.1.4: registered, renewed, the truth on /healthz, killed, nothing refused, nothing leaked."""
    gardenlet = Gardenlet(garden, tmp_path)
    gardenlet.hand_token()
    story = Story(gardenlet, silent, garden_away=8)
    try:
        story.run()
    finally:
        gardenlet.close()
    assert [row for row in story.rows if not row.holds] == []
    assert len(story.rows) == 20
