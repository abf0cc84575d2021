"""How many cases a campaign of random moments draws, and what it aims at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos import random_moments
from tests.chaos.campaign import run_campaign
from tests.chaos.random_moments import RandomMoments
from tests.chaos.recipes import Recipe

HITS = 6


class Struck(RandomMoments):
    """A campaign whose OSC is applied by the moment of each strike, or is not."""

    name = "struck"

    def __init__(self, applied: list[bool]) -> None:
        super().__init__(cast("Any", None), seed=7, scratch=Path(), number=HITS)
        self.struck = 0
        self.recipes: list[Recipe] = []
        subject = SimpleNamespace(applied=lambda: "new" if applied[self.struck - 1] else "old")
        twin: Any = SimpleNamespace(subject=subject, reference=None, publish=lambda _worker, _recipe: "new")
        twin.close = lambda: None
        self._made = twin

    def _seconds_of_reference(self, recipe: Recipe) -> float:
        self.recipes.append(recipe)
        return 0.0

    def prepare(self) -> None:
        """Nothing."""

    def strike(self) -> bool:
        """Count; the third time nobody is there any more."""
        self.struck += 1
        return self.struck != 3

    def afterwards(self, recipe: Recipe) -> list[str]:
        """All is well."""
        assert recipe == self.recipes[-1]
        return []


@pytest.mark.parametrize(
    ("applied", "drawn", "notes"),
    [
        ([False] * 20, 7, "6 of 7 before the OSC was applied, 6 asked for"),
        ([False, True, False, False] * 5, 9, "6 of 9 before the OSC was applied, 6 asked for"),
        ([True] * 20, 11, "0 of 11 before the OSC was applied, 6 asked for"),
    ],
)
def test_cases_are_drawn_until_so_many_have_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: list[bool], drawn: int, notes: str
) -> None:
    """A case whose OSC was applied already, or that met nobody, does not count; the same OSC twice is no case; it ends at twice as many."""
    monkeypatch.setattr(random_moments, "sample", some)
    campaign = Struck(applied)
    tally = run_campaign(campaign, campaign.cases(), deadline=float("inf"), failures=tmp_path, say=print)
    assert (tally.passed, tally.notes) == (drawn, notes)
    assert [recipe["config"] for recipe in campaign.recipes] == [*range(5), *range(6, 12)][:drawn]


def some(_strategy: object, number: int, _seed: int) -> list[Recipe]:
    """Return OSCs of which the fifth comes twice."""
    return [{"units": {}, "config": 4 if index == 5 else index} for index in range(number)]
