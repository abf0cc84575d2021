"""Tell systemd that we are alive, as long as we are: the event loop runs, and the heartbeat is not stuck.

Only where the unit asks for it (`WatchdogSec=`); Gardener's unit text does not, and stays as it is. An API server that is
away is no reason to be killed: what counts is that the heartbeat is tried, and before the first one, which needs a Node, that
the event loop runs. So it is served from the start on. Source: sd_watchdog_enabled(3).
"""

from collections.abc import Callable
from datetime import timedelta

from agents.core.logging import get_logger
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import StartupSource
from systemd.notify import Notifier

log = get_logger(__name__)

LONGEST_SILENCE = timedelta(seconds=60)
"""A heartbeat is tried every 10 s, and one try takes at most 40 s."""


def period(environment_value: str) -> timedelta | None:
    """Return how often to call, half of what systemd waits; None if it does not wait for us.

    Args:
        environment_value: `WATCHDOG_USEC`.
    """
    if not environment_value.isdigit() or not int(environment_value):
        return None
    return timedelta(microseconds=int(environment_value)) / 2


class WatchdogReconciler:
    """Calls as long as the heartbeat is alive."""

    def __init__(self, *, notifier: Notifier, every: timedelta, silence: Callable[[], float | None]) -> None:
        self._notifier = notifier
        self._every = every
        self._silence = silence
        self._quiet = False

    async def reconcile(self, request: Request) -> Result:
        """Call, or let systemd restart us."""
        silence = self._silence()
        stuck = silence is not None and silence > LONGEST_SILENCE.total_seconds()
        if not stuck:
            self._notifier.watchdog()
        elif not self._quiet:
            log.error("Heartbeat is stuck, systemd's watchdog is no longer served", silentSeconds=round(silence or 0))
        self._quiet = stuck
        return Result(requeue_after=self._every)


def new_controller(*, notifier: Notifier, every: timedelta, silence: Callable[[], float | None]) -> Controller:
    """Build the controller; `silence` returns the seconds since the heartbeat was tried last, None while there is none."""
    return Controller(
        name="watchdog",
        reconciler=Persistent(WatchdogReconciler(notifier=notifier, every=every, silence=silence)),
        sources=[StartupSource([Request("", "watchdog")])],
        max_backoff=every,
    )
