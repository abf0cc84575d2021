"""What a program is made of, fetched once and kept: interpreter, distributions, launcher.

Each is pinned with digests: the interpreter and the launcher's library by `go.sum`, the distributions by
`requirements/runtime.lock`. Addresses are those that Go and pip are set to.
"""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.golang import run_go
from tests.lab.progress import Say, ticking

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAIN = "go1.26.8"
"""The compiler is part of what makes the bytes of the launcher; Go fetches it where another one is installed."""

_INTERPRETER_MODULE = "github.com/kluctl/go-embed-python"
_INTERPRETER_FOLDER = "python/internal/data/linux-amd64"
# A wheel of any of these runs with glibc 2.28: Debian 11 has 2.31.
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64")
_GO_ENVIRONMENT = {"GOTOOLCHAIN": TOOLCHAIN, "GOFLAGS": "-mod=readonly"}
_TARGET = {"GOOS": "linux", "GOARCH": "amd64", "GOAMD64": "v1"}


def python_version(module_file: str) -> str:
    """Return the interpreter's version, such as 3.14.6, from the text of the go.mod that pins it.

    Raises:
        LabError: it is not there.
    """
    match = re.search(rf"{re.escape(_INTERPRETER_MODULE)} v\S*?-(3\.\d+\.\d+)-", module_file)
    if match is None:
        raise LabError("packaging/interpreter/go.mod names no version of the interpreter")
    return match.group(1)


def fetch_interpreter(work: Path, go: Path, say: Say) -> tuple[Path, str]:
    """Return the folder of the interpreter's installation, and its version."""
    folder = ROOT / "packaging" / "interpreter"
    version = python_version((folder / "go.mod").read_text())

    def make(target: Path) -> None:
        with ticking(f"fetching CPython {version}", say):
            told = run_go(go, folder, "mod", "download", "-json", _INTERPRETER_MODULE, environment=_GO_ENVIRONMENT)
            _expand(Path(json.loads(told)["Dir"]) / _INTERPRETER_FOLDER, target)

    return _once(work, "interpreter", (folder / "go.sum").read_bytes(), make), version


def _expand(source: Path, target: Path) -> None:
    """Copy the interpreter and its library; the module has larger files gzipped."""
    for path in sorted(source.rglob("*")):
        name = str(path.relative_to(source))
        if path.is_dir() or not re.match(r"bin/python3\.\d+(\.gz)?$|lib/python3\.\d+/", name):
            continue
        place = target / name.removesuffix(".gz")
        place.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        place.write_bytes(gzip.decompress(data) if name.endswith(".gz") else data)
        place.chmod(0o755 if name.startswith("bin/") else 0o644)


def fetch_distributions(work: Path, version: str, say: Say) -> Path:
    """Return a folder with all distributions of `requirements/runtime.lock`, built for that Python and old hosts."""
    lock = ROOT / "requirements" / "runtime.lock"

    def make(target: Path) -> None:
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--no-compile", "--require-hashes", "--only-binary", ":all:", "--implementation", "cp"),
            *(argument for platform in _PLATFORMS for argument in ("--platform", platform)),
            *("--python-version", version.rpartition(".")[0], "--target", str(target), "-r", str(lock)),
        ]
        with ticking(f"fetching the distributions for Python {version}", say):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                raise LabError(f"pip failed: {done.stderr.strip()[-1500:]}")
            for library in sorted(target.rglob("*.so")):
                run("strip", "--strip-unneeded", str(library))

    return _once(work, "distributions", f"{version}\n".encode() + lock.read_bytes(), make)


def build_launcher(work: Path, go: Path, say: Say) -> Path:
    """Return the launcher, a static program; the licences of what is linked into it lie beside it, `<name> <version>.txt`."""
    folder = ROOT / "packaging" / "launcher"
    sources = sorted([*folder.glob("*.go"), folder / "go.mod", folder / "go.sum"])

    def make(target: Path) -> None:
        flags = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=")
        with ticking("building the launcher", say):
            output = str(target / "launcher")
            run_go(go, folder, "build", *flags, "-o", output, ".", environment=_GO_ENVIRONMENT | _TARGET)
        _copy_licenses(go, folder, target)

    content = b"".join(path.name.encode() + path.read_bytes() for path in sources)
    return _once(work, "launcher", f"{TOOLCHAIN} with licences\n".encode() + content, make) / "launcher"


def _copy_licenses(go: Path, folder: Path, target: Path) -> None:
    """Copy the licences of Go's own library, and of each module that a module needs."""
    home = Path(run_go(go, folder, "env", "GOROOT", environment=_GO_ENVIRONMENT).strip())
    shutil.copyfile(home / "LICENSE", target / f"go {TOOLCHAIN.removeprefix('go')}.txt")
    form = "{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}"
    for line in run_go(go, folder, "list", "-m", "-f", form, "all", environment=_GO_ENVIRONMENT).split("\n"):
        if line:
            path, version, place = line.split(" ", 2)
            shutil.copyfile(Path(place) / "LICENSE", target / f"{path.replace('/', '_')} {version}.txt")


def _once(work: Path, name: str, made_of: bytes, make: Callable[[Path], None]) -> Path:
    """Return the folder that was made of these bytes before, or make it now; another one of that name goes."""
    folder = work / f"{name}-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if folder.exists():
        return folder
    for old in work.glob(f"{name}-*"):
        shutil.rmtree(old)
    part = work / f".{folder.name}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    make(part)
    part.rename(folder)
    return folder
