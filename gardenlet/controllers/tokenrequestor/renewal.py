"""When a token is to be renewed; pure.

Source: gardener pkg/controller/tokenrequestor/reconciler.go, pkg/gardenlet/controller/tokenrequestor/workloadidentity/reconciler.go
(contract core 9).
"""

from datetime import UTC, datetime, timedelta
from random import Random

from agents.core.errors import TerminalError

LONGEST_LIFE = timedelta(hours=24)
"""A token that lives longer is renewed as if it lived so long."""
JITTER = 0.05


class InvalidSecret(TerminalError):
    """A Secret that asks for a token says something that cannot be."""


def renewal(expires: datetime, now: datetime, *, fraction: float, rng: Random) -> datetime:
    """Return when a token is to be renewed: after a fraction of its life, and up to a twentieth of that later."""
    life = min(expires - now, LONGEST_LIFE)
    return now + life * (fraction * (1 + JITTER * rng.random()))


def parse_time(text: str, annotation: str) -> datetime:
    """Return a moment out of an annotation.

    Raises:
        InvalidSecret: it is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidSecret("annotation is no time", annotation=annotation) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    """Return a moment as it is written into an annotation: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
