"""Pictures out of a Prometheus' answers, here recorded ones; real ones are drawn by tests/e2e/test_dashboards.py."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
START = 1_000_000


def draw(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script for gardenlet, about a hundred seconds that were scraped every 10 s."""
    command = [sys.executable, str(ROOT / "scripts/draw_graphs.py"), "gardenlet", "--scrape-interval=10"]
    span = [f"--start={START}", f"--end={START + 100}"]
    return subprocess.run([*command, *span, *arguments], capture_output=True, text=True, check=False, timeout=60)


def series(values: dict[int, str], **labels: str) -> dict[str, Any]:
    """Return a series as Prometheus answers it: values by seconds since the start."""
    return {"metric": labels, "values": [[START + second, value] for second, value in values.items()]}


@contextmanager
def answering(result: list[dict[str, Any]], status: int = 200) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """Be a Prometheus that answers every query with these series; yields its address and the queries that it got."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "success", "data": {"result": result}}).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_variables_are_filled_in(tmp_path: Path) -> None:
    """Every job and instance, the span that is drawn, and an interval of four scrapes; nothing of Grafana's is left."""
    with answering([series({0: "1"})]) as (url, asked):
        assert draw(f"--prometheus={url}", f"--output={tmp_path}").returncode == 0
    assert len(asked) == 3
    for query in asked:
        assert "$" not in query["query"][0]
        assert (query["start"], query["end"], query["step"]) == ([f"{START}.0"], [f"{START + 100}.0"], ["10.0"])
    assert any('{job=~".+", instance=~".+"}[40s]' in query["query"][0] for query in asked)


def test_lines_are_broken_where_there_was_no_answer(tmp_path: Path) -> None:
    """A missing point breaks the line; what is no number is no point; a series that is always zero is not drawn beside others."""
    values = series({0: "1", 10: "2", 20: "NaN", 40: "4", 50: "3"}, result="success")
    silent = series({0: "0", 10: "0"}, result="error")
    with answering([values, silent]) as (url, _):
        assert draw(f"--prometheus={url}", f"--output={tmp_path}").returncode == 0
    tree = ET.fromstring((tmp_path / "gardenlet-heartbeats.svg").read_text())
    lines = [path.get("d") or "" for path in tree.iter(f"{SVG}path") if (path.get("class") or "").startswith("l ")]
    line, legend = lines
    assert re.sub(r"[\d. ]", "", line) == "MLML"
    assert legend.endswith("h14")
    texts = [text.text for text in tree.iter(f"{SVG}text")]
    assert "success" in texts
    assert "error" not in texts
    assert "4/s" in texts
    assert "1:40" in texts


def test_marks_do_not_run_into_each_other(tmp_path: Path) -> None:
    """Two labels that would overlap are on two lines, one near the right end is on the left of its mark, and one outside is left out."""
    marks = [
        f"--mark={START + second}={label}"
        for second, label in ((10, "first"), (12, "second"), (99, "last"), (200, "x"))
    ]
    with answering([series({0: "1", 100: "5"}, instance="<a>")]) as (url, _):
        assert draw(f"--prometheus={url}", f"--output={tmp_path}", *marks).returncode == 0
    tree = ET.fromstring((tmp_path / "gardenlet-heartbeat.svg").read_text())
    labels = {text.text: text for text in tree.iter(f"{SVG}text")}
    assert "<a>" in labels
    assert "x" not in labels
    assert float(labels["second"].get("y") or 0) > float(labels["first"].get("y") or 0)
    assert (labels["last"].get("class"), labels["first"].get("class")) == ("n e", "n")


def test_no_answer_is_one_line(tmp_path: Path) -> None:
    """No data, a refusal, nobody there: exit code 1 and one line that says which."""
    with answering([]) as (url, _):
        empty = draw(f"--prometheus={url}", f"--output={tmp_path}")
    with answering([], status=422) as (url, _):
        refused = draw(f"--prometheus={url}", f"--output={tmp_path}")
    gone = draw(f"--prometheus={url}", f"--output={tmp_path}")
    assert [done.returncode for done in (empty, refused, gone)] == [1, 1, 1]
    assert empty.stderr == f"error: Age of the heartbeat: no data between {START} and {START + 100}\n"
    assert refused.stderr.startswith("error: time() - (gardenlet_heartbeat_last_success")
    assert gone.stderr.startswith(f"error: {url}: ")
    assert all(len(done.stderr.splitlines()) == 1 for done in (empty, refused, gone))
