"""The one container image that exists in a lab without a registry: a static busybox, as pause image and for test Pods.

Built once with umoci and skopeo into the cache; machines import the archive, so nothing is pulled over a network.
"""

import fcntl
import shutil
import tempfile
from pathlib import Path

from tests.lab.binaries import cache_root
from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.packages import program, static_busybox

PAUSE_IMAGE = "lab.internal/pause:1"
_APPLETS = ("sh", "sleep", "cat", "echo", "nc", "ip", "ls", "id")


def pause_archive(folder: Path | None = None) -> Path:
    """Return the image as a docker archive, building it if this is the first time.

    Args:
        folder: where to keep it; None for the user's cache.
    """
    folder = folder or cache_root() / "images"
    archive = folder / "pause-1.tar"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "pause-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=folder, prefix=".pause-") as scratch:
                _build(Path(scratch)).rename(archive)
    return archive


def _build(scratch: Path) -> Path:
    busybox, umoci, skopeo = static_busybox(), program("umoci"), program("skopeo")
    if busybox is None or umoci is None or skopeo is None:
        raise LabError("the pause image needs a static busybox, umoci and skopeo")
    layout, bundle, archive = scratch / "oci", scratch / "bundle", scratch / "pause.tar"
    image = f"{layout}:pause"
    run(str(umoci), "init", "--layout", str(layout))
    run(str(umoci), "new", "--image", image)
    run(str(umoci), "unpack", "--image", image, str(bundle))
    programs = bundle / "rootfs" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(busybox, programs / "busybox")
    for applet in _APPLETS:
        (programs / applet).symlink_to("busybox")
    run(str(umoci), "repack", "--image", image, str(bundle))
    entry = ["--config.entrypoint", "/bin/sleep", "--config.cmd", "2147483647"]
    run(str(umoci), "config", "--image", image, *entry)
    run(str(skopeo), "--insecure-policy", "copy", f"oci:{image}", f"docker-archive:{archive}:{PAUSE_IMAGE}")
    return archive
