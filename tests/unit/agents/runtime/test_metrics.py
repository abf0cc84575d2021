"""Metrics keep controller-runtime's and client-go's names."""

import asyncio
from random import Random

from agents.runtime.metrics import Metrics
from agents.runtime.workqueue import WorkQueue


class Idle:
    """A queue with three keys of which two are in work."""

    def __len__(self) -> int:
        """Return how many are ready."""
        return 3

    def processing(self) -> list[float]:
        """Return for how long."""
        return [1.0, 4.0]


def test_controller_metrics_start_at_zero() -> None:
    """Contract 1.6: `/metrics` must show reconcile totals, errors and durations for each controller name, from the start."""
    metrics = Metrics()
    metrics.queue("token")
    metrics.watch_controller("token", Idle(), workers=5)
    text = metrics.render().decode()
    for line in (
        'controller_runtime_reconcile_total{controller="token",result="success"} 0.0',
        'controller_runtime_reconcile_total{controller="token",result="error"} 0.0',
        'controller_runtime_reconcile_errors_total{controller="token"} 0.0',
        'controller_runtime_terminal_reconcile_errors_total{controller="token"} 0.0',
        'controller_runtime_reconcile_time_seconds_count{controller="token"} 0.0',
        'controller_runtime_reconcile_timeouts_total{controller="token"} 0.0',
        'controller_runtime_max_concurrent_reconciles{controller="token"} 5.0',
        'workqueue_depth{name="token"} 3.0',
        'workqueue_adds_total{name="token"} 0.0',
        'workqueue_retries_total{name="token"} 0.0',
        'workqueue_queue_duration_seconds_count{name="token"} 0.0',
        'workqueue_work_duration_seconds_count{name="token"} 0.0',
        'workqueue_unfinished_work_seconds{name="token"} 5.0',
        'workqueue_longest_running_processor_seconds{name="token"} 4.0',
    ):
        assert line in text


def test_reconciles_are_counted() -> None:
    """Results, errors, durations and busy workers are counted by controller."""
    metrics = Metrics()
    metrics.reconcile_started("token")
    metrics.reconcile_started("token")
    metrics.reconcile_ended("token", "error", 2.0, terminal=True)
    text = metrics.render().decode()
    assert 'controller_runtime_reconcile_total{controller="token",result="error"} 1.0' in text
    assert 'controller_runtime_reconcile_errors_total{controller="token"} 1.0' in text
    assert 'controller_runtime_terminal_reconcile_errors_total{controller="token"} 1.0' in text
    assert 'controller_runtime_reconcile_time_seconds_sum{controller="token"} 2.0' in text
    assert 'controller_runtime_active_workers{controller="token"} 1.0' in text


def test_requests_are_counted() -> None:
    """Requests are counted by method and status, those without an answer, too."""
    metrics = Metrics()
    metrics.observe_request("GET", "200", 0.1)
    metrics.observe_request("GET", "<error>", 3.0)
    text = metrics.render().decode()
    assert 'rest_client_requests_total{code="200",method="GET"} 1.0' in text
    assert 'rest_client_requests_total{code="<error>",method="GET"} 1.0' in text


def test_gauge_is_computed_when_asked() -> None:
    """A further gauge has the value that is read at the time of the scrape; without a value it is left out."""
    metrics = Metrics()
    values: list[float | None] = [1.5, None]
    metrics.gauge("lease_age_seconds", "Age of the last renewal.", lambda: values.pop(0))
    assert b"lease_age_seconds 1.5" in metrics.render()
    assert b"lease_age_seconds " not in metrics.render().replace(b"# HELP", b"").replace(b"# TYPE", b"")


def test_process_metrics_are_there() -> None:
    """Memory and file descriptors of the process are shown, as by any Go program."""
    assert b"process_resident_memory_bytes" in Metrics().render()


async def test_a_queue_is_measured() -> None:
    """Contract core 1.6: what was queued, what waits for its time, how long keys were ready and how long they were in work."""
    metrics = Metrics()
    queue: WorkQueue[str] = WorkQueue(rng=Random(1), observer=metrics.queue("q"))
    metrics.watch_controller("q", queue, workers=1)
    queue.add("a")
    queue.add("a")
    await asyncio.sleep(2)
    key = await queue.get()
    await asyncio.sleep(3)
    text = metrics.render().decode()
    assert 'workqueue_longest_running_processor_seconds{name="q"} 3.0' in text
    queue.done(key)
    queue.add_rate_limited(key)
    text = metrics.render().decode()
    for line in (
        'workqueue_adds_total{name="q"} 1.0',
        'workqueue_retries_total{name="q"} 1.0',
        'workqueue_queue_duration_seconds_sum{name="q"} 2.0',
        'workqueue_work_duration_seconds_sum{name="q"} 3.0',
        'workqueue_unfinished_work_seconds{name="q"} 0.0',
    ):
        assert line in text
    queue.shut_down()


def test_counts_of_somebody_else() -> None:
    """Counters that are kept elsewhere are read when they are asked for; what was built is a gauge of 1."""
    metrics = Metrics()
    totals = {"made": 1}
    metrics.counts("restarts", "Restarts.", "result", lambda: totals)
    metrics.build_info("build_info", version="v1")
    totals["made"] = 2
    text = metrics.render().decode()
    assert 'restarts_total{result="made"} 2.0' in text
    assert 'build_info{version="v1"} 1.0' in text


def test_watches_are_counted() -> None:
    """Each watch that was opened counts, by the kind."""
    metrics = Metrics()
    metrics.watch_opened("nodes")
    metrics.watch_opened("nodes")
    assert 'informer_watches_opened_total{resource="nodes"} 2.0' in metrics.render().decode()
