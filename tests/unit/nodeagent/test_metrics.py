"""What a node agent counts."""

from collections import Counter
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from agents.runtime.metrics import Metrics
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.metrics import NodeAgentMetrics
from nodeagent.version import GARDENER_VERSION, VERSION
from osc import plan
from osc.plan import Step

VERBS = {
    *("command", "configure-containerd", "disable-unit", "enable-unit", "reload", "remove-file", "remove-registry"),
    *("remove-unit", "restart-agent", "write-file", "write-registry", "write-unit"),
}


def shown(metrics: Metrics) -> dict[str, float]:
    """Return the agent's own values, by name and labels."""
    return {
        f"{sample.name}{dict(sorted(sample.labels.items())) or ''}": sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name.startswith("gardener_node_agent_") and not sample.name.endswith(("_bucket", "_created"))
    }


def test_what_is_shown() -> None:
    """Heartbeat, certificate, applies and their steps, restarts and drift; before anything happened there are only zeros."""
    metrics, ages = Metrics(), [None, 7.0]
    restarts, drift = Counter(made=0, suppressed=0), Counter(repaired=0)
    counts = NodeAgentMetrics(metrics, lease_age=lambda: ages.pop(0), restarts=lambda: restarts)
    counts.drift(lambda: drift)
    built = f"gardener_node_agent_build_info{{'gardener_version': '{GARDENER_VERSION}', 'version': '{VERSION}'}}"
    steps = {
        f"gardener_node_agent_apply_steps_total{{'result': '{result}', 'step': '{verb}'}}": 0
        for verb in VERBS
        for result in ("done", "failed", "unfinished")
    }
    assert shown(metrics) == {
        built: 1,
        **steps,
        "gardener_node_agent_apply_duration_seconds_count": 0,
        "gardener_node_agent_apply_duration_seconds_sum": 0,
        "gardener_node_agent_unit_restarts_total{'result': 'made'}": 0,
        "gardener_node_agent_unit_restarts_total{'result': 'suppressed'}": 0,
        "gardener_node_agent_drift_total{'action': 'repaired'}": 0,
    }
    counts.certificate_expires(datetime(2026, 1, 1, tzinfo=UTC))
    counts.applied(Outcome(steps=Counter({("write-file", "done"): 3, ("command", "failed"): 1})), 1.5)
    restarts["made"] += 1
    drift["repaired"] += 2
    found = shown(metrics)
    assert steps.keys() <= found.keys()
    assert sum(found[name] for name in steps) == 4
    assert found["gardener_node_agent_lease_age_seconds"] == 7
    assert found["gardener_node_agent_client_certificate_expiration_timestamp_seconds"] == 1767225600
    assert found["gardener_node_agent_apply_duration_seconds_sum"] == 1.5
    assert found["gardener_node_agent_apply_steps_total{'result': 'done', 'step': 'write-file'}"] == 3
    assert found["gardener_node_agent_apply_steps_total{'result': 'failed', 'step': 'command'}"] == 1
    assert found["gardener_node_agent_unit_restarts_total{'result': 'made'}"] == 1
    assert found["gardener_node_agent_drift_total{'action': 'repaired'}"] == 2


def test_the_number_of_series_does_not_depend_on_the_machine() -> None:
    """The label `step` is a verb of a plan, and each kind of step has one of these."""
    verbs = {
        kind.verb
        for kind in vars(plan).values()
        if isinstance(kind, type) and issubclass(kind, Step) and kind is not Step
    }
    assert verbs == VERBS
    assert plan.VERBS == VERBS
