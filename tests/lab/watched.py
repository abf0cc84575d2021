"""The two stories under a Prometheus: what the dashboards' queries are asked about, and what the pictures in docs/ show."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import Gardenlet
from tests.lab.garden.story import Story
from tests.lab.progress import Say
from tests.lab.prometheus import SCRAPE_SECONDS, Prometheus
from tests.lab.scenario import MANY_FILES, Row, Scenario
from tests.lab.state import Ledger, claim

ROOT = Path(__file__).resolve().parents[2]
NODE_METRICS_PORT = 2752
_NODE_MARKS = {"OSC changed:": "OSC changed", "another change": "SIGKILL", "by hand": "file changed by hand"}
_SEED_MARKS = {
    "new certificate stored": "new certificate",
    "seed's API server stopped": "seed away",
    "garden stopped": "garden away",
    "garden started": "garden back",
}


@dataclass(slots=True)
class Watched:
    """A story and the Prometheus that watches it.

    Attributes:
        program: whose story it is.
        prometheus: asked about it.
        marks: when what happened that a picture should name, by words of a line of the story.
        rows: the story's closing table.
        start: when it began, in seconds since the epoch.
        end: when it was over.
        started: whether there is something to scrape.
        happened: moments and what they were.
    """

    program: str
    prometheus: Prometheus
    marks: Mapping[str, str]
    say: Say
    rows: list[Row] = field(default_factory=list)
    start: float = field(default_factory=time.time)
    end: float = 0.0
    started: bool = False
    happened: list[tuple[float, str]] = field(default_factory=list)

    def begin(self) -> None:
        """Let the story begin now."""
        self.start, self.started = time.time(), True

    def told(self, line: str) -> None:
        """Say a line, and remember it if it is one of those that count."""
        self.say(line)
        self.happened += [(time.time(), label) for words, label in self.marks.items() if words in line]

    def over(self, rows: list[Row]) -> "Watched":
        """Note the end, once there is something to ask about; returns itself."""
        self.prometheus.wait_scraped(self.program)
        self.rows, self.end = rows, time.time()
        return self

    def graphs(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run scripts/draw_graphs.py about this story."""
        span = [f"--start={self.start}", f"--end={self.end}", f"--scrape-interval={SCRAPE_SECONDS}"]
        marks = [f"--mark={moment}={label}" for moment, label in self.happened]
        command = [
            sys.executable,
            str(ROOT / "scripts/draw_graphs.py"),
            self.program,
            f"--prometheus={self.prometheus.url}",
        ]
        return subprocess.run(
            [*command, *span, *marks, *arguments], capture_output=True, text=True, check=False, timeout=120
        )


def watch_node(lab: Lab, agent: AgentSource, name: str, say: Say, *, linger: float = 0) -> Watched:
    """Tell the story of a machine, from before its agent runs; the machine and Prometheus stay until they are removed.

    Args:
        lab: a running lab.
        agent: the node agent.
        name: of the machine and of its pool.
        say: gets every line.
        linger: seconds to go on watching, in which somebody changes a file.
    """
    network = lab.network
    prometheus = Prometheus(
        lab.ledger, lab.ledger.directory / "prometheus", network.host_side_address, network.netns, say=say
    )
    prometheus.start()
    watched = Watched("gardener-node-agent", prometheus, _NODE_MARKS, say)

    def told(line: str) -> None:
        if not watched.started and name in lab.machines:
            watched.begin()
            prometheus.scrape(f"{lab.machine(name).address}:{NODE_METRICS_PORT}", job=watched.program)
        watched.told(line)

    scenario = Scenario(lab, agent, told, machine_name=name, pool_name=name)
    machine = scenario.run()
    if linger:
        time.sleep(linger / 2)
        machine.write(f"{MANY_FILES}/000", b"not what the OSC says\n")
        told("a file of the OSC changed by hand")
        time.sleep(linger / 2)
    return watched.over(scenario.rows)


def watch_seed(garden: Garden, folder: Path, name: str, say: Say, *, garden_away: float) -> Watched:
    """Tell the story of a seed; its gardenlet is gone afterwards, Prometheus stays until it is stopped."""
    gardenlet = Gardenlet(garden, folder, name=name)
    prometheus = Prometheus(garden.ledger, folder / "prometheus", say=say)
    prometheus.start()
    prometheus.scrape(f"127.0.0.1:{gardenlet.ports[1]}", job="gardenlet")
    gardenlet.hand_token()
    watched = Watched("gardenlet", prometheus, _SEED_MARKS, say)
    story = Story(gardenlet, watched.told, garden_away=garden_away)
    try:
        story.join()
        _reconcile_something(garden, prometheus)
        story.go_on()
    finally:
        gardenlet.close()
    return watched.over(story.rows)


def _reconcile_something(garden: Garden, prometheus: Prometheus) -> None:
    """Let a shoot's namespace come: most reconciles of so short a life are over before it is scraped twice, and have no rate."""
    prometheus.wait_scraped("gardenlet")
    labels = {"gardener.cloud/role": "shoot"}
    garden.seed.admin.create("/api/v1/namespaces", {"metadata": {"generateName": "shoot--watched--", "labels": labels}})
    rate = "sum(rate(controller_runtime_reconcile_time_seconds_count[4s])) > 0"
    wait_for(lambda: prometheus.value(rate), timeout=20, what="a rate of reconciles")


def draw_pictures(lab: Lab, *, agent: str, ledger: Ledger, output: Path, say: Say) -> int:
    """Tell both stories one after the other and draw the pictures of the documents; returns the exit code."""
    lab.up()
    try:
        drawn = _drawn(watch_node(lab, lab.agent(agent), "worker-1", say, linger=60), output, say)
    finally:
        lab.down()
    garden = Garden(ledger, say=say)
    ledger.create()
    claim(ledger)
    garden.up()
    try:
        with tempfile.TemporaryDirectory(prefix="gardenlet-") as folder:
            return drawn + _drawn(watch_seed(garden, Path(folder), "seed-1", say, garden_away=60), output, say)
    finally:
        garden.down()


def _drawn(watched: Watched, output: Path, say: Say) -> int:
    done = watched.graphs(f"--output={output}")
    if done.returncode != 0:
        raise LabError(f"no pictures of {watched.program}: {done.stderr.strip()}")
    missing = [row.what for row in watched.rows if not row.holds]
    say(f"pictures of {watched.program} are in {output}" + (f"; NOT as expected: {missing}" if missing else ""))
    return 1 if missing else 0
