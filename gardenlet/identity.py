"""Who we are in the status of objects: the container's id, the Pod's name and our version.

Source: gardener pkg/utils/gardener/identity.go (contract core 5.4).
"""

import re
import secrets
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")
_ID = re.compile(r"[0-9a-f]{64}")
_ALPHABET = "0123456789abcdef"
_HIERARCHIES = ("0::", "1:name=systemd:")
"""Of cgroup v2, and of systemd beside v1; the first one that has an id wins."""


def container_id(cgroup: Path = CGROUP) -> str:
    """Return the id of our container, 64 hexadecimal digits; outside of a container it is drawn."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        lines = []
    for prefix in _HIERARCHIES:
        for line in lines:
            if line.startswith(prefix) and (found := _ID.findall(line)):
                return str(found[-1])
    return "".join(secrets.choice(_ALPHABET) for _ in range(64))
