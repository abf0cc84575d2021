"""The contract between a controller and what it runs: a key goes in, a result or an error comes out.

A reconcile is level-based. It gets a key and not an event, reads the state as it is now and brings the world closer to what is
desired. It may be called again at any time with the same key, so a repetition must do no harm.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from agents.core.errors import AgentError, RetriableError, TerminalError


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """Key of the object to reconcile; the namespace is empty for objects that have none."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a successful reconcile wants next: nothing, or to be called again after a while."""

    requeue_after: timedelta | None = None


class RequeueAfter(AgentError):
    """Nothing is wrong, but somebody else has to move first: look again after a while.

    Logged, and the key comes back after that time; it counts neither as a failure nor for the back-off.

    Args:
        cause: why, for the log.
        after: how long.
    """

    def __init__(self, cause: str, *, after: timedelta, **fields: object) -> None:
        super().__init__(cause, **fields)
        self.after = after


class Reconciler(Protocol):
    """One pass over one key.

    An error that is raised means: try again after a back-off. A `TerminalError` means: the same input cannot succeed, wait for
    new input; a `RequeueAfter` means: not yet; a `FatalError` ends the process.
    """

    async def reconcile(self, request: Request) -> Result:
        """Bring the object behind the key closer to its desired state."""
        ...


class RefusedForNow(RetriableError):
    """Something was refused for good, but the same key is worth another attempt later."""


class Persistent:
    """A reconciler whose keys nobody brings again: what is terminal elsewhere is tried again with the back-off.

    A 422 from somebody's admission webhook must not end a heartbeat.

    Args:
        reconciler: does the work.
        final: errors that stay terminal, because their new input is watched.
    """

    def __init__(self, reconciler: Reconciler, *, final: tuple[type[TerminalError], ...] = ()) -> None:
        self._reconciler = reconciler
        self._final = final

    async def reconcile(self, request: Request) -> Result:
        """Reconcile, and turn a terminal error into a retriable one."""
        try:
            return await self._reconciler.reconcile(request)
        except self._final:
            raise
        except TerminalError as error:
            raise RefusedForNow("refused, trying again", cause=str(error)) from error
