"""Maintenance windows: `220000+0100,230000+0100`, each day; pure.

A window may cross midnight, and both of its ends belong to it. Source: gardener pkg/apis/utils/timewindow/timewindow.go (contract core 10).
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone

from agents.core.errors import TerminalError

_TIME = re.compile(r"(\d{2})(\d{2})(\d{2})([+-])(\d{2})(\d{2})")
DAY = timedelta(days=1)


class InvalidWindow(TerminalError):
    """Text is no maintenance window."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of each day; begin and length, in UTC."""

    begin: timedelta
    """Since midnight, UTC."""
    length: timedelta

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Read begin and end.

        Raises:
            InvalidWindow: they are none.
        """
        parts = text.split(",")
        if len(parts) != 2:
            raise InvalidWindow("maintenance window is not `HHMMSS+ZONE,HHMMSS+ZONE`")
        begin, end = (_since_midnight(part.strip()) for part in parts)
        length = (end - begin) % DAY
        if not length:
            raise InvalidWindow("maintenance window is empty")
        return cls(begin, length)

    def occurrence(self, now: datetime) -> tuple[datetime, datetime]:
        """Return begin and end of the window that is now, or else of the next one."""
        midnight = datetime.combine(now.astimezone(UTC).date(), time(tzinfo=UTC))
        for day in (-1, 0, 1):
            begin = midnight + day * DAY + self.begin
            if now <= begin + self.length:
                return begin, begin + self.length
        raise AssertionError("one of three days is not over")  # pragma: no cover


def _since_midnight(text: str) -> timedelta:
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidWindow("time of a maintenance window is not `HHMMSS+ZONE`")
    hours, minutes, seconds, sign, zone_hours, zone_minutes = match.groups()
    offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
    try:
        zone = timezone(offset if sign == "+" else -offset)
        moment = datetime(2000, 1, 2, int(hours), int(minutes), int(seconds), tzinfo=zone).astimezone(UTC)
    except ValueError as error:
        raise InvalidWindow("time of a maintenance window does not exist") from error
    return timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second)
