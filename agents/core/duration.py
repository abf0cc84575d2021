"""Go duration strings (`12h0m0s`, `1m30s`, `500ms`), the form in which Gardener writes every period."""

import re
from datetime import timedelta

from agents.core.errors import TerminalError

_UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "us": timedelta(microseconds=1),
    "µs": timedelta(microseconds=1),
    "μs": timedelta(microseconds=1),
    "ns": timedelta(microseconds=1) / 1000,
}
_TERM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|μs|ns)")
# Go stores durations as int64 nanoseconds.
_LONGEST = timedelta(microseconds=(2**63 - 1) // 1000)


class InvalidDuration(TerminalError):
    """Text is no Go duration."""


def parse_duration(text: str) -> timedelta:
    """Parse a Go duration; precision is one microsecond.

    Raises:
        InvalidDuration: empty, without a unit, unknown unit, or beyond what Go can hold.
    """
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return timedelta()
    total, position = timedelta(), 0
    try:
        while match := _TERM.match(rest, position):
            # Nanoseconds are below timedelta's resolution: scale the number, not the unit.
            number, unit = match.groups()
            total += float(number) / 1000 * _UNITS["us"] if unit == "ns" else float(number) * _UNITS[unit]
            position = match.end()
    except OverflowError as error:
        raise InvalidDuration("duration too long", text=text) from error
    if position == 0 or position != len(rest):
        raise InvalidDuration("not a duration like 1h30m, 10m or 500ms", text=text)
    if total > _LONGEST:
        raise InvalidDuration("duration too long", text=text)
    return sign * total


def format_duration(value: timedelta) -> str:
    """Write a duration as Go's `time.Duration.String` does (`1h0m0s`, `1.5s`, `500ms`, `0s`)."""
    microseconds = value // timedelta(microseconds=1)
    if microseconds == 0:
        return "0s"
    sign, microseconds = ("-", -microseconds) if microseconds < 0 else ("", microseconds)
    if microseconds < 1000:
        return f"{sign}{microseconds}µs"
    if microseconds < 1_000_000:
        return f"{sign}{_decimal(microseconds, 3)}ms"
    minutes, rest = divmod(microseconds, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, 6)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, digits: int) -> str:
    whole, fraction = divmod(value, 10**digits)
    return f"{whole}.{fraction:0{digits}d}".rstrip("0").rstrip(".") if fraction else str(whole)
