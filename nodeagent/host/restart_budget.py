"""How often the agent may restart a unit on its own account: rarely, and no more often because it restarts itself.

The first restart is free. After it comes a pause, after the second a longer one, and more than three in an hour are not made:
what three restarts did not mend, the fourth will not, and it takes the evidence with it. Gardener's agent restarts about
every 90 seconds, for ever.

Moments are seconds of the monotonic clock, which begins at the boot, together with the boot's id: a wall clock that jumps
changes nothing. The file is written before the restart, so that a kill in between costs a restart and never grants one.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from agents.core import files
from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.yamlio import dump_json, load_yaml

log = get_logger(__name__)

WINDOW = timedelta(hours=1)
PAUSES = (timedelta(minutes=2), timedelta(minutes=10))
"""After the first and the second restart of a window; it has no room for more than one restart beyond the last pause."""
STATE_MODE = 0o600
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = BOOT_ID) -> str:
    """Return the id of this boot of the machine."""
    return path.read_text().strip()


class RestartBudget:
    """The restarts of the last hour, by what was restarted.

    Args:
        path: where they are kept, below /run.
        clock: monotonic time.
        boot_id: of this boot; what another boot left counts for nothing.
    """

    def __init__(self, *, path: Path, clock: Clock, boot_id: str) -> None:
        self._path = path
        self._clock = clock
        self._boot_id = boot_id
        self._restarts = _read(path, boot_id)
        self.totals = Counter(made=0, suppressed=0)
        """Restarts of this process, made and not made, for metrics."""

    def count(self, name: str) -> int:
        """Return how often something was restarted within the last hour."""
        return len(self._recent(name))

    def wait(self, name: str) -> timedelta:
        """Return how long to wait until the next restart is allowed; zero for now."""
        recent = self._recent(name)
        if not recent:
            return timedelta(0)
        due = recent[0] + WINDOW.total_seconds()
        if len(recent) <= len(PAUSES):
            due = recent[-1] + PAUSES[len(recent) - 1].total_seconds()
        return timedelta(seconds=max(0.0, due - self._clock.monotonic()))

    def spend(self, name: str) -> None:
        """Note a restart that is about to be made; a few bytes on a tmpfs, written at once."""
        self.totals["made"] += 1
        self._restarts[name] = [*self._recent(name), self._clock.monotonic()]
        document = {"bootID": self._boot_id, "restarts": self._restarts}
        try:
            files.write_atomic(self._path, dump_json(document), mode=STATE_MODE, sync=False)
        except files.FileError as error:
            log.error("Restarts not written down", error=error)

    def refuse(self) -> None:
        """Note a restart that is not made because too many were."""
        self.totals["suppressed"] += 1

    def _recent(self, name: str) -> list[float]:
        now = self._clock.monotonic()
        return [moment for moment in self._restarts.get(name, ()) if now - WINDOW.total_seconds() < moment <= now]


def _read(path: Path, boot_id: str) -> dict[str, list[float]]:
    try:
        document = load_yaml(files.read_optional(path) or b"{}")
    except AgentError as error:
        log.error("Restarts unreadable, counting from zero", path=str(path), error=error)
        return {}
    if not isinstance(document, Mapping) or document.get("bootID") != boot_id:
        return {}
    found = document.get("restarts")
    return {
        str(name): sorted(float(moment) for moment in moments if isinstance(moment, int | float))
        for name, moments in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(moments, list)
    }
