"""What the host's kernel allows too little of for machines in namespaces; raised while any lab is up, and put back after the last one.

All machines of a host are one user for the kernel. 128 instances of inotify, the kernel's default, are two control planes and
three machines with a kubelet each: the next unit, watch or program that wants one fails in a way that names no cause.
"""

from pathlib import Path

from tests.lab.state import SYSCTL, Ledger, labs, locked

INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
WANTED = 1024


def raise_limits(ledger: Ledger, *, setting: Path = INOTIFY) -> None:
    """Raise what is too low; the ledger knows what it was. Who may not raise it goes on with what there is."""
    with locked("limits", root=ledger.directory.parent, timeout=60):
        now = int(setting.read_text(encoding="ascii"))
        known = [entry["before"] for lab in labs(ledger.directory.parent) for entry in lab.entries(SYSCTL)]
        if now >= WANTED and not known:
            return
        ledger.record(SYSCTL, path=str(setting), before=known[0] if known else now)
        try:
            setting.write_text(f"{max(now, WANTED)}\n", encoding="ascii")
        except PermissionError:
            return
