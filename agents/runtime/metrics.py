"""Counters and gauges under controller-runtime's and client-go's names, so that existing dashboards keep working.

One registry for each process, made by `app.py`; there is no global one.
"""

from collections.abc import Callable, Iterator

from agents.core.imports import left_out, replaced

# It brings HTTP servers of its own, half a MB; ours is agents.runtime.server.
with replaced(left_out("http.server", "socketserver", "wsgiref", "wsgiref.simple_server")):
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        ProcessCollector,
        generate_latest,
    )
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of what `Metrics.render` returns."""

RESULTS = ("success", "error", "requeue", "requeue_after")
"""Values of the label `result`: controller-runtime's."""

_FLOW_BUCKETS = tuple(0.01 * 3**power for power in range(12))
"""Of `flow_task_*`; gardener pkg/utils/flow/metrics.go, and twice as long for whole flows."""

_DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 180.0)


class Metrics:
    """What this process counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._reconciles = Counter(
            "controller_runtime_reconcile",
            "Reconciles by controller and result.",
            ("controller", "result"),
            registry=self.registry,
        )
        self._errors = Counter(
            "controller_runtime_reconcile_errors",
            "Failed reconciles by controller.",
            ("controller",),
            registry=self.registry,
        )
        self._terminal_errors = Counter(
            "controller_runtime_terminal_reconcile_errors",
            "Reconciles that failed in a way that only new input can change, by controller.",
            ("controller",),
            registry=self.registry,
        )
        self._durations = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of reconciles by controller.",
            ("controller",),
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._active = Gauge(
            "controller_runtime_active_workers",
            "Workers that are reconciling, by controller.",
            ("controller",),
            registry=self.registry,
        )
        self._depth = Gauge(
            "workqueue_depth", "Keys that are ready and wait for a worker.", ("name",), registry=self.registry
        )
        self._requests = Counter(
            "rest_client_requests", "Requests to API servers.", ("method", "code"), registry=self.registry
        )

    def watch_controller(self, controller: str, depth: Callable[[], int]) -> None:
        """Show a controller from now on, its counters at zero."""
        for result in RESULTS:
            self._reconciles.labels(controller, result)
        self._errors.labels(controller)
        self._terminal_errors.labels(controller)
        self._durations.labels(controller)
        self._active.labels(controller)
        self._depth.labels(controller).set_function(depth)

    def reconcile_started(self, controller: str) -> None:
        """Count a busy worker."""
        self._active.labels(controller).inc()

    def reconcile_ended(self, controller: str, result: str, seconds: float, *, terminal: bool = False) -> None:
        """Count a reconcile; `result` is one of RESULTS."""
        self._active.labels(controller).dec()
        self._reconciles.labels(controller, result).inc()
        self._durations.labels(controller).observe(seconds)
        if result == "error":
            self._errors.labels(controller).inc()
        if terminal:
            self._terminal_errors.labels(controller).inc()

    def observe_request(self, method: str, code: str, _seconds: float) -> None:
        """Count a request to an API server; give this to a transport as `observe`."""
        self._requests.labels(method, code).inc()

    def gauge(self, name: str, documentation: str, read: Callable[[], float | None]) -> None:
        """Show a value that is computed when it is asked for; None leaves it out."""
        self.registry.register(_Computed(name, documentation, read))

    def render(self) -> bytes:
        """Return all values in Prometheus' text format."""
        return generate_latest(self.registry)


class FlowMetrics:
    """What flows do, under Gardener's names; an `agents.flow.execution.Observer`."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self._delays = Histogram(
            "flow_task_delay_seconds",
            "Delay until invocation of a flow task.",
            ("flow", "task_id", "skipped"),
            buckets=_FLOW_BUCKETS,
            registry=registry,
        )
        self._durations = Histogram(
            "flow_task_duration_seconds",
            "Duration of a flow task.",
            ("flow", "task_id"),
            buckets=_FLOW_BUCKETS,
            registry=registry,
        )
        self._results = Counter(
            "flow_task_results", "Ended flow tasks by result.", ("flow", "task_id", "result"), registry=registry
        )
        self._flows = Histogram(
            "flow_duration_seconds",
            "Total duration of a flow.",
            ("flow",),
            buckets=tuple(2 * bound for bound in _FLOW_BUCKETS),
            registry=registry,
        )

    def task_ended(self, flow: str, task: str, *, delay: float, duration: float | None, failed: bool) -> None:
        """Count a task; one that was skipped has no duration, and counts as a success."""
        self._delays.labels(flow, task, "true" if duration is None else "false").observe(delay)
        if duration is not None:
            self._durations.labels(flow, task).observe(duration)
        self._results.labels(flow, task, "error" if failed else "success").inc()

    def flow_ended(self, flow: str, seconds: float) -> None:
        """Count a flow."""
        self._flows.labels(flow).observe(seconds)


class _Computed(Collector):
    def __init__(self, name: str, documentation: str, read: Callable[[], float | None]) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read

    def describe(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily(self._name, self._documentation)]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        value = self._read()
        if value is not None:
            yield GaugeMetricFamily(self._name, self._documentation, value=value)
