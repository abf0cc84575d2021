"""Build `build/deb/*.deb`: each program as a Debian package.

A package has the one-file program below `/usr/lib/<program>`, a link to it in `/usr/bin`, a unit that is not enabled, an example
configuration, and a man page out of `--help`. Nothing of it lies where Gardener keeps its own files. Two builds of one commit give
identical bytes.
"""

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # found from anywhere; and not from this folder, whose names are no modules of their own
    sys.path[0:1] = [str(ROOT), str(ROOT / "packaging")]

from deb.manpage import manpage  # noqa: E402 - found only with the path above

from onefile.programs import PROGRAMS, Program, read_versions  # noqa: E402
from tests.lab.errors import LabError  # noqa: E402
from tests.lab.packages import Tool, ensure_tools, program  # noqa: E402
from tests.lab.progress import to_stderr  # noqa: E402

SOURCE = ROOT / "packaging/deb"
PROGRAM_FOLDER = ROOT / "build/bin"
OUTPUT = ROOT / "build/deb"
NEEDED = (Tool("dpkg-deb", "dpkg", lambda: program("dpkg-deb")),)
_EPOCH = "0"
_SCRIPTS = ("postinst", "prerm", "postrm")
_DESCRIPTIONS = {
    "gardener-node-agent": "makes a worker node match its OperatingSystemConfig (Gardener)",
    "gardenlet": "registers a seed cluster at its garden and looks after it (Gardener)",
}


def build(one: Program, output: Path = OUTPUT) -> Path:
    """Build the package of a program; returns its path.

    Raises:
        LabError: the program is not built, or dpkg-deb fails.
    """
    file = PROGRAM_FOLDER / one.name
    if not file.exists():
        raise LabError(f"{file.relative_to(ROOT)} is missing: run `make binary`")
    version = read_versions(ROOT, one)[0].removeprefix("v")
    output.mkdir(parents=True, exist_ok=True)
    package = output / f"{one.name}_{version}_amd64.deb"
    # Beside the package, so that what is complete takes its place in one step.
    with tempfile.TemporaryDirectory(dir=output, prefix=".") as scratch:
        tree = Path(scratch) / one.name
        _lay_out(one, file, version, tree)
        _pack(tree, Path(scratch) / package.name).replace(package)
    return package


def _lay_out(one: Program, file: Path, version: str, tree: Path) -> None:
    """Put everything where it will be on the machine."""
    home = tree / "usr/lib" / one.name
    _copy(file, home / one.name, 0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin" / one.name).symlink_to(f"../lib/{one.name}/{one.name}")
    _write(tree / f"usr/share/man/man8/{one.name}.8.gz", gzip.compress(manpage(file).encode(), mtime=0))
    _copy(ROOT / "LICENSE", tree / f"usr/share/doc/{one.name}/copyright")
    for example in sorted((SOURCE / one.name).glob("*.yaml")):
        _copy(example, tree / f"usr/share/doc/{one.name}/examples/{example.name}")
    for unit in sorted((SOURCE / one.name).glob("*.service")):
        _copy(unit, tree / f"usr/lib/systemd/system/{unit.name}")
    for script in _SCRIPTS:
        if (SOURCE / one.name / script).exists():
            _copy(SOURCE / one.name / script, tree / "DEBIAN" / script, 0o755)
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    _write(tree / "DEBIAN/control", _control(one, version, size).encode())


def _control(one: Program, version: str, size: int) -> str:
    return (
        f"Package: {one.name}\nVersion: {version}\nArchitecture: amd64\nSection: admin\nPriority: optional\n"
        f"Maintainer: gardener-agents maintainers <maintainers@gardener-agents.invalid>\nInstalled-Size: {size}\n"
        f"Depends: libc6 (>= 2.31), libgcc-s1\nDescription: {_DESCRIPTIONS[one.name]}\n"
        " One program in one file, with its own interpreter; it needs no Python on the machine.\n"
    )


def _pack(tree: Path, package: Path) -> Path:
    for folder in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    # The program is compressed already.
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", str(tree), str(package)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise LabError(f"dpkg-deb failed: {done.stderr.strip()[-800:]}")
    return package


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    _write(target, source.read_bytes(), mode)


def _write(target: Path, content: bytes, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(mode)


def main() -> int:
    """Build; return the exit code."""
    try:
        ensure_tools(say=to_stderr, tools=NEEDED)
        for one in PROGRAMS.values():
            package = build(one)
            print(f"Built {package.relative_to(ROOT)}: {package.stat().st_size / 1e6:.1f} MB")
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
