"""Every place that names our version names the same, and `make release-check` notices one that does not."""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("pyproject.toml", "CHANGELOG.md", "nodeagent/version.py", "gardenlet/version.py"),
    "packaging/charts/gardenlet/Chart.yaml",
)
PROGRAMS = ("gardener-node-agent", "gardenlet")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    command = [sys.executable, str(ROOT / "scripts/release_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def version() -> str:
    """Return what pyproject.toml says."""
    match = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert match is not None
    return match[1]


def program(path: Path, ours: str, gardener: str) -> None:
    """Write a program that does nothing but say its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{json.dumps({'version': f'v{ours}', 'gardenerVersion': gardener})}'\n")
    path.chmod(0o755)


def package(tree: Path, name: str, *, file: str, control: str, manual: str) -> None:
    """Build a package with nothing but a man page."""
    content = tree / f"build/content/{name}"
    page = content / f"usr/share/man/man8/{name}.8.gz"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_bytes(gzip.compress(f'.TH "{name}" "8" "" "gardener-agents {manual}" "x"\n'.encode()))
    (content / "DEBIAN").mkdir(exist_ok=True)
    fields = f"Package: {name}\nVersion: {control}\nArchitecture: amd64\nMaintainer: a <a@b.invalid>\nDescription: a\n"
    (content / "DEBIAN/control").write_text(fields)
    output = tree / "build/deb"
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob(f"{name}_*"):
        old.unlink()
    target = output / f"{name}_{file}_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", str(content), str(target)], check=True, capture_output=True, timeout=60)


def image(tree: Path, name: str, *, tag: str, label: str, bill: str, gardener: str = "") -> None:
    """Write the layout of an image without layers, and its bill of materials."""
    folder = tree / f"build/image/{name}"
    (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)

    def blob(content: object) -> dict[str, str]:
        text = json.dumps(content)
        digest = hashlib.sha256(text.encode()).hexdigest()
        (folder / "blobs/sha256" / digest).write_text(text)
        return {"digest": f"sha256:{digest}"}

    labels = {"org.opencontainers.image.version": f"v{label}", "cloud.gardener.version": gardener or speaks()}
    entry = blob({"config": blob({"config": {"Labels": labels}})})
    annotations = {"org.opencontainers.image.ref.name": tag}
    (folder / "index.json").write_text(json.dumps({"manifests": [{**entry, "annotations": annotations}]}))
    document = {"metadata": {"component": {"version": f"v{bill}"}}}
    (tree / f"build/image/{name}.cdx.json").write_text(json.dumps(document))


def speaks() -> str:
    """Return the Gardener version of this build."""
    found = re.search(r'^GARDENER_VERSION = "(.+)"', (ROOT / "gardenlet/version.py").read_text(), re.M)
    assert found is not None
    return found[1]


@pytest.fixture
def with_images(tree: Path) -> Path:
    """The same with a Makefile that can build images, and these."""
    (tree / "Makefile").write_text("deb: binary\nimage: binary\n")
    for name in PROGRAMS:
        image(tree, name, tag=version(), label=version(), bill=version())
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in which everything was built, and all places agree."""
    for name in SOURCES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "Makefile").write_text("deb: binary\n")
    for name in PROGRAMS:
        program(tmp_path / "build/bin" / name, version(), speaks())
        package(tmp_path, name, file=version(), control=version(), manual=version())
    return tmp_path


def test_the_sources_agree() -> None:
    """The source tree as it is: pyproject, changelog, both programs and the chart have one version."""
    done = check("--tree", str(ROOT), "--sources")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("6 places, 0 differences\n")


def test_all_places_agree(tree: Path) -> None:
    """14 places: besides the sources each program's `version`, its package's name, control file and man page."""
    done = check("--tree", str(tree))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("14 places, 0 differences\n")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("nodeagent/version.py", "nodeagent/version.py"),
        ("gardenlet/version.py", "gardenlet/version.py"),
    ],
)
def test_another_version_in_a_source_is_named(name: str, place: str, tree: Path) -> None:
    """Exit code 1, and the place with both versions."""
    path = tree / name
    path.write_text(path.read_text().replace(version(), "9.9.9", 1))
    done = check("--tree", str(tree))
    assert done.returncode == 1
    assert done.stderr == f"error: {place} says 9.9.9, pyproject.toml says {version()}\n"


def test_another_version_in_pyproject_is_against_all_others(tree: Path) -> None:
    """It is what all others are compared with."""
    path = tree / "pyproject.toml"
    path.write_text(path.read_text().replace(f'version = "{version()}"', 'version = "9.9.9"'))
    done = check("--tree", str(tree))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 13


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_another_version_in_the_chart_is_named(field: str, tree: Path) -> None:
    """The chart has two of them."""
    path = tree / "packaging/charts/gardenlet/Chart.yaml"
    path.write_text(re.sub(rf"^{field}: .*$", f"{field}: 9.9.9", path.read_text(), flags=re.M))
    done = check("--tree", str(tree))
    assert done.returncode == 1
    assert (
        done.stderr
        == f"error: packaging/charts/gardenlet/Chart.yaml {field} says 9.9.9, pyproject.toml says {version()}\n"
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_was_built_of_something_else_is_named(name: str, tree: Path) -> None:
    """Our version, and the Gardener version that both programs have to speak."""
    program(tree / "build/bin" / name, "9.9.9", "v9.0.0")
    done = check("--tree", str(tree))
    assert done.returncode == 1
    ours, gardener = done.stderr.splitlines()
    assert ours == f"error: {name} version says 9.9.9, pyproject.toml says {version()}"
    assert gardener.startswith(f"error: {name} version says v9.0.0, nodeagent/version.py says v1.")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("part", "place"), [("file", "name"), ("control", "control"), ("manual", "man page")])
def test_a_package_with_another_version_is_named(name: str, part: str, place: str, tree: Path) -> None:
    """File name, control file and man page."""
    package(tree, name, **{**dict.fromkeys(("file", "control", "manual"), version()), part: "9.9.9"})
    done = check("--tree", str(tree))
    assert done.returncode == 1
    assert done.stderr == f"error: {name}.deb {place} says 9.9.9, pyproject.toml says {version()}\n"


def test_images_count_where_they_are_built(with_images: Path) -> None:
    """Six places more: tag, label and bill of materials of each."""
    done = check("--tree", str(with_images))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("20 places, 0 differences\n")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("part", "place"), [("tag", "image tag"), ("label", "image label"), ("bill", "bill of materials")]
)
def test_an_image_with_another_version_is_named(name: str, part: str, place: str, with_images: Path) -> None:
    """Tag, label and bill of materials."""
    image(with_images, name, **{**dict.fromkeys(("tag", "label", "bill"), version()), part: "9.9.9"})
    done = check("--tree", str(with_images))
    assert done.returncode == 1
    assert done.stderr == f"error: {name} {place} says 9.9.9, pyproject.toml says {version()}\n"


def test_an_image_for_another_gardener_is_named(with_images: Path) -> None:
    """The label from which an operator knows the configuration file's name."""
    image(with_images, "gardenlet", tag=version(), label=version(), bill=version(), gardener="v1.1.1")
    done = check("--tree", str(with_images))
    assert done.returncode == 1
    assert done.stderr == f"error: gardenlet image label says v1.1.1, nodeagent/version.py says {speaks()}\n"


def test_what_was_not_built_is_a_difference(tree: Path) -> None:
    """A place that cannot be read never counts as equal."""
    next((tree / "build/deb").glob("gardenlet_*")).unlink()
    done = check("--tree", str(tree))
    assert done.returncode == 1
    assert "gardenlet.deb name says unreadable: 0 packages of gardenlet in build/deb" in done.stderr
