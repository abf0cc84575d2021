"""Go durations, in both directions."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.core.duration import InvalidDuration, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12h0m0s", timedelta(hours=12)),
        ("1m30s", timedelta(seconds=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("1.5h", timedelta(minutes=90)),
        (".5s", timedelta(milliseconds=500)),
        ("0", timedelta()),
        ("-2m", timedelta(minutes=-2)),
        ("+2m", timedelta(minutes=2)),
        ("3us", timedelta(microseconds=3)),
        ("3µs", timedelta(microseconds=3)),
        ("2000ns", timedelta(microseconds=2)),
    ],
)
def test_parse_reads_what_go_writes(text: str, value: timedelta) -> None:
    """Contract 2: durations are Go duration strings."""
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "5", "1x", "h", "1h 2m", "1d", "--1s", "9999999999h", "1h-2m", "1e3s"])
def test_parse_refuses_what_go_refuses(text: str) -> None:
    """A number without a unit, an unknown unit, or more than Go can hold is an error."""
    with pytest.raises(InvalidDuration):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(hours=1), "1h0m0s"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(milliseconds=500), "500ms"),
        (timedelta(microseconds=1500), "1.5ms"),
        (timedelta(microseconds=7), "7µs"),
        (timedelta(), "0s"),
        (timedelta(minutes=-2), "-2m0s"),
    ],
)
def test_format_writes_as_go_does(value: timedelta, text: str) -> None:
    """Durations are printed in Go's form."""
    assert format_duration(value) == text


@given(st.timedeltas(min_value=timedelta(days=-30), max_value=timedelta(days=30)))
def test_format_and_parse_are_inverse(value: timedelta) -> None:
    """What was written is read back as the same duration."""
    assert abs(parse_duration(format_duration(value)) - value) <= timedelta(microseconds=1)


def test_beyond_python_is_an_error() -> None:
    """A number that not even Python can hold is the same clear error."""
    with pytest.raises(InvalidDuration, match="too long"):
        parse_duration("9" * 30 + "h")
