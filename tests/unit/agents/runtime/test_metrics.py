"""Metrics keep controller-runtime's and client-go's names."""

from agents.runtime.metrics import Metrics


def test_controller_metrics_start_at_zero() -> None:
    """Contract 1.6: `/metrics` must show reconcile totals, errors and durations for each controller name, from the start."""
    metrics = Metrics()
    metrics.watch_controller("token", lambda: 3)
    text = metrics.render().decode()
    for line in (
        'controller_runtime_reconcile_total{controller="token",result="success"} 0.0',
        'controller_runtime_reconcile_total{controller="token",result="error"} 0.0',
        'controller_runtime_reconcile_errors_total{controller="token"} 0.0',
        'controller_runtime_terminal_reconcile_errors_total{controller="token"} 0.0',
        'controller_runtime_reconcile_time_seconds_count{controller="token"} 0.0',
        'workqueue_depth{name="token"} 3.0',
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
