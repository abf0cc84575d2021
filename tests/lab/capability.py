"""Whether this host can run a lab, found out by trying instead of by reading version numbers."""

import os
import subprocess
import sys
from pathlib import Path


def why_no_lab() -> str | None:
    """Return the reason why this host cannot run a lab, None if it can."""
    return why_not(
        platform=sys.platform,
        user=os.geteuid(),
        namespaces=_try("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "true"),
        mounting=_try("unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt"),
        overlay="overlay" in _filesystems() or _try("modprobe", "overlay"),
    )


def why_not(*, platform: str, user: int, namespaces: bool, mounting: bool, overlay: bool) -> str | None:
    """Return the first thing that is in the way, as one line."""
    if platform != "linux":
        return f"the lab needs Linux; this is {platform}"
    if user != 0:
        return "the lab needs root: it makes namespaces, mounts and cgroups"
    if not namespaces:
        return "the lab needs namespaces, and this host does not let us make them (a container without privileges?)"
    if not mounting:
        return "the lab needs to mount file systems, and this host does not let us (a container without privileges?)"
    if not overlay:
        return "the lab needs overlayfs, and this kernel has none"
    return None


def _try(*command: str) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _filesystems() -> str:
    path = Path("/proc/filesystems")
    return path.read_text(encoding="utf-8") if path.exists() else ""
