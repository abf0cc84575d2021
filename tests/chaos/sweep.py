"""The points of a sweep: the N-th call of each kind while one of two OSCs replaces the other, until there are no more.

That is done from four sides. On the first two the agent's own configuration changes, so that the process which is watched ends in
the middle of the plan, and another one does the rest: unit commands, removals, the report. On the other two it stays, and one process does it all.

The numbers are not taken in their order but every fourth of them at a time, so that a run which is out of time has seen all
parts of an apply, and runs with other seeds have seen others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.chaos.campaign import Case
from tests.chaos.interruption import injected, wait_ready
from tests.chaos.recipes import PROBED, Recipe
from tests.chaos.twin import TwinCampaign, World

_STRIDE = 4
_SIDES = range(4)
_MOST_SILENT = 3
"""Cases of a kind and side one after another that failed before they could tell whether their point was reached."""


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
        self._silent: Counter[tuple[str, int]] = Counter()
        self._reached = dict.fromkeys(self._kinds, 0)
        self._complete = False

    @property
    def notes(self) -> str:
        """How many calls of each kind were met on all sides together, and whether these were all."""
        met = ", ".join(f"{kind} {number}" for kind, number in self._reached.items())
        return f"{met}: {'all' if self._complete else 'not all'} of them"

    def points(self) -> Iterator[Mapping[str, Any]]:
        """Yield kind, number and side (index into `four_sides`), in turn as far as possible.

        A side that only fails is given up: nobody would ever tell that it has no more calls of a kind.
        """
        every, given_up = tuple(product(self._kinds, _SIDES)), False
        for first in self._order:
            self._open = set(every)
            for number in count(first, _STRIDE):
                for kind, side in (key for key in every if key in self._open):
                    self._silent[kind, side] += 1
                    yield {"side": side, "kind": kind, "number": number}
                    if self._silent[kind, side] == _MOST_SILENT:
                        self._open.discard((kind, side))
                        self._silent[kind, side], given_up = 0, True
                if not self._open:
                    break
        self._complete = not given_up

    def note(self, point: Mapping[str, Any], *, reached: bool) -> None:
        """Take note of whether an apply came to a point."""
        self._silent[point["kind"], point["side"]] = 0
        if reached:
            self._reached[point["kind"]] += 1
        else:
            self._open.discard((point["kind"], point["side"]))


def two_sides(own_config: int) -> tuple[Recipe, Recipe]:
    """Return two OSCs that differ in every kind of item, so that the two directions together have all kinds of steps."""
    unit = {"enable": None, "command": "start", "fails": False, "filePaths": ["/opt/test/a"]}
    stopped = {"enable": False, "command": "stop", "fails": False, "filePaths": []}
    left: Recipe = {
        "files": {
            "/opt/test/a": {"text": "one\n", "mode": 0o640},
            "/opt/test/b": {"secret": 1, "mode": None},
            "/opt/test/deep/er/c": {"image": 1, "mode": 0o755},
            "/etc/systemd/system/os-1.service.d/50-file.conf": {"text": "[Unit]\n# 1\n", "mode": None},
        },
        "units": {
            "chaos-1.service": {**unit, "content": 1, "dropIns": {"10.conf": 1}},
            "chaos-2.service": {**unit, "content": 1, "dropIns": {"10.conf": 2}, "filePaths": ["/opt/test/b"]},
            "chaos-3.service": {**stopped, "content": 1, "dropIns": {}},
            "os-1.service": {"dropIns": {"10.conf": 1}},
        },
        "registries": {"one.example": 1},
        "sandbox": 1,
        "config": own_config,
    }
    right: Recipe = {
        "files": {"/opt/test/a": {"b64": "two\n", "mode": 0o600}, "/etc/of-the-os": {"text": "ours\n", "mode": 0o644}},
        "units": {
            "chaos-1.service": {**unit, "content": 2, "dropIns": {"20.conf": 2}},
            "chaos-3.service": {**unit, "content": 1, "command": "restart", "dropIns": {"10.conf": 3}},
            "os-2.service": {"dropIns": {"20.conf": 1}},
        },
        "registries": {"two.example": PROBED},
        "sandbox": 2,
        "config": own_config + 1,
    }
    return left, right


def four_sides() -> tuple[tuple[Recipe, Recipe], ...]:
    """Return where each side begins and what is applied then; each begins where the one before it ends, and the first where the last does."""
    left, right = two_sides(1)
    without_restart = {**left, "config": right["config"]}
    return (right, left), (left, right), (right, without_restart), (without_restart, right)


class SweepCampaign(TwinCampaign):
    """A sweep over the system calls of an apply, from four sides."""

    name: str
    remembers = True
    kinds: ClassVar[Mapping[str, Sequence[str]]]
    """Kind of call, and the names of the system calls."""

    def __init__(self, world: World, *, seed: int, scratch: Path) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._sweep = Sweep(tuple(self.kinds), seed)
        self._at: Recipe | None = None
        """What both have, if they are known to be equal."""

    @property
    def notes(self) -> str:
        """How many calls of each kind there were."""
        return self._sweep.notes

    def cases(self) -> Iterator[Case]:
        """Yield the points of the sweep."""
        yield from (Case(self.name, self._seed, point) for point in self._sweep.points())

    def sides(self, case: Case) -> tuple[Recipe, Recipe]:
        """Return where the case begins, and what is applied."""
        return four_sides()[case.values["side"]]

    @contextmanager
    def injected(self, case: Case, pid: int, *, error: str = "") -> Iterator[Path]:
        """Have something happen at the point of a case; yields the tracer's log. A kept case may count calls with one file only (`path`)."""
        values, log = case.values, self._scratch / "tracer"
        calls, path = self.kinds[values["kind"]], values.get("path", "")
        with injected(pid, calls, log, when=values["number"], error=error, path=path):
            yield log

    def recover(self) -> None:
        """Begin again with fresh machines."""
        super().recover()
        self._at = None

    def begin(self, recipe: Recipe) -> None:
        """See to it that this is where both begin, and the agent runs."""
        if self._at != recipe:
            self._twin.start_from(recipe)
        self._at = None
        wait_ready(self._twin.subject)

    def end(self, problems: Sequence[str], *, at: Recipe) -> list[str]:
        """Take note of where a case has brought both; returns what is wrong."""
        self._at = None if problems else at
        return list(problems)

    def note(self, case: Case, *, reached: bool) -> list[str]:
        """Take note of whether the apply came to the point of a case; returns what is wrong with a kept one that it did not come to."""
        if "path" not in case.values:
            self._sweep.note(case.values, reached=reached)
        elif not reached:
            return [f"there was no such call: {dict(case.values)}"]
        return []
