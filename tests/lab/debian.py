"""Roots of other Debian releases, to try programs with another C library than the host's; made once, then kept."""

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.lab.binaries import cache_root
from tests.lab.errors import LabError
from tests.lab.packages import Tool, ensure_tools, program
from tests.lab.progress import Say, ticking

OLD = "bullseye"
"""Debian 11, glibc 2.31: the oldest that hosts of Gardener have."""

_TOOLS = (Tool("debootstrap", "debootstrap", lambda: program("debootstrap")),)


def old_root(say: Say) -> Path:
    """Return a root with the packages that every Debian 11 has; about half a minute the first time.

    Raises:
        LabError: it cannot be made.
    """
    folder = cache_root() / "roots" / OLD
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{OLD}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        ensure_tools(say=say, tools=_TOOLS)
        part = folder.with_name(f".{OLD}")
        shutil.rmtree(part, ignore_errors=True)
        with ticking("making a Debian 11 root", say):
            command = ["debootstrap", "--variant=minbase", OLD, str(part)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"debootstrap failed: {(done.stderr or done.stdout).strip()[-800:]}")
        part.rename(folder)
    return folder
