"""The images that `make image` built, looked at with tools that had no part in building them."""

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from image.build import HOME, OUTPUT, ROOT, USER, build, tag_of
from image.debian import LIBRARIES
from image.unpack import unpack
from onefile import inputs, parts
from onefile.build import WORK
from onefile.programs import PROGRAMS, read_versions
from tests.lab.binaries import cache_root
from tests.lab.golang import find_go
from tests.lab.packages import TOOLS, ensure_tools
from tests.lab.progress import to_stderr

_SHELLS = re.compile(r"(.*/)?(ba|da|a|k|z|fi)?sh|.*/(busybox|toybox|env|perl)")
_VERSIONS = """\
import bz2, ctypes, decimal, lzma, readline, sqlite3, ssl, zlib, _curses, pyexpat, uuid
from compression import zstd
print(ssl.OPENSSL_VERSION.split()[1], zlib.ZLIB_RUNTIME_VERSION, pyexpat.EXPAT_VERSION.removeprefix("expat_"))
print(sqlite3.sqlite_version, decimal.__libmpdec_version__, zstd.zstd_version, *_curses.ncurses_version[:2])
"""


@pytest.fixture(scope="module")
def images() -> Path:
    """The folder that `make image` leaves; the tools to look into it are there."""
    ensure_tools(say=to_stderr, tools=[tool for tool in TOOLS if tool.name in {"skopeo", "umoci", "unshare"}])
    subprocess.run(["make", "image"], check=True, cwd=ROOT, capture_output=True, timeout=900)
    return OUTPUT


@pytest.fixture(scope="module")
def roots(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The root of each image, as another tool unpacks it."""
    folder = tmp_path_factory.mktemp("roots")
    for name, program in PROGRAMS.items():
        reference = f"{images / name}:{tag_of(program)}"
        subprocess.run(["umoci", "unpack", "--image", reference, folder / name], check=True, capture_output=True)
    return {name: folder / name / "rootfs" for name in PROGRAMS}


@pytest.fixture(scope="module")
def installation() -> Path:
    """The interpreter's installation, as it was fetched."""
    return inputs.fetch_interpreter(WORK, find_go(cache_root() / "go", to_stderr), to_stderr)[0]


def files_in(root: Path) -> list[str]:
    """Return all that is not a folder, without a leading slash."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file())


def settings(images: Path, name: str) -> dict[str, Any]:
    """Return an image's configuration, as skopeo reads it."""
    reference = f"oci:{images / name}:{tag_of(PROGRAMS[name])}"
    told = subprocess.run(["skopeo", "inspect", "--config", reference], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in gardenlet's root as a Pod would: read-only, as its user, with a device for random numbers."""
    lines = (
        "set -e; mount -t tmpfs tmpfs /mnt; mkdir /mnt/upper /mnt/work /mnt/root",
        f'mount -t overlay -o "lowerdir={root},upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root; cd /mnt/root',
        "mkdir dev; mknod -m 666 dev/urandom c 1 9; mount -o remount,ro .",
        f'exec chroot --userspec={USER}:{USER} --groups={USER} . "$@"',
    )
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "sh", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def test_the_node_agents_image_has_one_file(roots: dict[str, Path]) -> None:
    """Contract 8.1: `/gardener-node-agent`, executable, the very bytes of `make binary`, and nothing else."""
    root = roots["gardener-node-agent"]
    assert [str(path.relative_to(root)) for path in root.rglob("*")] == ["gardener-node-agent"]
    file = root / "gardener-node-agent"
    assert file.stat().st_mode & 0o7777 == 0o755
    assert file.read_bytes() == (ROOT / "build/bin/gardener-node-agent").read_bytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_image_says_what_it_is(images: Path, name: str) -> None:
    """Version, revision and Gardener's version are labels, the tag is the version; gardenlet's user is no root."""
    found = settings(images, name)
    labels, (ours, gardener) = found["config"]["Labels"], read_versions(ROOT, PROGRAMS[name])
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (labels["org.opencontainers.image.version"], labels["cloud.gardener.version"]) == (ours, gardener)
    assert labels.get("org.opencontainers.image.revision", "").removesuffix("-dirty") == head.stdout.strip()
    assert (found["os"], found["architecture"]) == ("linux", "amd64")
    assert found["config"].get("User") == {"gardenlet": "65532:65532"}.get(name)


def test_gardenlet_runs_without_root_in_a_read_only_root(images: Path, roots: dict[str, Path]) -> None:
    """Its entrypoint starts with the image's user, a root that cannot be written, and no /proc."""
    command = settings(images, "gardenlet")["config"]["Entrypoint"]
    done = run(roots["gardenlet"], *command, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"gardenlet v1\.150\.0 \(gardener-agents v\d+\.\d+\.\d+\)\n", done.stdout)
    assert run(roots["gardenlet"], "gardenlet", "--version").stdout == done.stdout, "as `kubectl exec` would start it"
    interpreter = [f"/{HOME}/bin/gardenlet", "-I", "-S", "-B", "-c"]
    asked = run(roots["gardenlet"], *interpreter, "import os; print(os.getuid(), os.getgid(), os.access('/', os.W_OK))")
    assert asked.stdout == f"{USER} {USER} False\n", asked.stderr
    trusted = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    assert int(run(roots["gardenlet"], *interpreter, trusted).stdout) > 100


def test_every_module_of_gardenlet_can_be_loaded(roots: dict[str, Path]) -> None:
    """Each module of ours, with all that it imports, upon the libraries that are in the image."""
    script = (Path(__file__).parent / "load_all.py").read_text()
    ours = ",".join(PROGRAMS["gardenlet"].packages)
    done = run(
        roots["gardenlet"], f"/{HOME}/bin/gardenlet", "-I", "-S", "-B", "-OO", "-c", script, f"/{HOME}", ours
    )  # fmt: skip
    assert done.stdout.endswith("loaded\n"), done.stdout + done.stderr


def test_gardenlets_image_has_no_shell_and_no_other_program(roots: dict[str, Path]) -> None:
    """Executable are launcher, interpreter and libraries; no shell by any name, no setuid, nothing for others to write but /tmp."""
    root = roots["gardenlet"]
    assert [path for path in files_in(root) if _SHELLS.fullmatch(path)] == []
    programs, libraries = set[str](), set[str]()
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        assert path.is_symlink() or not mode & 0o6022 or path == root / "tmp", path
        assert (path.lstat().st_uid, path.lstat().st_gid) == (0, 0), path
        if path.is_file() and not path.is_symlink() and mode & 0o111:
            (libraries if path.name in LIBRARIES else programs).add(str(path.relative_to(root)))
    assert programs == {"usr/bin/gardenlet", f"{HOME}/bin/gardenlet"}
    assert {Path(path).name for path in libraries} == {*LIBRARIES}


def test_every_library_that_is_needed_is_in_the_image(roots: dict[str, Path]) -> None:
    """What the interpreter, the distributions' libraries and the system's ask for is there, and nothing that nobody asks for."""
    root, needed = roots["gardenlet"], set[str]()
    for path in root.rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            told = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
            needed |= set(re.findall(r"NEEDED.*\[(.*)\]", told))
    there = {path.name for path in (root / "lib/x86_64-linux-gnu").iterdir()}
    assert needed == there


@pytest.mark.parametrize(
    ("document", "name"), [("docs/operations.md", "gardener-node-agent"), ("packaging/README.md", "gardenlet")]
)
def test_the_documented_copy_takes_all_of_it(images: Path, tmp_path: Path, document: str, name: str) -> None:
    """The command of the document, with a folder in the place of its registry: what arrives has the digest of what was built."""
    assert images == ROOT / "build/image"
    (command,) = re.findall(
        rf"^skopeo copy (oci:build/image/{name}:\S+) docker://\S+$", (ROOT / document).read_text(), re.M
    )
    arrived = f"oci:{tmp_path}/arrived:tag"
    subprocess.run(["skopeo", "copy", command, arrived], check=True, cwd=ROOT, capture_output=True, timeout=120)
    asked = [["skopeo", "inspect", "--format", "{{.Digest}}", reference] for reference in (command, arrived)]
    built, seen = (subprocess.run(one, check=True, cwd=ROOT, capture_output=True).stdout for one in asked)
    assert built == seen != b""


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_builds_give_one_digest(images: Path, tmp_path: Path, name: str) -> None:
    """Another build in another folder gives the same image, by its digest, and the same bill of materials."""
    again = build(PROGRAMS[name], tmp_path)
    (entry,) = json.loads((images / name / "index.json").read_text())["manifests"]
    assert again.manifest.digest == entry["digest"]
    assert (tmp_path / f"{name}.cdx.json").read_bytes() == (images / f"{name}.cdx.json").read_bytes()


def all_components(bill: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield components with those that are inside of them."""
    yield bill["metadata"]["component"]
    for component in bill["components"]:
        yield component
        yield from component.get("components", [])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bill_of_materials_has_what_cyclonedx_asks_for(images: Path, name: str) -> None:
    """Format, number, image; of each part type, name, purl, licence and a reference of its own; dependencies lead somewhere."""
    bill = json.loads((images / f"{name}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    (entry,) = json.loads((images / name / "index.json").read_text())["manifests"]
    assert entry["digest"].replace(":", "%3A") in bill["metadata"]["component"]["purl"]
    found = list(all_components(bill))
    references = [component["bom-ref"] for component in found]
    assert len(references) == len(set(references))
    for component in found:
        assert component["type"] in {"application", "container", "library", "platform"}
        assert component["name"]
        assert component["purl"].startswith("pkg:")
    for component in found[1:]:
        (licence,) = component["licenses"]
        assert licence.get("expression") or licence["license"]["name"], component
    unknown = [component["purl"] for component in found if not component.get("version")]
    assert unknown == ["pkg:generic/libffi"], "only one library does not tell its version"
    for dependency in bill["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= set(references)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bill_of_materials_is_complete(images: Path, roots: dict[str, Path], installation: Path, name: str) -> None:
    """Each file belongs to exactly one part, each part has files, but for the launcher that is one with them; distributions are those that are pinned."""
    bill = json.loads((images / f"{name}.cdx.json").read_text())
    if name == "gardenlet":
        files = files_in(roots[name])
    else:
        interpreter = next((installation / "bin").glob("python3.*"))
        files = [entry.path for entry in unpack(roots[name] / name, interpreter)]
    places = {
        component["name"]: [place["location"] for place in component.get("evidence", {}).get("occurrences", [])]
        for component in bill["components"]
    }
    for path in files:
        owners = [
            part for part, own in places.items() for place in own if path == place or path.startswith(f"{place}/")
        ]
        assert len(owners) == 1, (path, owners)
    for part, own in places.items():
        assert own or (part, name) == (parts.LAUNCHER, "gardener-node-agent"), part
        for place in own:
            assert any(path == place or path.startswith(f"{place}/") for path in files), (part, place)
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements/runtime.lock").read_text(), re.M))
    wheels = {one["name"]: one["version"] for one in bill["components"] if one["purl"].startswith("pkg:pypi/")}
    assert wheels == {one: pinned[one] for one in PROGRAMS[name].distributions}


def test_the_system_below_gardenlet_can_be_recognised(images: Path, roots: dict[str, Path]) -> None:
    """Debian's packages in the image are those of the bill, by control data as scanners read it, with version and licence."""
    bill = json.loads((images / "gardenlet.cdx.json").read_text())
    listed = {one["name"]: one["version"] for one in bill["components"] if one["purl"].startswith("pkg:deb/debian/")}
    status = roots["gardenlet"] / "var/lib/dpkg/status.d"
    assert listed == {path.name: re.findall(r"^Version: (.+)$", path.read_text(), re.M)[0] for path in status.iterdir()}
    assert {"libc6", "libgcc-s1", "ca-certificates"} <= set(listed)
    for package in listed:
        document = roots["gardenlet"] / "usr/share/doc" / package
        assert (
            (document.parent / document.readlink() if document.is_symlink() else document)
            .joinpath("copyright")
            .read_text()
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_licences_of_all_that_is_inside_are_inside(roots: dict[str, Path], installation: Path, name: str) -> None:
    """Ours, the interpreter's, each distribution's texts and those of what is linked into them are in the program's files."""
    interpreter = next((installation / "bin").glob("python3.*"))
    entries = unpack(ROOT / "build/bin" / name, interpreter)
    texts = "\n".join(entry.data.decode() for entry in entries if entry.path.startswith("licenses/"))
    if name == "gardenlet":
        assert len(list((roots[name] / HOME / "licenses").iterdir())) == 3
    distributions = next(WORK.glob("distributions-*"))
    for one in PROGRAMS[name].distributions:
        files = parts.distribution(distributions, one).license_files()
        assert files, one
        for path in files:
            assert path.read_text().strip() in texts, path
    wanted = [ROOT / "LICENSE", next((installation / "lib").glob("python3.*")) / "LICENSE.txt"]
    inside = {parts.INTERPRETER, *PROGRAMS[name].distributions}
    wanted += [parts.TEXTS / f"{one.name}.txt" for one in parts.LINKED if one.within in inside]
    for path in wanted:
        assert path.read_text().strip() in texts, path


def test_libraries_in_the_interpreter_have_the_versions_that_are_listed(installation: Path) -> None:
    """Each library that can be asked says the version that the bill of materials has for it."""
    interpreter = next((installation / "bin").glob("python3.*"))
    told = subprocess.run([interpreter, "-I", "-B", "-c", _VERSIONS], check=True, capture_output=True, text=True).stdout
    openssl, zlib, expat, sqlite, mpdecimal, zstd, *ncurses = told.split()
    listed = {one.name: one.version for one in parts.linked_into(parts.INTERPRETER)}
    assert (openssl, zlib, expat) == (listed["openssl"], listed["zlib"], listed["expat"])
    assert (sqlite, mpdecimal, zstd) == (listed["sqlite"], listed["mpdecimal"], listed["zstd"])
    assert ".".join(ncurses) == listed["ncurses"]
    assert {path.stem for path in parts.TEXTS.iterdir()} == {one.name for one in parts.LINKED}
