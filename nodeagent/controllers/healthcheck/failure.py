"""One failure from its beginning to its end: said when it begins, remedied after a while, said when it is over."""

from datetime import timedelta

from agents.core.clock import Clock
from agents.core.duration import format_duration
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.kube.events import EventType
from nodeagent.controllers.healthcheck.remedy import Refusal, Remedy
from nodeagent.host.node_events import NodeEvents

log = get_logger(__name__)

ACTION = "HealthCheck"


class Failure:
    """How long something has been failing; measured on the monotonic clock (contract 9, W42).

    Args:
        name: what is checked; also the reason of its events.
        unit: what is restarted.
        remedy: restarts it, or says why not.
        events: where it is said.
        clock: monotonic time.
        threshold: how long it fails before it is restarted.
    """

    def __init__(
        self, *, name: str, unit: str, remedy: Remedy, events: NodeEvents, clock: Clock, threshold: timedelta
    ) -> None:
        self._name = name
        self._unit = unit
        self._remedy = remedy
        self._events = events
        self._clock = clock
        self._threshold = threshold
        self._unwell = False
        self._known = False
        self._first: float | None = None
        self._blamed: float | None = None
        self._told: set[str] = set()

    def over(self) -> None:
        """Note that it answers; said if it did not before, also after a restart that mended it."""
        if self._unwell:
            log.info("Healthy again", check=self._name)
            self.say("Normal", f"{self._name} is healthy")
        self._unwell = False
        self._forget()

    def not_looked_at(self) -> None:
        """Note that it could not be asked: what nobody saw does not count against the unit, and is nothing new afterwards."""
        self._known = self._known or self._first is not None
        self._first = self._blamed = None

    async def goes_on(self, cause: AgentError, *, elsewhere: str | None = None) -> None:
        """Note that it does not answer, and restart the unit if that has lasted, and a restart can help.

        Args:
            cause: why it does not answer.
            elsewhere: what else is at fault, if so; the time until then does not count against the unit.

        Raises:
            RestartFailed: the failure is remembered.
            SystemdError: likewise.
        """
        now = self._clock.monotonic()
        self._unwell = True
        if self._first is None:
            self._first = now
            if not self._known:
                log.error("Unhealthy", check=self._name, error=cause)
                self.say("Warning", f"{self._name} is unhealthy: {cause}")
            self._known = False
        if elsewhere is not None:
            self._blamed = None
        elif self._blamed is None:
            self._blamed = now
        if now - self._first < self._threshold.total_seconds():
            return
        if elsewhere is not None:
            self._refuse(Refusal("elsewhere", elsewhere))
        elif self._blamed is not None and now - self._blamed >= self._threshold.total_seconds():
            lasting = format_duration(self._threshold)
            await self.remedy(f"{self._name} is unhealthy for more than {lasting}, restarting it: {cause}")

    async def remedy(self, why: str) -> None:
        """Restart the unit now, and say why, unless there is a reason against it, which is said once."""
        refusal = await self._remedy.refusal(self._unit)
        if refusal is not None:
            self._refuse(refusal)
            return
        log.error("Restarting", check=self._name, unit=self._unit, cause=why)
        self.say("Warning", why)
        await self._remedy.restart(self._unit)
        self._forget()

    def say(self, event_type: EventType, note: str) -> None:
        """Record an event about what is checked."""
        self._events.event(event_type, reason=self._name, action=ACTION, note=note)

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.kind not in self._told:
            self._told.add(refusal.kind)
            log.error("Unhealthy, not restarted", check=self._name, unit=self._unit, reason=refusal.text)
            self.say("Warning", f"{self._name} is unhealthy and not restarted: {refusal.text}")

    def _forget(self) -> None:
        self._first = self._blamed = None
        self._known = False
        self._told.clear()
