"""Which points a sweep has, from which sides, and how it comes to its end."""

from collections import Counter
from itertools import islice

import pytest

from tests.chaos.sweep import Sweep, four_sides, two_sides

CALLS = {("rename", 0): 5, ("rename", 1): 2, ("rename", 2): 9, ("rename", 3): 7, ("send", 2): 1}


def test_each_side_begins_where_the_one_before_ended_and_the_last_two_leave_the_agent_running() -> None:
    """Sides 0 and 1 are those of the kept cases; 2 and 3 differ in all but the agent's own configuration."""
    sides = four_sides()
    for index, (_before, after) in enumerate(sides):
        assert after == sides[(index + 1) % 4][0]
    assert (sides[0][1], sides[1][1]) == two_sides(1)
    assert [before["config"] == after["config"] for before, after in sides] == [False, False, True, True]
    for before, after in sides:
        assert all(before[key] != after[key] for key in ("files", "units", "registries", "sandbox"))


@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_has_each_call_of_each_side_and_kind_once(seed: int) -> None:
    """Whatever the order: every number up to the last one that is reached, on all four sides."""
    sweep, reached = Sweep(("rename", "send"), seed), Counter[tuple[str, int]]()
    for point in sweep.points():
        key = point["kind"], point["side"]
        sweep.note(point, reached=point["number"] <= CALLS.get(key, 0))
        reached[key] += point["number"] <= CALLS.get(key, 0)
    assert +reached == CALLS
    assert sweep.notes == "rename 23, send 1: all of them"


def test_a_side_on_which_every_case_fails_is_given_up() -> None:
    """A case that fails before it knows whether its point was reached tells nothing; the sweep ends all the same, and says so."""
    sweep, tried = Sweep(("rename",), 1), 0
    for point in islice(sweep.points(), 1000):
        if point["side"] == 3:
            tried += 1
        else:
            sweep.note(point, reached=point["number"] <= 5)
    assert tried == 3 * 4
    assert sweep.notes == "rename 15: not all of them"
