"""What the drift tests change on a node: a unit with drop-ins, and files of which it uses two."""

import asyncio
import time

from tests.support.osc_agent import SLEEP, OscAgent, inline

UNIT = {
    "name": "a.service",
    "content": SLEEP,
    "filePaths": ["/etc/used", "/etc/also"],
    "dropIns": [{"name": "d.conf", "content": "[Unit]\n"}, {"name": "e.conf", "content": "[Service]\n"}],
}
FILES = [inline("/etc/a", "one", 0o644), inline("/etc/used", "used", 0o644), inline("/etc/also", "also", 0o644)]
UNIT_FILE, DROP_IN = "/etc/systemd/system/a.service", "/etc/systemd/system/a.service.d/d.conf"
OTHER_DROP_IN = "/etc/systemd/system/a.service.d/e.conf"


def touch(node: OscAgent, path: str, text: str) -> None:
    """Do what somebody else does."""
    (node.root / path.lstrip("/")).write_text(text)


def restarted_since(node: OscAgent, *, seconds: int, name: str = "a.service") -> None:
    """Let the unit have been started so long after (or before) everything that is on the disk."""
    unit = node.host.units[name]
    unit.since = int(time.time()) + seconds
    unit.changed = asyncio.get_running_loop().time() + seconds
