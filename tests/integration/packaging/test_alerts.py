"""The alerts fire when they should; Prometheus' own tool says so."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.packages import Tool, ensure_tools, program
from tests.lab.progress import to_stderr
from tests.support.documented import blocks

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "packaging/monitoring"
PROMTOOL = Tool("promtool", "prometheus", lambda: program("promtool"))


@pytest.fixture(scope="module", autouse=True)
def promtool() -> None:
    """Prometheus' tool for rules, installed if need be."""
    ensure_tools(say=to_stderr, tools=[PROMTOOL])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool beside the rules."""
    return subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, check=False, timeout=60
    )


def alerts() -> list[dict[str, Any]]:
    """Return all alerts."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_rules_are_valid_and_each_fires_for_what_it_is_about() -> None:
    """Promtool accepts the rules; the test file has a series for which each alert fires, and one for which it does not yet."""
    checked = run("check", "rules", "alerts.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run("test", "rules", "alerts_test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    cases = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == {alert["alert"] for alert in alerts()}


def test_a_rule_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    """The test of the rules can fail: with another threshold promtool says which alert is missing."""
    broken = (MONITORING / "alerts.yaml").read_text().replace("lease_age_seconds > 60", "lease_age_seconds > 6000")
    (tmp_path / "alerts.yaml").write_text(broken)
    (tmp_path / "alerts_test.yaml").write_text((MONITORING / "alerts_test.yaml").read_text())
    tested = run("test", "rules", str(tmp_path / "alerts_test.yaml"))
    assert tested.returncode != 0
    assert "NodeAgentHeartbeatOld" in tested.stdout + tested.stderr


def test_the_documented_scrape_configuration_is_one(tmp_path: Path) -> None:
    """The block of docs/monitoring.md, with the alerts beside it, is a configuration that Prometheus takes.

    Debian's Prometheus was built without Kubernetes' discovery, so there the nodes are named.
    """
    (block,) = (text for _, text in blocks(ROOT / "docs/monitoring.md", "yaml"))
    rules = f"rule_files: [{MONITORING / 'alerts.yaml'}]\n"
    discovery = "kubernetes_sd_configs: [{role: node}]"
    assert discovery in block
    named = block.replace(discovery, 'static_configs: [{targets: ["192.0.2.1:10250"]}]')
    (tmp_path / "prometheus.yml").write_text(rules + named)
    checked = run("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "12 rules found" in checked.stdout


def test_each_alert_has_a_runbook() -> None:
    """The runbook of each alert is a section of a document, and each section belongs to an alert."""
    sections = set(re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.M))
    named = {alert["annotations"]["runbook"].removeprefix("docs/runbooks.md#") for alert in alerts()}
    assert named == {section.lower() for section in sections}
