"""Tells on our Node that the machine's clock is wrong, and when it is right again: once each."""

from datetime import timedelta

from agents.kube.server_clock import ServerClock
from nodeagent.host.node_events import NodeEvents


class ClockReport:
    """Compares what was told with what the clock knows.

    Args:
        clock: knows the API server's time.
        events: about our Node, which must be known when `tell` is called.
    """

    def __init__(self, *, clock: ServerClock, events: NodeEvents) -> None:
        self._clock = clock
        self._events = events
        self._told: timedelta | None = None

    def tell(self) -> None:
        """Send an event if there is news."""
        ahead = self._clock.ahead
        if ahead == self._told:
            return
        self._told = ahead
        if ahead is None:
            note = "The machine's clock agrees with the API server's again"
            self._events.event("Normal", reason="ClockAgrees", action="Heartbeat", note=note)
            return
        seconds = round(ahead.total_seconds())
        side = "ahead of" if seconds > 0 else "behind"
        note = (
            f"The machine's clock is {abs(seconds)} s {side} the API server's, whose time is taken for Leases and for the "
            "renewal of the certificate; check time synchronisation"
        )
        self._events.event("Warning", reason="ClockDiffers", action="Heartbeat", note=note)
