"""A real Prometheus, Debian's, that scrapes agents while a test or a story runs."""

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.api import wait_for
from tests.lab.controlplane import free_ports
from tests.lab.errors import LabError
from tests.lab.packages import Tool, ensure_tools, program
from tests.lab.processes import LabProcess, clean_environment, spawn
from tests.lab.progress import Say, silent
from tests.lab.state import Ledger

TOOL = Tool("prometheus", "prometheus", lambda: program("prometheus"))
SCRAPE_SECONDS = 1
_CONFIG = f"""\
global: {{scrape_interval: {SCRAPE_SECONDS}s, scrape_timeout: {SCRAPE_SECONDS}s}}
scrape_configs:
  - job_name: agents
    file_sd_configs: [{{files: [targets.json], refresh_interval: 1s}}]
"""


@dataclass(slots=True)
class Prometheus:
    """One server with an empty storage of its own; `start` starts it, the ledger's end ends it, and so does `stop`.

    Attributes:
        ledger: record of what was started.
        folder: for its configuration, its storage and its log.
        host: address under which we reach it, and under which it reaches us.
        netns: network namespace in which it runs; None for the host's.
    """

    ledger: Ledger
    folder: Path
    host: str = "127.0.0.1"
    netns: str | None = None
    say: Say = silent
    _port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: LabProcess | None = None

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://{self.host}:{self._port}"

    def start(self) -> None:
        """Start it, with nothing to scrape, and wait until it answers.

        Raises:
            LabError: it is not there and cannot be installed, or it does not start.
        """
        ensure_tools(say=self.say, tools=[TOOL])
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "prometheus.yml").write_text(_CONFIG)
        (self.folder / "targets.json").write_text("[]")
        listen = f"{'127.0.0.1' if self.netns is None else '0.0.0.0'}:{self._port}"
        argv = [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={listen}",
        ]
        log, environment = self.folder / "prometheus.log", clean_environment()
        name = f"prometheus-{self._port}"
        self._process = spawn(self.ledger, name, argv, log=log, netns=self.netns, cwd=self.folder, env=environment)
        wait_for(lambda: self._get("/-/ready") or True, timeout=20, what="Prometheus to be ready")

    def stop(self) -> None:
        """End it; what it knows is lost with its folder."""
        if self._process is not None:
            self._process.stop()

    def scrape(self, *targets: str, job: str) -> None:
        """Scrape these from now on, and nothing else; each is `host:port`."""
        written = self.folder / "targets.json.new"
        written.write_text(json.dumps([{"targets": list(targets), "labels": {"job": job}}]))
        written.rename(self.folder / "targets.json")

    def value(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now."""
        found = json.loads(self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def wait_scraped(self, job: str) -> None:
        """Wait until two scrapes of a job have succeeded: less makes no rate."""
        expression = f'sum_over_time(up{{job="{job}"}}[1h]) >= 2'
        wait_for(lambda: self.value(expression), timeout=30, what=f"two scrapes of {job}")

    def _get(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                data: bytes = answer.read()
        except urllib.error.HTTPError as error:
            with error:  # its connection is open
                raise LabError(f"Prometheus: {path}: {error.code}") from error
        return data
