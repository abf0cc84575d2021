"""Random OSCs, and something that happens at a random moment of each apply."""

import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.chaos.campaign import Case
from tests.chaos.recipes import Recipe, harmless, recipes, sample
from tests.chaos.twin import TwinCampaign, World

LONGEST_APPLY_SECONDS = 2.0
"""What is longer waits for something, a unit that fails for example; it is hit in its beginning."""


class RandomMoments(TwinCampaign):
    """What happens is up to the subclass; the reference gets the same OSC and is left in peace.

    Args:
        world: shared things.
        seed: of OSCs and moments.
        scratch: folder for logs.
        number: of cases.
    """

    name: str
    stream: int = 0
    """Added to the seed, so that two campaigns draw different OSCs."""

    def __init__(self, world: World, *, seed: int, scratch: Path, number: int) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._number = number
        self._hit = 0

    @property
    def notes(self) -> str:
        """In how many cases the apply had not ended at that moment."""
        return f"{self._hit} before the OSC was applied"

    def cases(self) -> Iterator[Case]:
        """Yield them."""
        rng = Random(self._seed + self.stream)
        for recipe in sample(recipes(), self._number, self._seed + self.stream):
            yield Case(self.name, self._seed, {"recipe": harmless(recipe), "moment": round(rng.random(), 4)})

    def run(self, case: Case) -> list[str]:
        """See how long the reference takes, publish, wait for that part of it, strike."""
        twin, recipe = self._twin, case.values["recipe"]
        self.prepare()
        length = self._seconds_of_reference(recipe)
        checksum = twin.publish(twin.subject, recipe)
        time.sleep(case.values["moment"] * length)
        self._hit += twin.subject.applied() != checksum
        return self.strike(recipe)

    def _seconds_of_reference(self, recipe: Recipe) -> float:
        reference = self._twin.reference
        checksum = self._twin.publish(reference, recipe)
        published = time.monotonic()
        while reference.applied() != checksum and time.monotonic() - published < LONGEST_APPLY_SECONDS:
            time.sleep(0.005)
        return time.monotonic() - published

    @abstractmethod
    def prepare(self) -> None:
        """Get the subject ready before the OSC is published."""

    @abstractmethod
    def strike(self, recipe: Recipe) -> list[str]:
        """Let it happen to the subject; returns in what it differs from the reference in the end."""
