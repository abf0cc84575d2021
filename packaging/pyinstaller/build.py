"""Build `build/bin/gardener-node-agent`, one file, with PyInstaller.

The bootloader ignores signals: systemd sends SIGTERM to every process of the unit, and a bootloader that passes it on
would make it two, of which the second means "at once".
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build/bin/gardener-node-agent"
EXCLUDED = (
    "kubernetes_asyncio.client.models",
    "uvloop",
    "tkinter",
    "pytest",
    "hypothesis",
    "_pytest",
    "pip",
    "setuptools",
)


def missing_packages() -> list[str]:
    """Return the Debian packages that PyInstaller needs and this machine lacks."""
    packages = []
    if shutil.which("objdump") is None:
        packages.append("binutils")
    library = sysconfig.get_config_var("INSTSONAME") or ""
    folders = [sysconfig.get_config_var("LIBDIR") or "", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    if not any((Path(folder) / library).is_file() for folder in folders):
        packages.append(f"libpython3.{sys.version_info.minor}")
    return packages


def main() -> int:
    """Build; return the exit code."""
    if packages := missing_packages():
        sys.path.insert(0, str(ROOT))
        from tests.lab.packages import install_packages

        install_packages(packages)
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
