"""Grafana dashboards as files: their panels, and what a Prometheus answers to a panel's queries."""

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DASHBOARDS = {
    "gardener-node-agent": ROOT / "packaging/monitoring/node-agent-dashboard.json",
    "gardenlet": ROOT / "packaging/monitoring/gardenlet-dashboard.json",
}
_DEADLINE_SECONDS = 30


class NoAnswer(Exception):
    """Prometheus cannot be asked, or refuses a query; the text is one line."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line of a panel, or several: an expression with variables, and how its series are named."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel that asks something."""

    title: str
    unit: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is looked at, in seconds since the epoch, and how far apart the points are."""

    start: float
    end: float
    step: float
    rate_interval: float

    def fill(self, expression: str) -> str:
        """Return an expression with Grafana's variables filled in: this span, every job and every instance."""
        values = {
            "$__rate_interval": f"{self.rate_interval:.0f}s",
            "$__range": f"{max(self.end - self.start, 1):.0f}s",
            "$job": ".+",
            "$instance": ".+",
        }
        for name, value in values.items():
            expression = expression.replace(name, value)
        return expression


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a graph: points of time and value, without those that are no number."""

    name: str
    points: tuple[tuple[float, float], ...]


def panels(dashboard: Path) -> Iterator[Panel]:
    """Yield the panels of a dashboard that ask something."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        if panel["type"] != "row":
            queries = tuple(Query(target["expr"], target["legendFormat"]) for target in panel["targets"])
            yield Panel(panel["title"], panel["fieldConfig"]["defaults"]["unit"], queries)


def ask(prometheus: str, panel: Panel, span: Span) -> list[Series]:
    """Return what a panel shows.

    Raises:
        NoAnswer: Prometheus cannot be reached or refuses a query.
    """
    return [series for query in panel.queries for series in ask_one(prometheus, query, span)]


def ask_one(prometheus: str, query: Query, span: Span) -> list[Series]:
    """Return the series of one query that have a value; raises NoAnswer as `ask` does."""
    parameters = {"query": span.fill(query.expression), "start": span.start, "end": span.end, "step": span.step}
    url = f"{prometheus.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=_DEADLINE_SECONDS) as answer:  # noqa: S310 - whoever calls this says whom to ask
            result = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        with error:
            raise NoAnswer(f"{parameters['query']}: {error.read().decode(errors='replace')[:256]}") from error
    except (OSError, ValueError, LookupError) as error:
        raise NoAnswer(f"{prometheus}: {error}") from error
    found = (Series(_named(query.legend, one["metric"]), _numbers(one["values"])) for one in result)
    return [series for series in found if series.points]


def _numbers(values: Sequence[Sequence[float | str]]) -> tuple[tuple[float, float], ...]:
    points = ((float(moment), float(value)) for moment, value in values)
    return tuple(point for point in points if math.isfinite(point[1]))


def _named(legend: str, labels: Mapping[str, str]) -> str:
    for label, value in labels.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend
