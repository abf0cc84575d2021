"""Comparing versions as Gardener does."""

import pytest

from agents.core.versions import InvalidVersion, Version, matches


@pytest.mark.parametrize(
    ("current", "desired", "equal"),
    [
        ("1592.6.3", "1592.6", True),
        ("1592.7.0", "1592.6", False),
        ("1592.9", "1592", True),
        ("1.2", "1.2.0", True),
        ("1.2.0-foo.12", "1.2.0", True),
        ("v1.2.0", "1.2.0", True),
        ("1.2.1", "1.2.0", False),
        ("22.04", "22.4", True),
        ("2", "1", False),
    ],
)
def test_missing_parts_of_the_desired_version_are_wildcards(current: str, desired: str, equal: bool) -> None:
    """Contract 6.13, Appendix C (differences): versions of the operating system: as a tilde range; suffixes and the letter v do not count."""
    assert matches(current, desired) is equal


@pytest.mark.parametrize("text", ["", "new", "1.2.3.4", "-1", "1..2", "9" * 5000])
def test_what_is_no_version_is_an_error(text: str) -> None:
    """Contract 6.13, Appendix C (differences): unparsable is an error, never a difference."""
    with pytest.raises(InvalidVersion):
        matches("1.2.3", text)


@pytest.mark.parametrize(("text", "new"), [("2.3.0~ds2", True), ("2.2", True), ("2.1.9", False), ("1.6.20~ds1", False)])
def test_at_least(text: str, new: bool) -> None:
    """Contract 6.14: Debian's versions are compared without their suffix."""
    assert Version.parse(text).at_least(2, 2) is new
