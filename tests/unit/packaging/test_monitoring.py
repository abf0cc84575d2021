"""Dashboards and alerts as files: what can be said about them without a Prometheus."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "packaging/monitoring"
DASHBOARDS = sorted(MONITORING.glob("*-dashboard.json"))
LIBRARY = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
"""Metrics of Prometheus' client library, which docs/metrics.md names as a group."""
WORDS = {
    *("sum", "max", "min", "count", "rate", "increase", "histogram_quantile", "time", "by", "le", "and", "offset"),
    *("action", "code", "controller", "gardener_version", "method", "name", "resource", "result", "step", "version"),
}
"""Functions and labels that expressions may have besides metrics."""


def known() -> set[str]:
    """Return the names of all series of docs/metrics.md."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", (ROOT / "docs/metrics.md").read_text(), re.M)
    parts = {"histogram": ("_bucket", "_count", "_sum")}
    return {name + part for name, kind in rows for part in parts.get(kind, ("",))}


def names(expression: str) -> set[str]:
    """Return the metrics of an expression: its words but for what is quoted, in brackets, or a function or label."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}', " ", expression)
    return {word for word in re.findall(r"\b[A-Za-z_]\w*", bare) if word not in WORDS}


def asking(dashboard: Path) -> Iterator[dict[str, Any]]:
    """Yield the panels that ask something."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> Iterator[tuple[str, str]]:
    """Yield all expressions of dashboards and alerts, each with where it is."""
    for dashboard in DASHBOARDS:
        for panel in asking(dashboard):
            for target in panel["targets"]:
                yield f"{dashboard.name}: {panel['title']}", target["expr"]
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alerts.yaml: {rule['alert']}", rule["expr"]


def test_metrics_are_those_of_the_documents() -> None:
    """Each metric in an expression of a dashboard or an alert is one of docs/metrics.md, or one of the client library's."""
    found = [(where, names(expression)) for where, expression in expressions()]
    assert len(found) > 60
    assert all(used for _, used in found)
    unknown = {where: used - known() - LIBRARY for where, used in found if used - known() - LIBRARY}
    assert unknown == {}


def test_a_metric_that_is_not_there_is_noticed() -> None:
    """The test above can fail: all words of an expression that are neither functions nor labels are metrics."""
    assert names('max by (le) (increase(gone_total{le="a"}[5m])) / on_time offset 15m > 3') == {"gone_total", "on_time"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_say_what_they_show(dashboard: Path) -> None:
    """Each panel has a description, a unit and the chosen data source, and asks about the chosen jobs and instances only."""
    for panel in asking(dashboard):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            selectors = re.findall(r"\w+(\{[^}]*\})", target["expr"])
            assert selectors, panel["title"]
            assert all(one.startswith('{job=~"$job", instance=~"$instance"') for one in selectors), panel["title"]
            assert target["legendFormat"] or panel["type"] in ("stat", "table"), panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_places_of_their_own(dashboard: Path) -> None:
    """Ids differ, and no two panels overlap on the grid of 24 columns."""
    panels = json.loads(dashboard.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_variables_and_links_lead_somewhere(dashboard: Path) -> None:
    """Every variable that is used is declared, and links go to documents and sections that exist."""
    text = dashboard.read_text()
    document = json.loads(text)
    declared = {variable["name"] for variable in document["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__range", "__all"} == declared
    links = re.findall(r'"url": "\$\{docs\}/([^"#]+)(?:#([^"]*))?"', text)
    assert len(links) > 10
    sections = {title.lower() for title in re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.M)}
    for target, section in links:
        assert (ROOT / "docs" / target).exists()
        assert not section or section in sections


def test_each_alert_is_beside_what_it_is_about() -> None:
    """Every runbook is linked from a panel of the program's dashboard."""
    text = "".join(dashboard.read_text() for dashboard in DASHBOARDS)
    alerts = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in (rule for group in alerts for rule in group["rules"]):
        anchor = rule["annotations"]["runbook"].partition("#")[2]
        assert f"runbooks.md#{anchor}" in text, rule["alert"]
