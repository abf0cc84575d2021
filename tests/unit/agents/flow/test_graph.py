"""What a graph accepts, and what it makes of groups."""

import pytest

from agents.core.errors import FatalError
from agents.flow.graph import Graph, Group, Task


async def nothing() -> None:
    """Do nothing."""


def task(name: str, *dependencies: str, skip: bool = False) -> Task:
    """Return a task that does nothing."""
    return Task(name, nothing, skip=skip, dependencies=frozenset(dependencies))


def test_add_returns_the_id() -> None:
    """Contract controllers 2.9: a task's id is its name."""
    assert Graph("flow").add(task("a")) == "a"


def test_mistakes_in_a_graph_are_fatal() -> None:
    """Contract controllers 2.9: an id that is there, and a dependency that is not, are programming errors."""
    graph = Graph("flow")
    graph.add(task("a"))
    with pytest.raises(FatalError, match="exists already"):
        graph.add(task("a"))
    with pytest.raises(FatalError, match="does not exist"):
        graph.add(task("b", "a", "c"))
    assert list(graph.compile().tasks) == ["a"]


def test_a_cycle_cannot_be_written_down() -> None:
    """Contract controllers 2.9: the order of definition is topological, so a task cannot wait for itself or a later one."""
    graph = Graph("flow")
    with pytest.raises(FatalError, match="does not exist"):
        graph.add(task("a", "a"))
    with pytest.raises(FatalError, match="does not exist"):
        graph.add(task("a", "b"))


def test_what_is_added_after_compile_is_not_part_of_the_flow() -> None:
    """A compiled flow does not change any more."""
    graph = Graph("flow")
    graph.add(task("a"))
    flow = graph.compile()
    graph.add(task("b", "a"))
    assert list(flow.tasks) == ["a"]
    assert flow.dependents == {"a": ()}


def test_group_is_flattened() -> None:
    """Contract controllers 2.9: a group's dependencies and skip go to each of its tasks, its id means all of them."""
    graph = Graph("flow")
    graph.add(task("first"))
    ids = graph.add_group(
        Group("group", (task("a"), task("b", "a"), task("c", skip=True)), dependencies=frozenset({"first"}))
    )
    graph.add(task("last", "group"))
    tasks = graph.compile().tasks
    assert ids == {"a", "b", "c"}
    assert {name: set(found.dependencies) for name, found in tasks.items()} == {
        "first": set(),
        "a": {"first"},
        "b": {"a", "first"},
        "c": {"first"},
        "last": {"a", "b", "c"},
    }
    assert [name for name, found in tasks.items() if found.skip] == ["c"]


def test_skipped_group_skips_its_tasks() -> None:
    """Contract controllers 2.9: skip of a group is or-ed with that of its tasks."""
    graph = Graph("flow")
    graph.add_group(Group("group", (task("a"), task("b", skip=True)), skip=True))
    assert all(found.skip for found in graph.compile().tasks.values())


def test_group_under_an_alias() -> None:
    """Contract controllers 2.9: added under another id, a group's tasks are named after that, also among themselves."""
    graph = Graph("flow")
    group = Group("group", (task("a"), task("b", "a")))
    graph.add_group(group)
    ids = graph.add_group(group.named("again"))
    graph.add_group(Group("end", (task("z"),), dependencies=frozenset({"again"})))
    tasks = graph.compile().tasks
    assert ids == {"again: a", "again: b"}
    assert tasks["again: b"].dependencies == {"again: a"}
    assert tasks["z"].dependencies == ids


def test_mistakes_in_groups_are_fatal() -> None:
    """Contract controllers 2.9: names are unique in a group, and in the graph for groups and tasks together."""
    with pytest.raises(FatalError):
        Group("group", (task("a"), task("a")))
    graph = Graph("flow")
    graph.add_group(Group("group", (task("a"),)))
    for mistake in (Group("group"), Group("a"), Group("other", (task("a"),))):
        with pytest.raises(FatalError):
            graph.add_group(mistake)
    with pytest.raises(FatalError):
        graph.add(task("group"))
