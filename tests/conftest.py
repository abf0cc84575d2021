"""Levels, skips, and what all tests share."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.lab.credentials import found_in_all

LEVELS = ("unit", "integration", "machine", "e2e", "chaos", "bench")
# Tests that share what is dear or single in a checkout, by the beginning of their paths: the two stories, and the folder `build`.
GROUPS = {
    **dict.fromkeys(("e2e/test_dashboards.py", "e2e/test_demo_seed.py", "e2e/test_scenario.py"), "stories"),
    **dict.fromkeys(("integration/packaging/", "machine/gardenlet/"), "build"),
}

pytest_plugins = ["tests.lab.fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the level of its folder, quick levels first; only unit tests have no marker."""

    def level(item: pytest.Item) -> str:
        parts = Path(item.path).relative_to(item.config.rootpath / "tests").parts
        return parts[0] if parts and parts[0] in LEVELS else "unit"

    for item in items:
        if (name := level(item)) != "unit":
            item.add_marker(getattr(pytest.mark, name))
    items.sort(key=lambda item: LEVELS.index(level(item)))


class WholeFiles(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
    """Gives each of several processes whole files, or all files of a group: what they share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        groups = [group for start, group in GROUPS.items() if path.startswith(f"tests/{start}")]
        return groups[0] if groups else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    """Let it distribute the tests, with `-n 2 --dist loadscope`."""
    return WholeFiles(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that printed a credential, and in CI one that was skipped: nobody looks at skips there."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, which counts as a failure: {report.longrepr}"
    if printed := found_in_all([*report.sections, ("the failure", report.longreprtext)]):
        report.outcome = "failed"
        # In place of what was printed: it is not shown a second time.
        report.sections, report.longrepr = [], f"a credential was printed: {', '.join(printed)}"
    return report


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Say how many tests were skipped, and why."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason}")
