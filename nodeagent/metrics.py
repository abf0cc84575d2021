"""What a node agent counts besides what every process of ours does; docs/metrics.md has them all."""

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import product

from prometheus_client import Counter, Histogram

from agents.runtime.metrics import Metrics
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.version import GARDENER_VERSION, VERSION
from osc.plan import VERBS

_PREFIX = "gardener_node_agent"
_RESULTS = ("done", "failed", "unfinished")
_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0)


class NodeAgentMetrics:
    """Metrics of this machine. The labels' values are fixed words of the code, never names of files or units.

    Args:
        metrics: of the process.
        lease_age: seconds since the Lease was renewed, None before the first time.
        restarts: of units on the agent's own account, by what became of them.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        lease_age: Callable[[], float | None],
        restarts: Callable[[], Mapping[str, float]],
    ) -> None:
        self._metrics = metrics
        self._expires: datetime | None = None
        metrics.build_info(f"{_PREFIX}_build_info", version=VERSION, gardener_version=GARDENER_VERSION)
        metrics.gauge(f"{_PREFIX}_lease_age_seconds", "Seconds since the Lease was renewed.", lease_age)
        metrics.gauge(
            f"{_PREFIX}_client_certificate_expiration_timestamp_seconds",
            "When the client certificate expires, in seconds since the epoch.",
            lambda: None if self._expires is None else self._expires.timestamp(),
        )
        metrics.counts(
            f"{_PREFIX}_unit_restarts",
            "Restarts on the agent's own account, for health or drift: made, or suppressed because too many were.",
            "result",
            restarts,
        )
        self._durations = Histogram(
            f"{_PREFIX}_apply_duration_seconds",
            "Duration of applies of an OperatingSystemConfig that had something to do.",
            buckets=_BUCKETS,
            registry=metrics.registry,
        )
        self._steps = Counter(
            f"{_PREFIX}_apply_steps",
            "Steps of applies by what they do, and result: done, failed or unfinished.",
            ("step", "result"),
            registry=metrics.registry,
        )
        for verb, result in product(sorted(VERBS), _RESULTS):  # a counter that begins at 1 has no increase
            self._steps.labels(verb, result)
        self._step_seconds = Counter(
            f"{_PREFIX}_apply_step_seconds",
            "How long steps of applies took by what they do: all of one kind together, each image on its own.",
            ("step",),
            registry=metrics.registry,
        )
        for verb in sorted(VERBS):
            self._step_seconds.labels(verb)

    def drift(self, found: Callable[[], Mapping[str, float]]) -> None:
        """Show what drifted, by what was done about it."""
        text = "Items that somebody else changed: repaired, left after too many repairs, or reported only."
        self._metrics.counts(f"{_PREFIX}_drift", text, "action", found)

    def applied(self, outcome: Outcome, seconds: float) -> None:
        """Count one apply."""
        self._durations.observe(seconds)
        for (verb, result), count in outcome.steps.items():
            self._steps.labels(verb, result).inc(count)
        for verb, spent in outcome.seconds.items():
            self._step_seconds.labels(verb).inc(spent)

    def certificate_expires(self, moment: datetime) -> None:
        """Note a client certificate."""
        self._expires = moment
