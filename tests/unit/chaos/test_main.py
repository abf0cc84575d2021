"""What `python -m tests.chaos` tries before all else, and what it says in the end."""

from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.__main__ import DAY, REGRESSIONS, SHORT, campaigns, kept_first, last_lines, repeat, run
from tests.chaos.campaign import Case, Tally
from tests.chaos.day import VirtualDay
from tests.lab.errors import LabError


def test_every_kept_case_is_run_also_those_of_the_full_run_alone() -> None:
    """All of tests/chaos/regressions, one of them of a campaign that the short run has not."""
    kept = [Case.load(path) for path in sorted(REGRESSIONS.glob("*.json"))]
    found = kept_first(kept, [])
    assert sorted(case.campaign for cases in found.values() for case in cases) == sorted(case.campaign for case in kept)
    assert "writes" in found
    assert "writes" not in campaigns(SHORT)
    assert list(kept_first(kept, ["outages", "kills"])) == ["outages"]


def test_a_case_of_no_campaign_is_an_error() -> None:
    """A kept case whose campaign was renamed is not left out in silence."""
    with pytest.raises(LabError, match="no campaign 'gone'"):
        kept_first([Case("gone", 1, {})], ["kills"])


def test_what_was_left_out_is_said_before_the_two_numbers() -> None:
    """One line names the campaigns that were not done to the end; the last line is that of the numbers."""
    tallies = [Tally("kills", passed=3), Tally("cuts", passed=1, failed=[Path("x")], out_of_time=True)]
    assert list(last_lines(tallies, 7))[-3:] == [
        "not done to the end: cuts after 2 cases",
        "seed: 7",
        "4 passed, 1 failed",
    ]
    assert list(last_lines(tallies[:1], 7))[-3:] == [
        "nothing was left out for want of time",
        "seed: 7",
        "3 passed, 0 failed",
    ]


def test_a_day_that_failed_is_repeated_from_its_file_and_needs_no_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept day comes before the one of the run, each with its own seed; the file of a failed one says why, and fails again."""
    (tmp_path / "test_day.py").write_text("import os\ndef test_day():\n    assert os.environ['SEED'] != '6'\n")
    monkeypatch.setattr(chaos, "FAILURES", tmp_path / "failures")
    monkeypatch.setattr(chaos, "Lab", None)
    monkeypatch.setattr(VirtualDay, "folder", str(tmp_path))
    (tally,) = run(SHORT, [DAY], [Case(VirtualDay.name, 6, {}), Case("outages", 1, {})], 7)
    assert (tally.passed, len(tally.failed)) == (1, 1)
    assert "assert '6' != '6'" in tally.failed[0].read_text()
    again = Case.load(tally.failed[0])
    assert again == Case(VirtualDay.name, 6, {})
    assert len(repeat(again, 8).failed) == 1


def test_days_are_kept() -> None:
    """Those that failed once come first, like all other kept cases."""
    kept = [Case.load(path) for path in sorted(REGRESSIONS.glob("*.json"))]
    assert {case.seed for case in kept_first(kept, [DAY])[DAY]} == {6, 38002, 669820}


def test_kept_points_of_a_sweep_name_their_file() -> None:
    """How many calls come before changes with the product; a case that reaches none would test nothing, and nobody would notice."""
    kept = kept_first([Case.load(path) for path in sorted(REGRESSIONS.glob("*.json"))], [])
    points = [case.values for name in ("writes", "boundaries", "failing") for case in kept.get(name, ())]
    assert points
    assert all(point.get("path") for point in points)


def test_a_file_that_holds_no_case_is_one_error(tmp_path: Path) -> None:
    """Of `--repeat`: missing, no JSON, or of something else."""
    (tmp_path / "text").write_text("x")
    (tmp_path / "other").write_text("{}")
    for name in ("missing", "text", "other"):
        with pytest.raises(LabError, match=f"no kept case in .*{name}"):
            Case.load(tmp_path / name)
