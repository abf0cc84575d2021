"""The contract between a controller and what it runs: a key goes in, a result or an error comes out.

A reconcile is level-based. It gets a key and not an event, reads the state as it is now and brings the world closer to what is
desired. It may be called again at any time with the same key, so a repetition must do no harm.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """Key of the object to reconcile; the namespace is empty for objects that have none."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a successful reconcile wants next: nothing, or to be called again after a while."""

    requeue_after: timedelta | None = None


class Reconciler(Protocol):
    """One pass over one key.

    An error that is raised means: try again after a back-off. A `TerminalError` means: the same input cannot succeed, wait for
    new input; a `FatalError` ends the process.
    """

    async def reconcile(self, request: Request) -> Result:
        """Bring the object behind the key closer to its desired state."""
        ...
