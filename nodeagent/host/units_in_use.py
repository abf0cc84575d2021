"""Which units somebody is acting on right now, so that nobody else judges or restarts them meanwhile.

The OSC flow, the restart annotation and the health checks may want to restart the same unit at the same time. Jobs of one unit
wait for each other in the unit manager; this object is for the decision before that: a kubelet that is being replaced is
not a kubelet that has failed (contract 7.9). One object for the whole process; nothing of it outlives the process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UnitsInUse:
    """Users of units, by name."""

    def __init__(self) -> None:
        self._users: dict[str, list[str]] = {}
        self._probes: list[tuple[str, Callable[[str], bool]]] = []

    @contextmanager
    def using(self, *units: str, by: str) -> Iterator[None]:
        """Mark units for as long as the block lasts; several users may mark the same unit."""
        for unit in units:
            self._users.setdefault(unit, []).append(by)
        try:
            yield
        finally:
            for unit in units:
                users = self._users[unit]
                users.remove(by)
                if not users:
                    del self._users[unit]

    def also_used(self, by: str, handles: Callable[[str], bool]) -> None:
        """Ask a user, each time, whether it handles a unit: for work that is not bound to a block, such as jobs that go on."""
        self._probes.append((by, handles))

    def user(self, unit: str) -> str | None:
        """Return who is acting on a unit, None if nobody is."""
        if users := self._users.get(unit):
            return users[0]
        return next((by for by, handles in self._probes if handles(unit)), None)
