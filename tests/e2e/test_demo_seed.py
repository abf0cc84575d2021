"""The story of `make demo-seed`, with a shorter outage."""

from tests.lab.watched import Watched


def test_every_row_of_the_seeds_story_holds(seed_story: Watched) -> None:
    """Contract core 13.1.1, 13.1.3, 13.1.4: registered, renewed, the truth on /healthz, killed, nothing refused, nothing leaked."""
    assert [row for row in seed_story.rows if not row.holds] == []
    assert len(seed_story.rows) == 20
