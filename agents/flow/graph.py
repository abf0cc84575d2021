"""Tasks and what they wait for.

A task can only depend on tasks that are there already. So the order of definition is a valid order of execution, and a cycle cannot
be written down: what would close it is a dependency on a task that is not there yet, which is refused. Mistakes in a graph are
mistakes of a programmer and end the process (`FatalError`), in the first test that builds the graph.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from agents.core.errors import FatalError

Body = Callable[[], Awaitable[None]]
"""What a task does; returning is success, an exception is its error."""


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work."""

    name: str
    """Its id, and what an operator reads while it runs."""
    run: Body
    skip: bool = False
    """Not to be run this time; what depends on it does not wait for it, only for what it would have waited for."""
    dependencies: frozenset[str] = frozenset()
    """Ids of tasks, or of groups, which mean all their tasks."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks that are added together.

    Added under another id than its own (`alias`), the names of its tasks get that id in front, so a group can be added more than
    once.
    """

    name: str
    tasks: tuple[Task, ...] = ()
    skip: bool = False
    """Skips every task of the group."""
    dependencies: frozenset[str] = frozenset()
    """Every task of the group waits for these, too."""
    alias: str = ""

    def __post_init__(self) -> None:
        """Refuse two tasks with the same name."""
        names = [task.name for task in self.tasks]
        for name in names:
            if names.count(name) > 1:
                raise FatalError("task is in its group twice", group=self.name, task=name)

    def named(self, alias: str) -> Self:
        """Return this group under another id."""
        return replace(self, alias=alias)

    @property
    def id(self) -> str:
        """Return what others depend on."""
        return self.alias or self.name

    def flattened(self) -> Iterable[Task]:
        """Yield the tasks as they go into a graph."""
        own = {task.name: task.name if self.id == self.name else f"{self.id}: {task.name}" for task in self.tasks}
        for task in self.tasks:
            dependencies = frozenset(own.get(name, name) for name in task.dependencies)
            yield replace(
                task,
                name=own[task.name],
                skip=task.skip or self.skip,
                dependencies=dependencies | self.dependencies,
            )


@dataclass(frozen=True, slots=True)
class Flow:
    """A graph that is complete: its tasks in order of definition, and who waits for whom."""

    name: str
    tasks: Mapping[str, Task]
    dependents: Mapping[str, tuple[str, ...]] = field(repr=False)
    """In order of definition."""


class Graph:
    """Collects tasks.

    Args:
        name: of the flow, as an operator reads it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: dict[str, Task] = {}
        self._groups: dict[str, frozenset[str]] = {}

    def add(self, task: Task) -> str:
        """Add a task.

        Returns:
            Its id.

        Raises:
            FatalError: the id is taken, or it depends on something that has not been added.
        """
        if task.name in self._tasks or task.name in self._groups:
            raise FatalError("task exists already", flow=self.name, task=task.name)
        self._tasks[task.name] = replace(task, dependencies=self._resolved(task.name, task.dependencies))
        return task.name

    def add_group(self, group: Group) -> frozenset[str]:
        """Add all tasks of a group.

        Returns:
            Their ids; the group's own id means the same.

        Raises:
            FatalError: as for `add`, or the group's id is taken.
        """
        if group.id in self._groups or group.id in self._tasks:
            raise FatalError("task exists already", flow=self.name, task=group.id)
        self._groups[group.id] = frozenset(self.add(task) for task in group.flattened())
        return self._groups[group.id]

    def compile(self) -> Flow:
        """Return the flow; what is added later is not part of it."""
        dependents: dict[str, list[str]] = {name: [] for name in self._tasks}
        for name, task in self._tasks.items():
            for dependency in task.dependencies:
                dependents[dependency].append(name)
        return Flow(
            self.name,
            MappingProxyType(dict(self._tasks)),
            MappingProxyType({name: tuple(waiting) for name, waiting in dependents.items()}),
        )

    def _resolved(self, task: str, dependencies: Iterable[str]) -> frozenset[str]:
        resolved: set[str] = set()
        for dependency in dependencies:
            if dependency in self._groups:
                resolved |= self._groups[dependency]
            elif dependency in self._tasks:
                resolved.add(dependency)
            else:
                raise FatalError("dependency does not exist (yet)", flow=self.name, task=task, dependency=dependency)
        return frozenset(resolved)
