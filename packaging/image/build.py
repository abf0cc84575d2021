"""Build `build/image/<program>`: each program as an OCI image, in the layout that skopeo and others read, and its bill of materials.

The node agent's image has one file, because Gardener copies one file out of it. gardenlet's has the program as its launcher
would unpack it, so that its root can be read-only, upon the few files of Debian that the interpreter needs; no shell. A
launcher without content stands at `/usr/bin/gardenlet`, so that `kubectl exec` has a program to start.
The layout is written by what the lab has for its tests: nothing has to be installed, and nothing of the time, the place or the
order of a build is in it. Two builds of one commit on one host give one digest.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # found from anywhere; and not from this folder, whose names are no modules of their own
    sys.path[0:1] = [str(ROOT), str(ROOT / "packaging")]

from image import debian, sbom  # noqa: E402 - found only with the path above
from image.unpack import unpack  # noqa: E402
from onefile import container, inputs  # noqa: E402
from onefile.build import start_of  # noqa: E402
from onefile.programs import PROGRAMS, Program, read_versions  # noqa: E402
from tests.lab.binaries import cache_root  # noqa: E402
from tests.lab.errors import LabError  # noqa: E402
from tests.lab.golang import find_go  # noqa: E402
from tests.lab.oci import Entry, Image  # noqa: E402
from tests.lab.packages import ensure_tools  # noqa: E402
from tests.lab.progress import to_stderr  # noqa: E402

OUTPUT = ROOT / "build/image"
PROGRAM_FOLDER = ROOT / "build/bin"
WORK = ROOT / "build/onefile"
USER = 65532
NEEDED = debian.TOOLS
_LEVEL = 6
HOME = "usr/lib/gardenlet"
"""Where gardenlet is in its image."""
_STARTER = "usr/bin/gardenlet"
_FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\ngardenlet:x:{USER}:{USER}:gardenlet:/:/nonexistent\n",
    "etc/group": f"root:x:0:\ngardenlet:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_TITLES = {
    "gardener-node-agent": "makes a worker node match its OperatingSystemConfig",
    "gardenlet": "registers a seed cluster at its garden and looks after it",
}


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a program was built from, fetched already; and what the image claims about itself."""

    interpreter: Path
    interpreter_version: str
    distributions: Path
    launcher: Path
    revision: str
    created: str | None

    @classmethod
    def fetch(cls) -> "_Inputs":
        go = find_go(cache_root() / "go", to_stderr)
        installation, version = inputs.fetch_interpreter(WORK, go, to_stderr)
        interpreter = next((installation / "bin").glob("python3.*"))
        distributions = inputs.fetch_distributions(WORK, version, to_stderr)
        launcher = inputs.build_launcher(WORK, go, to_stderr)
        revision, _, created = _git("log", "-1", "--format=%H %cI").partition(" ")
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return cls(
            interpreter, version, distributions, launcher, f"{revision}-dirty" if changed else revision, created or None
        )

    def common_parts(self, one: Program, home: str) -> list[sbom.Part]:
        """Return interpreter and distributions; `home` is where the program is, with a slash at the end."""
        paths = (f"{home}bin/{one.name}", f"{home}lib/{self.interpreter.name}")
        return [
            sbom.interpreter_part(self.interpreter_version, paths),
            *(sbom.distribution_part(self.distributions, name, f"{home}app/") for name in one.distributions),
        ]

    def labels(self, one: Program) -> dict[str, str]:
        """Return the labels of an image."""
        ours, gardener = read_versions(ROOT, one)
        found = {
            "org.opencontainers.image.title": one.name,
            "org.opencontainers.image.description": f"{_TITLES[one.name]} (Gardener)",
            "org.opencontainers.image.version": ours,
            "org.opencontainers.image.revision": self.revision,
            "org.opencontainers.image.created": self.created or "",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "cloud.gardener.version": gardener,
        }
        return {name: value for name, value in found.items() if value}


def _git(*arguments: str) -> str:
    """Return what git says about this repository; nothing if it is none."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def build(one: Program, output: Path = OUTPUT) -> Image:
    """Build the image of a program: a layout and a bill of materials in a folder.

    Raises:
        LabError: the program is not built, or something of Debian is missing.
    """
    program = PROGRAM_FOLDER / one.name
    if not program.exists():
        raise LabError(f"{program.relative_to(ROOT)} is missing: run `make binary`")
    output.mkdir(parents=True, exist_ok=True)
    given, ours = _Inputs.fetch(), read_versions(ROOT, one)[0]
    make = _gardenlet if one.name == "gardenlet" else _one_file
    layers, config, parts = make(one, program, given)
    config |= {"Labels": given.labels(one)}
    image = Image.build(*layers, level=_LEVEL, config=config, created=given.created)
    image.write_layout(output / one.name, tag_of(one))
    # The last thing that is written: whether there is anything to be built is decided by its time.
    bill = sbom.document(one, ours, image.manifest.digest, given.created, parts)
    (output / f"{one.name}.cdx.json").write_bytes(bill)
    return image


def tag_of(one: Program) -> str:
    """Return the tag of an image: our version as the chart asks for it, by its appVersion."""
    return read_versions(ROOT, one)[0].removeprefix("v")


_Content = tuple[list[list[Entry]], dict[str, object], list[sbom.Part]]


def _one_file(one: Program, program: Path, given: _Inputs) -> _Content:
    """Return layers, configuration and parts of an image with the one file; paths of parts are below its own folder."""
    content, ours = program.read_bytes(), read_versions(ROOT, one)[0]
    own = sbom.Part(
        one.name, ours, f"pkg:generic/{one.name}@{ours}", "Apache-2.0", "application",
        paths=_own_paths(one, ""), sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    parts = [own, sbom.launcher_part(given.launcher, ours), *given.common_parts(one, "")]
    return [[Entry(one.name, content)]], {"Entrypoint": [f"/{one.name}"]}, parts


def _gardenlet(one: Program, program: Path, given: _Inputs) -> _Content:
    """Return layers, configuration and parts of the image with the program unpacked; what changes most often is on top."""
    entries = unpack(program, given.interpreter)
    packages = debian.fetch(OUTPUT / "packages", to_stderr)
    root = debian.root_entries(packages, OUTPUT)
    release, ours = debian.release_of(root["base-files"]), read_versions(ROOT, one)[0]
    system = [entry for found in root.values() for entry in found]
    system += [Entry(path, text.encode(), 0o644) for path, text in _FILES.items()]
    starter = [Entry(_STARTER, _starter(one, given, ours)), Entry(one.name, _STARTER.encode(), 0o777, "link")]
    groups: dict[str, list[Entry]] = {"interpreter": [], "distributions": [], "ours": []}
    mine = _own_paths(one, "")
    for entry in entries:
        ours_too = entry.path.startswith(tuple(f"{path}/" for path in mine)) or entry.path in mine
        name = "ours" if ours_too else "distributions" if entry.path.startswith("app/") else "interpreter"
        groups[name].append(Entry(f"{HOME}/{entry.path}", entry.data, entry.mode))
    groups["ours"] += starter
    layers = [_with_folders([*system, Entry("tmp", mode=0o1777, kind="directory")])]
    layers += [_with_folders(groups[name]) for name in ("interpreter", "distributions", "ours")]
    config: dict[str, object] = {
        "User": f"{USER}:{USER}",
        "ExposedPorts": {"2728/tcp": {}, "2729/tcp": {}},
        "Entrypoint": [f"/{one.name}"],
        "Env": ["PATH=/usr/bin"],
        "WorkingDir": "/",
    }
    own = sbom.Part(
        one.name, ours, f"pkg:generic/{one.name}@{ours}", "Apache-2.0", "application",
        paths=(*_FILES, one.name, *_own_paths(one, f"{HOME}/")),
    )  # fmt: skip
    system_parts = [
        sbom.debian_part(package, [entry.path for entry in root[package.name]], release) for package in packages
    ]
    return (
        layers,
        config,
        [own, sbom.launcher_part(given.launcher, ours, _STARTER), *given.common_parts(one, f"{HOME}/"), *system_parts],
    )


def _starter(one: Program, given: _Inputs, version: str) -> bytes:
    """Return the launcher for a program that is unpacked already: without a shell nothing else can start it by its name."""
    with tempfile.TemporaryDirectory() as folder:
        output, stamp = Path(folder) / one.name, {"version": version, "root": f"/{HOME}"}
        container.write(output, launcher=given.launcher, layers=[], start=start_of(one), stamp=stamp)
        return output.read_bytes()


def _own_paths(one: Program, home: str) -> tuple[str, ...]:
    """Return what is ours of an unpacked program, and the licence texts of all that is in it."""
    return (*(f"{home}app/{package}" for package in one.packages), f"{home}start.pyc", f"{home}licenses")


def _with_folders(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in order, with the folders above them."""
    above = {str(parent) for entry in entries for parent in Path(entry.path).parents} - {"."}
    folders = [Entry(path, kind="directory") for path in above]
    return sorted([*folders, *entries], key=lambda entry: entry.path.split("/"))


def main() -> int:
    """Build; return the exit code."""
    started = time.monotonic()
    try:
        ensure_tools(say=to_stderr, tools=NEEDED)
        for one in PROGRAMS.values():
            image = build(one)
            print(f"{one.name}: {image.manifest.digest}")
            for blob in image.blobs[1:]:
                print(f"  layer {len(blob.content) / 1e6:>6.1f} MB")
            size = sum(len(blob.content) for blob in (image.manifest, *image.blobs))
            print(f"  build/image/{one.name}: {size / 1e6:.1f} MB; parts: build/image/{one.name}.cdx.json", flush=True)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Built the images of {' and '.join(PROGRAMS)} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
