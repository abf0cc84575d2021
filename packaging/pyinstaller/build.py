"""Build `build/bin/gardener-node-agent`, one file, with PyInstaller.

The bootloader ignores signals: systemd sends SIGTERM to every process of the unit, and a bootloader that passes it on
would make it two, of which the second means "at once".
"""

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.errors import LabError  # noqa: E402 - found only with the path above
from tests.lab.packages import Tool, ensure_tools, program  # noqa: E402
from tests.lab.progress import to_stderr  # noqa: E402

OUTPUT = ROOT / "build/bin/gardener-node-agent"
EXCLUDED = (
    "kubernetes_asyncio.client.models",
    "uvloop",
    "rich",
    "pygments",
    "tkinter",
    "pytest",
    "hypothesis",
    "_pytest",
    "pip",
    "setuptools",
)


def shared_interpreter() -> Path | None:
    """Return the interpreter's shared library, which goes into the file."""
    library = sysconfig.get_config_var("INSTSONAME") or ""
    folders = [sysconfig.get_config_var("LIBDIR") or "", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    found = (Path(folder) / library for folder in folders)
    return next((path for path in found if path.is_file() and ".so" in path.name), None)


NEEDED = (
    Tool("objdump", "binutils", lambda: program("objdump")),
    Tool("Python's shared library", f"libpython3.{sys.version_info.minor}", shared_interpreter),
)


def main() -> int:
    """Build; return the exit code."""
    try:
        ensure_tools(say=to_stderr, tools=NEEDED)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    started = time.monotonic()
    print("Building build/bin/gardener-node-agent (about a minute)", flush=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    work = ROOT / "build/pyinstaller"
    command = [
        *(
            sys.executable,
            "-m",
            "PyInstaller",
            "--noconfirm",
            "--clean",
            "--log-level",
            "ERROR",
            "--onefile",
            "--strip",
            # Without docstrings: 2.3 MB of resident memory.
            *("--optimize", "2"),
        ),
        *(
            "--bootloader-ignore-signals",
            "--name",
            OUTPUT.name,
            "--distpath",
            str(work / "dist"),
            "--workpath",
            str(work / "work"),
        ),
        *("--specpath", str(work), "--paths", str(ROOT), "--hidden-import", "kubernetes_asyncio.client.api_client"),
        *(
            "--hidden-import",
            "kubernetes_asyncio.client.configuration",
            "--hidden-import",
            "kubernetes_asyncio.client.rest",
        ),
        *("--hidden-import", "kubernetes_asyncio.client.exceptions", "--hidden-import", "kubernetes_asyncio.config"),
        *(argument for name in EXCLUDED for argument in ("--exclude-module", name)),
        str(ROOT / "packaging/pyinstaller/node_agent.py"),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "0"}
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if result.returncode == 0:
        # Renamed, so that a machine test never copies half a file.
        (work / "dist" / OUTPUT.name).replace(OUTPUT)
        print(
            f"Built {OUTPUT.relative_to(ROOT)}: {OUTPUT.stat().st_size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s"
        )
    return result.returncode


if __name__ == "__main__":
    raise SystemExit(main())
