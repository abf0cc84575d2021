"""Draws the main graphs of a dashboard as SVG, out of a Prometheus' answers; with `--ask` says which panels get none.

`make pictures` runs the lab's stories under a Prometheus and draws docs/pictures. It works with any other Prometheus that scrapes the
agents: `python scripts/draw_graphs.py gardenlet --prometheus http://localhost:9090 --minutes 60 --output /tmp/pictures`.
"""

import argparse
import sys
import time
from pathlib import Path

from dashboards import DASHBOARDS, NoAnswer, Panel, Span, ask, ask_one, panels
from line_chart import Chart, Mark

MAIN = {
    "gardener-node-agent": {
        "Age of heartbeats": "node-agent-heartbeat",
        "Steps of applies": "node-agent-steps",
        "Drift and restarts": "node-agent-drift",
        "Requests to API servers": "node-agent-requests",
    },
    "gardenlet": {
        "Age of the heartbeat": "gardenlet-heartbeat",
        "Heartbeats": "gardenlet-heartbeats",
        "Requests to API servers": "gardenlet-requests",
    },
}
"""The panels that are drawn of each program's dashboard, and the names of their pictures."""
_POINTS = 240


def main() -> int:
    """Draw or ask; returns the exit code."""
    parsed = _parser().parse_args()
    end = time.time() if parsed.end is None else parsed.end
    start = end - 60 * parsed.minutes if parsed.start is None else parsed.start
    step = max((end - start) / _POINTS, parsed.scrape_interval)
    span = Span(start, end, step, rate_interval=max(4 * parsed.scrape_interval, step))
    try:
        found = list(panels(parsed.dashboard or DASHBOARDS[parsed.program]))
        return _unanswered(parsed.prometheus, found, span) if parsed.ask else _draw(parsed, found, span)
    except NoAnswer as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _draw(parsed: argparse.Namespace, found: list[Panel], span: Span) -> int:
    parsed.output.mkdir(parents=True, exist_ok=True)
    for panel in found:
        if (name := MAIN[parsed.program].get(panel.title)) is not None:
            series = ask(parsed.prometheus, panel, span)
            if not series:
                raise NoAnswer(f"{panel.title}: no data between {span.start:.0f} and {span.end:.0f}")
            chart = Chart(panel.title, panel.unit, span.start, span.end, span.step, series, parsed.mark)
            (parsed.output / f"{name}.svg").write_text(chart.svg())
    return 0


def _unanswered(prometheus: str, found: list[Panel], span: Span) -> int:
    """Print each query without an answer; returns 1 if there is one."""
    empty = [(panel, query) for panel in found for query in panel.queries if not ask_one(prometheus, query, span)]
    for panel, query in empty:
        print(f"{panel.title}: no data: {span.fill(query.expression)}")
    print(f"{sum(len(panel.queries) for panel in found)} queries, {len(empty)} without data", file=sys.stderr)
    return 1 if empty else 0


def _mark(text: str) -> Mark:
    moment, _, label = text.partition("=")
    return Mark(float(moment), label)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=sorted(MAIN), help="whose dashboard")
    parser.add_argument("--prometheus", required=True, metavar="URL", help="whom to ask")
    parser.add_argument(
        "--ask", action="store_true", help="ask every query of the dashboard; exit code 1 if one gets no data"
    )
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"), metavar="FOLDER", help="for the pictures")
    parser.add_argument("--minutes", type=float, default=60, help="how far back, unless --start says it (60)")
    parser.add_argument("--start", type=float, metavar="SECONDS", help="since the epoch")
    parser.add_argument("--end", type=float, metavar="SECONDS", help="since the epoch; now if not given")
    parser.add_argument("--scrape-interval", type=float, default=30, metavar="SECONDS", help="of that Prometheus (30)")
    parser.add_argument(
        "--mark", type=_mark, action="append", default=[], metavar="SECONDS=LABEL", help="draw a vertical line"
    )
    parser.add_argument("--dashboard", type=Path, metavar="FILE", help="another file than packaging/monitoring's")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
