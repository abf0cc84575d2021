"""`make release-check`: everything is built from a clean checkout of HEAD, and every place that names our version names the same.

`--tree FOLDER` only compares, in a tree in which everything was built; `--sources` leaves out what is built.
"""

import argparse
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("gardener-node-agent", "gardenlet")
TARGETS = ("binary", "deb", "image")
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
"""What a make gives to those that it starts: the build is to be as if nobody had started it."""
_CHART = "packaging/charts/gardenlet/Chart.yaml"


class Unreadable(Exception):
    """A place has no version where one is expected."""


def sources() -> dict[str, Callable[[Path], str]]:
    """Return the places in the source tree, each with what reads our version out of it."""
    return {
        "pyproject.toml": lambda tree: str(tomllib.loads(_text(tree / "pyproject.toml"))["project"]["version"]),
        "CHANGELOG.md": lambda tree: _found(r"^## \[?(\d[\w.]*)", _text(tree / "CHANGELOG.md")),
        "nodeagent/version.py": lambda tree: _found(r'^VERSION = "v(.+)"', _text(tree / "nodeagent/version.py")),
        "gardenlet/version.py": lambda tree: _found(r'^VERSION = "v(.+)"', _text(tree / "gardenlet/version.py")),
        f"{_CHART} version": lambda tree: str(yaml.safe_load(_text(tree / _CHART))["version"]),
        f"{_CHART} appVersion": lambda tree: str(yaml.safe_load(_text(tree / _CHART))["appVersion"]),
    }


def built(program: str) -> dict[str, Callable[[Path], str]]:
    """Return the places in what is built of a program."""
    return {
        f"{program} version": lambda tree: _program_version(tree / "build/bin" / program)["version"].removeprefix("v"),
        f"{program}.deb name": lambda tree: _package(tree, program).name.split("_")[1],
        f"{program}.deb control": lambda tree: _run(
            "dpkg-deb", "--field", str(_package(tree, program)), "Version"
        ).strip(),
        f"{program}.deb man page": lambda tree: _manual_version(_package(tree, program), program),
    }


def image(program: str) -> dict[str, Callable[[Path], str]]:
    """Return the places in a program's container image, as `make image` leaves it."""
    return {
        f"{program} image tag": lambda tree: str(
            _layout(tree, program)["annotations"]["org.opencontainers.image.ref.name"]
        ),
        f"{program} image label": lambda tree: _label(tree, program, "org.opencontainers.image.version").removeprefix(
            "v"
        ),
        f"{program} bill of materials": lambda tree: _billed(tree / f"build/image/{program}.cdx.json").removeprefix(
            "v"
        ),
    }


def versions(tree: Path, *, with_built: bool) -> dict[str, str]:
    """Return our version by place; a place that has none says why instead."""
    places = sources()
    for program in PROGRAMS if with_built else ():
        places |= built(program) | (image(program) if _has_images(tree) else {})
    return _read(places, tree)


def gardener_versions(tree: Path, *, with_built: bool) -> dict[str, str]:
    """Return the Gardener version that is spoken, by place, in the same way."""
    pattern = r'^GARDENER_VERSION = "(.+)"'
    places: dict[str, Callable[[Path], str]] = {
        "nodeagent/version.py": lambda tree: _found(pattern, _text(tree / "nodeagent/version.py")),
        "gardenlet/version.py": lambda tree: _found(pattern, _text(tree / "gardenlet/version.py")),
    }
    for program in PROGRAMS if with_built else ():
        places[f"{program} version"] = partial(_speaks, program=program)
        if _has_images(tree):
            places[f"{program} image label"] = partial(_label, program=program, name="cloud.gardener.version")
    return _read(places, tree)


def _read(places: Mapping[str, Callable[[Path], str]], tree: Path) -> dict[str, str]:
    found = {}
    for place, read in places.items():
        try:
            found[place] = read(tree)
        except (Unreadable, OSError, LookupError, ValueError, yaml.YAMLError, subprocess.SubprocessError) as error:
            found[place] = f"unreadable: {error}"
    return found


def _speaks(tree: Path, program: str) -> str:
    return _program_version(tree / "build/bin" / program)["gardenerVersion"]


def differences(found: Mapping[str, str]) -> Iterator[str]:
    """Yield each place that says something else than the first one."""
    first = next(iter(found))
    for place, version in found.items():
        if version != found[first]:
            yield f"{place} says {version}, {first} says {found[first]}"


def _program_version(program: Path) -> dict[str, str]:
    document: dict[str, str] = json.loads(_run(str(program), "version", "-o", "json"))
    return document


def _package(tree: Path, program: str) -> Path:
    found = sorted((tree / "build/deb").glob(f"{program}_*.deb"))
    if len(found) != 1:
        raise Unreadable(f"{len(found)} packages of {program} in build/deb")
    return found[0]


def _manual_version(package: Path, program: str) -> str:
    archive = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True, timeout=60
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        page = files.extractfile(f"./usr/share/man/man8/{program}.8.gz")
        if page is None:
            raise Unreadable("the man page is no file")
        text = gzip.decompress(page.read()).decode()
    return _found(r'^\.TH .*"gardener-agents (.+?)"', text)


def _has_images(tree: Path) -> bool:
    return re.search(r"^image:", _text(tree / "Makefile"), re.M) is not None


def _layout(tree: Path, program: str) -> dict[str, Any]:
    (manifest,) = json.loads(_text(tree / f"build/image/{program}/index.json"))["manifests"]
    found: dict[str, Any] = manifest
    return found


def _label(tree: Path, program: str, name: str) -> str:
    blobs = tree / f"build/image/{program}/blobs"
    manifest = json.loads(_text(blobs / _layout(tree, program)["digest"].replace(":", "/")))
    config = json.loads(_text(blobs / manifest["config"]["digest"].replace(":", "/")))
    return str(config["config"]["Labels"][name])


def _billed(bill: Path) -> str:
    return str(json.loads(_text(bill))["metadata"]["component"]["version"])


def _text(path: Path) -> str:
    return path.read_text()


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.M)
    if match is None:
        raise Unreadable(f"nothing like {pattern}")
    return match[1]


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def check(tree: Path, *, with_built: bool) -> int:
    """Compare the versions in a tree and print them; returns the exit code."""
    found = versions(tree, with_built=with_built)
    problems = [*differences(found), *differences(gardener_versions(tree, with_built=with_built))]
    for place, version in found.items():
        print(f"  {place:<40} {version}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{len(found)} places, {len(problems)} differences")
    return 1 if problems else 0


def build(checkout: Path) -> None:
    """Clone HEAD and build all that the Makefile can build.

    Raises:
        SystemExit: a step failed, or building left files behind that git does not ignore.
    """
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(checkout)], check=True)
    head = _run("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
    subprocess.run(["git", "-C", str(checkout), "checkout", "--quiet", "--detach", head], check=True)
    makefile = _text(checkout / "Makefile")
    targets = [target for target in TARGETS if re.search(rf"^{target}:", makefile, re.M)]
    print(f"Building {', '.join(targets)} of {head[:12]} in {checkout}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    if subprocess.run(["make", *targets], cwd=checkout, env=environment, check=False).returncode != 0:
        raise SystemExit("error: a clean checkout of HEAD does not build")
    left = _run("git", "-C", str(checkout), "status", "--porcelain")
    if left:
        raise SystemExit(f"error: building changed the checkout:\n{left}")


def main() -> int:
    """Build and compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, metavar="FOLDER", help="compare in this tree, build nothing")
    parser.add_argument("--sources", action="store_true", help="compare the source tree only")
    parsed = parser.parse_args()
    if parsed.tree is not None:
        return check(parsed.tree, with_built=not parsed.sources)
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        checkout = Path(folder) / "gardener-agents"
        build(checkout)
        return check(checkout, with_built=True)


if __name__ == "__main__":
    raise SystemExit(main())
