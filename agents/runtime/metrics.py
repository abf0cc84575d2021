"""Counters and gauges under controller-runtime's and client-go's names, so that existing dashboards keep working.

One registry for each process, made by `app.py`; there is no global one.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

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
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of what `Metrics.render` returns."""

RESULTS = ("success", "error", "requeue", "requeue_after")
"""Values of the label `result`: controller-runtime's."""

_FLOW_BUCKETS = tuple(0.01 * 3**power for power in range(12))
"""Of `flow_task_*`; gardener pkg/utils/flow/metrics.go, and twice as long for whole flows."""

_DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 180.0)


_QUEUE_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)


class Queue(Protocol):
    """What is shown of a queue."""

    def __len__(self) -> int:
        """Return how many keys are ready."""
        ...

    def processing(self) -> list[float]:
        """Return for how many seconds each key that was taken is being processed."""
        ...


class QueueMetrics:
    """What one queue does, under client-go's names; an `agents.runtime.workqueue.Observer`."""

    def __init__(self, adds: Counter, retries: Counter, waits: Histogram, works: Histogram) -> None:
        self._adds, self._retries, self._waits, self._works = adds, retries, waits, works

    def added(self) -> None:
        """Count a key that was queued."""
        self._adds.inc()

    def retried(self) -> None:
        """Count a key that is queued after a delay."""
        self._retries.inc()

    def waited(self, seconds: float) -> None:
        """Take how long a key was ready before it was taken."""
        self._waits.observe(seconds)

    def worked(self, seconds: float) -> None:
        """Take how long a key was processed."""
        self._works.observe(seconds)


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
        self._timeouts = Counter(
            "controller_runtime_reconcile_timeouts",
            "Reconciles that reached their deadline, by controller.",
            ("controller",),
            registry=self.registry,
        )
        self._workers = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Workers by controller.",
            ("controller",),
            registry=self.registry,
        )
        self._add_queues()
        self._requests = Counter(
            "rest_client_requests", "Requests to API servers.", ("method", "code"), registry=self.registry
        )
        self._watches = Counter(
            "informer_watches_opened",
            "Watches that an API server accepted, by resource: one, and one more for each time that it was opened anew.",
            ("resource",),
            registry=self.registry,
        )

    def _add_queues(self) -> None:
        registry, name = self.registry, ("name",)
        self._depth = Gauge("workqueue_depth", "Keys that are ready and wait for a worker.", name, registry=registry)
        self._adds = Counter("workqueue_adds", "Keys that were queued.", name, registry=registry)
        self._retries = Counter("workqueue_retries", "Keys that were queued after a delay.", name, registry=registry)
        self._waits = Histogram(
            "workqueue_queue_duration_seconds",
            "How long keys were ready before a worker took them.",
            name,
            buckets=_QUEUE_BUCKETS,
            registry=registry,
        )
        self._works = Histogram(
            "workqueue_work_duration_seconds",
            "How long keys were processed.",
            name,
            buckets=_QUEUE_BUCKETS,
            registry=registry,
        )
        self._unfinished = Gauge(
            "workqueue_unfinished_work_seconds",
            "For how long all keys together have been processed that are not done.",
            name,
            registry=registry,
        )
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "For how long the key has been processed that was taken first and is not done.",
            name,
            registry=registry,
        )

    def queue(self, controller: str) -> QueueMetrics:
        """Return what a controller's queue tells."""
        return QueueMetrics(
            self._adds.labels(controller),
            self._retries.labels(controller),
            self._waits.labels(controller),
            self._works.labels(controller),
        )

    def watch_controller(self, controller: str, queue: Queue, *, workers: int) -> None:
        """Show a controller from now on, its counters at zero."""
        for result in RESULTS:
            self._reconciles.labels(controller, result)
        self._errors.labels(controller)
        self._terminal_errors.labels(controller)
        self._durations.labels(controller)
        self._active.labels(controller)
        self._timeouts.labels(controller)
        self._workers.labels(controller).set(workers)
        self._depth.labels(controller).set_function(queue.__len__)
        self._unfinished.labels(controller).set_function(lambda: sum(queue.processing()))
        self._longest.labels(controller).set_function(lambda: max(queue.processing(), default=0.0))

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

    def reconcile_timed_out(self, controller: str) -> None:
        """Count a reconcile that reached its deadline."""
        self._timeouts.labels(controller).inc()

    def observe_request(self, method: str, code: str, _seconds: float) -> None:
        """Count a request to an API server; give this to a transport as `observe`."""
        self._requests.labels(method, code).inc()

    def watch_opened(self, resource: str) -> None:
        """Count a watch that an API server accepted; give this to a cache as `opened`."""
        self._watches.labels(resource).inc()

    def counts(self, name: str, documentation: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Show counters that somebody else keeps, by the value of a label; `name` is without `_total`."""
        self.registry.register(_ComputedCounts(name, documentation, label, read))

    def build_info(self, name: str, **labels: str) -> None:
        """Show what was built: a gauge that is always 1."""
        Gauge(name, "What is running; always 1.", tuple(labels), registry=self.registry).labels(**labels).set(1)

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


class _ComputedCounts(Collector):
    def __init__(self, name: str, documentation: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._read = read

    def describe(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(self._name, self._documentation, labels=(self._label,))]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (family,) = self.describe()
        for value, count in sorted(self._read().items()):
            family.add_metric((value,), count)
        yield family
