"""Where the node agent under test comes from: the one-file binary, or the source tree while developing.

In both cases it is *copied* into the machine. From source, that is an interpreter with its library, the distributions it
imports and our packages, below one folder that refers to nothing outside.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.machine import Machine
from tests.lab.worker_osc import AGENT_BINARY

AgentKind = Literal["binary", "source"]
REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = REPOSITORY / "build" / "bin" / "gardener-node-agent"

_FOLDER = "/opt/gardener-node-agent-src"
_PACKAGES = ("agents", "osc", "systemd", "nodeagent")
_NOT_NEEDED = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*", "turtledemo", "site-packages", "*.a", "lib2to3"
)
_DEVELOPMENT_ONLY = shutil.ignore_patterns(
    "mypy*", "ruff*", "pytest*", "_pytest*", "hypothesis*", "uv*", "pip*",
    "rich*", "pygments*", "markdown_it*", "mdurl*", "setuptools*", "coverage*", "importlinter*", "import_linter*", "grimp*", "ast_serialize*", "*.dist-info",
)  # fmt: skip
SOURCE_PYTHON = f"{_FOLDER}/python/bin/python3"
"""The interpreter that the source kind brings to a machine, to be run with `SOURCE_ENVIRONMENT`."""
SOURCE_ENVIRONMENT = {
    "PYTHONHOME": f"{_FOLDER}/python",
    "PYTHONPATH": f"{_FOLDER}/src:{_FOLDER}/site",
    "LD_LIBRARY_PATH": f"{_FOLDER}/python/lib",
}
_WRAPPER = f"""\
#!/bin/sh
export {" ".join(f"{name}={value}" for name, value in SOURCE_ENVIRONMENT.items())}
exec {SOURCE_PYTHON} -m nodeagent "$@"
"""


@dataclass(frozen=True, slots=True)
class AgentSource:
    """A node agent that can be put on machines.

    Attributes:
        kind: `binary` or `source`.
        binary: the one file; only used for the kind `binary`.
        staging: folder in which the source kind is put together once.
    """

    kind: AgentKind
    staging: Path
    binary: Path = BINARY

    def version(self) -> str:
        """Return the version that names its config file (contract 1.3): the first `vX.Y.Z` that `--version` prints.

        Raises:
            LabError: it does not run, or prints no version.
        """
        if self.kind == "binary" and not self.binary.exists():
            raise LabError(
                f"{self.binary.relative_to(REPOSITORY)} does not exist: run `make binary`, or use --agent source"
            )
        command = [str(self.binary)] if self.kind == "binary" else [sys.executable, "-m", "nodeagent"]
        done = subprocess.run(
            [*command, "--version"], cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60
        )
        match = re.search(r"\bv\d+\.\d+\.\d+\S*", done.stdout)
        if done.returncode != 0 or match is None:
            raise LabError(f"the agent's --version failed: {(done.stdout + done.stderr).strip()[-500:]}")
        return match.group(0).rstrip(",;)")

    def file(self) -> bytes:
        """Return what its image has as `/gardener-node-agent`, and user data as `/opt/bin/gardener-node-agent`."""
        return self.binary.read_bytes() if self.kind == "binary" else _WRAPPER.encode()

    def bring_library(self, machine: Machine) -> None:
        """Give a machine what the file needs beside it: the source tree and its interpreter; nothing for the kind `binary`."""
        if self.kind == "source":
            self.stage()
            target = machine.path(_FOLDER)
            if target.exists():
                shutil.rmtree(target)
            run("cp", "-a", str(self.staging), str(target))

    def install(self, machine: Machine) -> None:
        """Put it at `/opt/bin/gardener-node-agent` of a machine; a running agent goes on with the old file."""
        self.bring_library(machine)
        machine.write(AGENT_BINARY, self.file(), 0o755)

    def stage(self) -> None:
        """Put the source kind together: our packages anew each time, the interpreter and the distributions once."""
        shutil.rmtree(self.staging / "src", ignore_errors=True)
        for package in _PACKAGES:
            if (REPOSITORY / package).is_dir():
                shutil.copytree(REPOSITORY / package, self.staging / "src" / package)
        if (self.staging / "complete").exists():
            return
        library = Path(sysconfig.get_path("stdlib"))
        shutil.copytree(library, self.staging / "python" / "lib" / library.name, ignore=_NOT_NEEDED, dirs_exist_ok=True)
        site = Path(sysconfig.get_path("purelib"))
        shutil.copytree(site, self.staging / "site", ignore=_DEVELOPMENT_ONLY, dirs_exist_ok=True)
        interpreter = Path(sys.executable).resolve()
        (self.staging / "python" / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(interpreter, self.staging / "python" / "bin" / "python3")
        for shared in (Path(sys.base_prefix) / "lib").glob("libpython3*.so*"):
            shutil.copy2(shared, self.staging / "python" / "lib" / shared.name)
        (self.staging / "complete").touch()
