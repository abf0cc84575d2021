"""The points of a sweep: the N-th call of each kind while one of two OSCs replaces the other, until there are no more.

The numbers are not taken in their order but every fourth of them at a time, so that a run which is out of time has seen all
parts of an apply, and runs with other seeds have seen others.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

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
