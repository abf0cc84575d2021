"""Runs in a machine: a file out of an image with `ctr` and `cp` alone, as a shell script would.

Arguments: image, path in it, target. Prints the seconds without and with a sync of the target at the end. What was pulled is
removed afterwards, outside of the measured time.
"""

import subprocess
import sys
import tempfile
import time


def main() -> None:
    """Pull, mount, copy, unmount; then sync."""
    image, source, target = sys.argv[1:]
    mount = tempfile.mkdtemp()
    started = time.monotonic()
    for command in (
        ["ctr", "images", "pull", "--hosts-dir", "/etc/containerd/certs.d", image],
        ["ctr", "images", "mount", image, mount],
        ["cp", f"{mount}{source}", target],
        ["ctr", "images", "unmount", "--rm", mount],
    ):
        subprocess.run(command, check=True, capture_output=True)
    unsynced = time.monotonic() - started
    subprocess.run(["sync", target], check=True)
    print(unsynced, time.monotonic() - started)
    subprocess.run(["ctr", "images", "delete", "--sync", image], check=True, capture_output=True)


if __name__ == "__main__":
    main()
