"""Random OSCs, and something that happens at a random moment of each apply."""

import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.chaos.campaign import Case
from tests.chaos.interruption import agent_pid, has_ended
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
        number: of hits, cases in which the apply had not ended; twice as many cases are drawn at most.
    """

    name: str
    stream: int = 0
    """Added to the seed, so that two campaigns draw different OSCs."""

    def __init__(self, world: World, *, seed: int, scratch: Path, number: int) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._number = number
        self._hits = 0
        self._draws = 0

    @property
    def notes(self) -> str:
        """In how many cases the apply had not ended at that moment."""
        return f"{self._hits} of {self._draws} before the OSC was applied, {self._number} asked for"

    def cases(self) -> Iterator[Case]:
        """Yield them until enough have hit; an OSC that is the one before has no apply that could be."""
        rng, previous = Random(self._seed + self.stream), None
        for drawn in sample(recipes(), 2 * self._number, self._seed + self.stream):
            recipe, moment = harmless(drawn), round(rng.random(), 4)
            if self._hits >= self._number:
                return
            if recipe != previous:
                yield Case(self.name, self._seed, {"recipe": recipe, "moment": moment})
            previous = recipe

    def run(self, case: Case) -> list[str]:
        """See how long the reference takes, publish, wait for that part of it, strike."""
        twin, recipe = self._twin, case.values["recipe"]
        self.prepare()
        length = self._seconds_of_reference(recipe)
        checksum = twin.publish(twin.subject, recipe)
        time.sleep(case.values["moment"] * length)
        struck = self.strike()
        # Afterwards, for a look takes as long as a good part of a short apply; nobody is left who could end that.
        self._hits += struck and twin.subject.applied() != checksum
        self._draws += 1
        return self.afterwards(recipe)

    def _seconds_of_reference(self, recipe: Recipe) -> float:
        """Return how long its process was certainly busy: the last look that saw that began so many seconds after the OSC was published.

        A process that ends because its own configuration changed is followed by another one only seconds later.
        """
        reference, seconds = self._twin.reference, 0.0
        pid = agent_pid(reference)
        checksum = self._twin.publish(reference, recipe)
        published = time.monotonic()
        while (begun := time.monotonic() - published) < LONGEST_APPLY_SECONDS:
            if has_ended(pid) or reference.applied() == checksum:
                break
            seconds = begun
            time.sleep(0.005)
        return seconds

    @abstractmethod
    def prepare(self) -> None:
        """Get the subject ready before the OSC is published."""

    @abstractmethod
    def strike(self) -> bool:
        """Let it happen to the subject, whose agent does not run for some seconds then; returns whether there was anything to strike."""

    @abstractmethod
    def afterwards(self, recipe: Recipe) -> list[str]:
        """Get the subject going again; returns in what it differs from the reference in the end."""
