"""What a node agent counts."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agents.runtime.metrics import Metrics
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.metrics import NodeAgentMetrics
from nodeagent.version import GARDENER_VERSION, VERSION
from osc import plan
from osc.plan import Step
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import SLEEP, OscAgent, from_image, inline
from tests.support.systemd_behaviour import gate

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
    seconds = {f"gardener_node_agent_apply_step_seconds_total{{'step': '{verb}'}}": 0 for verb in VERBS}
    assert shown(metrics) == {
        built: 1,
        **steps,
        **seconds,
        "gardener_node_agent_apply_duration_seconds_count": 0,
        "gardener_node_agent_apply_duration_seconds_sum": 0,
        "gardener_node_agent_unit_restarts_total{'result': 'made'}": 0,
        "gardener_node_agent_unit_restarts_total{'result': 'suppressed'}": 0,
        "gardener_node_agent_drift_total{'action': 'repaired'}": 0,
    }
    counts.certificate_expires(datetime(2026, 1, 1, tzinfo=UTC))
    steps_done = Counter({("write-file", "done"): 3, ("command", "failed"): 1})
    counts.applied(Outcome(steps=steps_done, seconds={"write-file": 1.25}), 1.5)
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
    assert found["gardener_node_agent_apply_step_seconds_total{'step': 'write-file'}"] == 1.25
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


@dataclass
class Scraped:
    """A node agent's OSC controller with its metrics."""

    node: OscAgent

    def __post_init__(self) -> None:
        self.node.register_node()
        counts = NodeAgentMetrics(
            self.node.metrics, lease_age=lambda: 1.0, restarts=lambda: Counter(made=0, suppressed=0)
        )
        counts.drift(lambda: Counter(repaired=len(self.node.drifted)))
        self.node.applied_plan = counts.applied

    async def apply(self, items: int) -> None:
        """Apply an OSC with so many files, units and images, of which the last ones fail."""
        node = self.node
        node.images.images = {f"image-{number}": {"/f": b"x"} for number in range(1, items)}
        units = [{"name": f"unit-{number}.service", "content": SLEEP} for number in range(items)]
        node.publish(
            files=[
                *(inline(f"/etc/file-{number}", str(items)) for number in range(items)),
                *(from_image(f"/opt/image-{number}", f"image-{number}", "/f") for number in range(items)),
            ],
            units=[*units, {"name": f"masked-{items}.service", "enable": True}],
        )
        async with node.controlling():
            await asyncio.sleep(30)
        node.start_process()

    def series(self) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        """Return name and labels of each series of a scrape."""
        return {
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in text_string_to_metric_families(self.node.metrics.render().decode())
            for sample in family.samples
        }


async def test_a_scrape_has_as_many_series_for_60_items_as_for_3(tmp_path: Path, host: FakeSystemd) -> None:
    """No label's value comes from an OSC: the same series, whatever was applied and whatever failed; all values are known words."""
    scraped = Scraped(OscAgent(tmp_path, host))
    await scraped.apply(3)
    few = scraped.series()
    await scraped.apply(60)
    assert scraped.series() == few
    allowed = {
        "controller": {"operatingsystemconfig"},
        "name": {"operatingsystemconfig"},
        "step": VERBS,
        "result": {
            "success",
            "error",
            "requeue",
            "requeue_after",
            "done",
            "failed",
            "unfinished",
            "made",
            "suppressed",
        },
        "action": {"repaired"},
        "version": {VERSION},
        "gardener_version": {GARDENER_VERSION},
    }
    labels = {label for _, pairs in few for label in pairs if label[0] != "le"}
    assert {(key, value) for key, value in labels if value not in allowed.get(key, ())} == set()
    assert len(few) < 200


async def test_seconds_of_steps_are_those_that_they_took(tmp_path: Path, host: FakeSystemd) -> None:
    """A unit whose job takes 10 s is `command`, an image that takes 7 s is `write-file`; what was not to be done took nothing."""
    scraped = Scraped(OscAgent(tmp_path, host))
    node = scraped.node
    node.images.images = {"i": {"/f": b"x"}}
    node.images.blocked = asyncio.Event()
    unit = {"name": "slow.service", "content": gate("slow"), "command": "start"}
    node.publish(files=[from_image("/f", "i", "/f")], units=[unit])
    async with node.connected(), asyncio.TaskGroup() as group:
        group.create_task(node.reconcile())
        await asyncio.sleep(7.5)
        node.images.blocked.set()
    found = shown(node.metrics)
    taken = {verb: round(found[f"gardener_node_agent_apply_step_seconds_total{{'step': '{verb}'}}"]) for verb in VERBS}
    assert {verb: seconds for verb, seconds in taken.items() if seconds} == {"write-file": 7, "command": 10}


async def test_the_document_has_the_labels_of_a_scrape(tmp_path: Path, host: FakeSystemd) -> None:
    """docs/metrics.md names for each metric that is scraped exactly the labels that it has."""
    scraped = Scraped(OscAgent(tmp_path, host))
    await scraped.apply(3)
    text = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", text, re.M)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    seen: dict[str, set[str]] = {}
    for name, pairs in scraped.series():
        metric = re.sub(r"_(bucket|count|sum|created)$", "", name)
        if not name.endswith("_created") and not metric.startswith("process_"):
            seen.setdefault(metric, set()).update(key for key, _ in pairs if key != "le")
    assert {name: labels for name, labels in seen.items() if documented.get(name) != labels} == {}
    assert {"workqueue_depth", "controller_runtime_reconcile_total"} <= seen.keys()
