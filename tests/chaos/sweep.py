"""The points of a sweep: the N-th call of each kind while one of two OSCs replaces the other, until there are no more.

The numbers are not taken in their order but every fourth of them at a time, so that a run which is out of time has seen all
parts of an apply, and runs with other seeds have seen others.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.chaos.campaign import Case
from tests.chaos.recipes import Recipe
from tests.chaos.twin import TwinCampaign, World

_STRIDE = 4


class Sweep:
    """Yields points, and is told at which of them nothing happened.

    Args:
        kinds: names of the kinds of calls.
        seed: of the order.
    """

    def __init__(self, kinds: Sequence[str], seed: int) -> None:
        self._kinds = tuple(kinds)
        self._order = Random(seed).sample(range(1, _STRIDE + 1), _STRIDE)
        self._open: set[tuple[str, int]] = set()
        self._reached = dict.fromkeys(self._kinds, 0)
        self._complete = False

    @property
    def notes(self) -> str:
        """How many calls of each kind were met in both directions, and whether these were all."""
        met = ", ".join(f"{kind} {number}" for kind, number in self._reached.items())
        return f"{met}: {'all' if self._complete else 'not all'} of them"

    def points(self) -> Iterator[Mapping[str, Any]]:
        """Yield kind, number and side: the index of the OSC that is applied, in turn as far as possible."""
        for first in self._order:
            self._open = {(kind, side) for kind in self._kinds for side in (0, 1)}
            for number in count(first, _STRIDE):
                for kind, side in ((kind, side) for kind in self._kinds for side in (0, 1)):
                    if (kind, side) in self._open:
                        yield {"side": side, "kind": kind, "number": number}
                if not self._open:
                    break
        self._complete = True

    def note(self, point: Mapping[str, Any], *, reached: bool) -> None:
        """Take note of whether an apply came to a point."""
        if reached:
            self._reached[point["kind"]] += 1
        else:
            self._open.discard((point["kind"], point["side"]))


def two_sides(own_config: int) -> tuple[Recipe, Recipe]:
    """Return two OSCs that differ in every kind of item, so that an apply in either direction has all kinds of steps."""
    unit = {"enable": None, "command": "start", "fails": False, "filePaths": ["/opt/test/a"]}
    left: Recipe = {
        "files": {
            "/opt/test/a": {"text": "one\n", "mode": 0o640},
            "/opt/test/b": {"secret": 1, "mode": None},
            "/opt/test/deep/er/c": {"image": 1, "mode": 0o755},
        },
        "units": {
            "chaos-1.service": {**unit, "content": 1, "dropIns": {"10.conf": 1}},
            "chaos-2.service": {**unit, "content": 1, "dropIns": {}},
            "os-1.service": {"dropIns": {"10.conf": 1}},
        },
        "registries": {"one.example": 1},
        "config": own_config,
    }
    right: Recipe = {
        "files": {"/opt/test/a": {"b64": "two\n", "mode": 0o600}, "/etc/of-the-os": {"text": "ours\n", "mode": 0o644}},
        "units": {
            "chaos-1.service": {**unit, "content": 2, "dropIns": {"20.conf": 2}},
            "chaos-3.service": {**unit, "content": 1, "command": "restart", "dropIns": {"10.conf": 3}},
            "os-2.service": {"dropIns": {"20.conf": 1}},
        },
        "registries": {"two.example": 2},
        "config": own_config + 1,
    }
    return left, right


class SweepCampaign(TwinCampaign):
    """A sweep over the system calls of an apply, in both directions between two OSCs."""

    name: str
    kinds: ClassVar[Mapping[str, str]]
    """Kind of call, and the names of the system calls, as strace wants them."""

    def __init__(self, world: World, *, seed: int, scratch: Path) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._sweep = Sweep(tuple(self.kinds), seed)

    @property
    def notes(self) -> str:
        """How many calls of each kind there were."""
        return self._sweep.notes

    def cases(self) -> Iterator[Case]:
        """Yield the points of the sweep."""
        yield from (Case(self.name, self._seed, point) for point in self._sweep.points())

    def sides(self, case: Case) -> tuple[Recipe, Recipe]:
        """Return where the case begins, and what is applied."""
        both = two_sides(1)
        return both[1 - case.values["side"]], both[case.values["side"]]

    def fresh_log(self) -> Path:
        """Return the file for strace, which is not there yet."""
        log = self._scratch / "strace"
        log.unlink(missing_ok=True)
        return log

    def publish(self, recipe: Recipe) -> None:
        """Give both machines an OSC."""
        self._twin.publish(self._twin.reference, recipe)
        self._twin.publish(self._twin.subject, recipe)

    def note(self, case: Case, *, reached: bool) -> None:
        """Take note of whether the apply came to the point of a case."""
        self._sweep.note(case.values, reached=reached)
