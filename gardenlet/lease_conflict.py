"""Notices that somebody else renews the Lease of our Seed: a second gardenlet, without leader election or with a Lease of its own.

Both then write the Seed and everything else, and while one of them lives, nobody sees that the other one has died. The holder in the
Lease is the Seed's name, whoever beats, so it tells nothing; but each of our renewals has a time that we have chosen. A time that is
not one of ours was written by somebody else. A predecessor may do that once or twice while it stops. It is said once, in the log, as an
event and as a number; our own beat goes on as before, since to take turns in overwriting one another would help nobody.

Source: contract core 6 (the reference does not notice).
"""

from collections import deque
from collections.abc import Callable
from datetime import datetime

from prometheus_client import Counter

from agents.core.clock import Clock
from agents.core.logging import get_logger
from agents.kube.models import Lease
from agents.runtime.cache import Informer
from agents.runtime.metrics import Metrics

log = get_logger(__name__)

REASON = "LeaseConflict"
NOTE = "another gardenlet renews the Lease of this Seed: two are configured for it, stop one of them"
RENEWALS = 3
"""So many of somebody else, within `WINDOW_SECONDS`, are a conflict."""
WINDOW_SECONDS = 60.0
_REMEMBERED = 512
"""Of our own times; about a quarter of an hour, more than a watch that was silent can be behind."""


class LeaseConflict:
    """Looks at each renewal of the Lease.

    Args:
        leases: informer of the Seed's Lease, and of nothing else.
        tell: records an event about the Seed, given its reason and note.
        clock: for the window.
        metrics: where the renewals of others are counted.
    """

    def __init__(
        self, *, leases: Informer[Lease], tell: Callable[[str, str], None], clock: Clock, metrics: Metrics
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._ours: deque[datetime] = deque(maxlen=_REMEMBERED)
        self._foreign: deque[float] = deque(maxlen=RENEWALS)
        self._conflict = False
        self._total = Counter(
            "gardenlet_heartbeat_foreign_renewals",
            "Renewals of the Seed's Lease that were not this process's.",
            registry=metrics.registry,
        )
        leases.add_handler(self._changed)

    def renewing(self, moment: datetime) -> None:
        """Note the time of a renewal that is about to be sent; it may arrive even if no answer does."""
        self._ours.append(moment)

    def _changed(self, old: Lease | None, new: Lease | None, /) -> None:
        """Take a change of the Lease; what was there before our first renewal says nothing."""
        if old is None or new is None or not self._ours or old.spec.renew_time == new.spec.renew_time:
            return
        if new.spec.renew_time in self._ours:
            self._alone()
        else:
            self._not_alone(new)

    def _not_alone(self, lease: Lease) -> None:
        now = self._clock.monotonic()
        self._total.inc()
        self._foreign.append(now)
        if self._conflict or len(self._foreign) < RENEWALS or now - self._foreign[0] > WINDOW_SECONDS:
            return
        self._conflict = True
        log.error("Lease is renewed by somebody else too", lease=lease.metadata.name, problem=NOTE)
        self._tell(REASON, NOTE)

    def _alone(self) -> None:
        if self._conflict and self._clock.monotonic() - self._foreign[-1] > WINDOW_SECONDS:
            self._conflict = False
            log.info("Lease is renewed by nobody else any more")
