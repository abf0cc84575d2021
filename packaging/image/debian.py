"""The root below gardenlet's program: the C library and the certificate authorities, out of Debian's packages.

Packages come as apt has them for this host's release, signatures checked by apt; which ones they were is in the bill of
materials. Of each only what gardenlet needs is taken: no program, so no shell; their licences; and their control data, by
which scanners recognise what is inside.
"""

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.oci import Entry
from tests.lab.packages import Tool, program
from tests.lab.progress import Say, ticking

TOOLS = (Tool("apt-get", "apt", lambda: program("apt-get")), Tool("dpkg-deb", "dpkg", lambda: program("dpkg-deb")))
NAMES = ("base-files", "ca-certificates", "libc6", "libgcc-s1")
LIBRARIES = (
    "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1",
)  # fmt: skip
"""What the interpreter and the distributions load, and what these load in turn; a test looks into all of them."""
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_SECONDS = 300
"""For one call of apt."""
_LINES, _CHARACTERS = 4, 600
"""Of what one call of apt said, in an error."""
_LIBRARY_FOLDER = "lib/x86_64-linux-gnu"
_PRINTED = re.compile(r"^'\S+' (?P<file>(?P<name>[^\s_]+)_\S+) \d+ SHA256:(?P<sha256>[0-9a-f]{64})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package that was fetched.

    Attributes:
        file: the package.
        control: its control data.
    """

    file: Path
    control: str

    def field(self, name: str) -> str:
        """Return a field of its control data, empty if it has none."""
        match = re.search(rf"^{name}: (.*)$", self.control, re.MULTILINE)
        return match.group(1) if match else ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.field("Package")


def fetch(folder: Path, say: Say) -> list[Package]:
    """Return the packages of this host's release; those that lie in the folder already are not fetched again.

    Raises:
        LabError: apt does not know them, cannot get them, or takes too long; with what it said and what to do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages = _fetch(NAMES, folder, say)
    # The package with the compiler's library has its licence in another one, to which its folder of documents is a link.
    (library,) = (package for package in packages if package.name == "libgcc-s1")
    packages += _fetch([library.field("Depends").split()[0].rstrip(",")], folder, say)
    used = {package.file for package in packages}
    for path in folder.iterdir():
        if path not in used:
            path.unlink()
    return packages


def _fetch(names: Sequence[str], folder: Path, say: Say) -> list[Package]:
    known = _known(names, say)
    files = {name: folder / match["file"] for name, match in known.items()}
    old = [name for name in names if not _has(files[name], known[name]["sha256"])]
    if old:
        with ticking(f"fetching {', '.join(old)}", say), tempfile.TemporaryDirectory(dir=folder.parent) as part:
            done = _apt("download", *old, folder=Path(part))
            if done.returncode != 0:  # most often the lists name versions that the mirror has replaced
                raise LabError(
                    f"apt cannot get {', '.join(old)}: {_last_lines(done.stderr)}; run `apt-get update`, then `make image` again"
                )
            for path in Path(part).iterdir():
                path.replace(folder / path.name)
    return [Package(files[name], run("dpkg-deb", "--field", str(files[name]))) for name in names]


def _known(names: Sequence[str], say: Say) -> dict[str, re.Match[str]]:
    """Return what apt knows of packages, by their names; it reads its lists first if they are not in them."""
    asked, warnings = _apt("download", "--print-uris", *names), ""
    if asked.returncode != 0:
        with ticking("reading Debian's lists of packages", say):
            updated = _apt("update")
        if updated.returncode != 0:
            raise LabError(
                f"apt-get update failed: {_last_lines(updated.stderr)}; repair the source that it names, below /etc/apt, "
                "then run `make image` again"
            )
        warnings = updated.stderr  # a mirror that did not answer is no failure for apt
        asked = _apt("download", "--print-uris", *names)
    known = {match["name"]: match for match in _PRINTED.finditer(asked.stdout)}
    if missing := sorted({*names} - {*known}):
        raise LabError(
            f"apt does not know {', '.join(missing)}: {_last_lines(warnings, asked.stderr)}; run `apt-get update` and "
            f"`apt-cache policy {missing[0]}`: Debian's own packages must be among the sources below /etc/apt"
        )
    return known


def _has(file: Path, sha256: str) -> bool:
    return file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256


def _apt(*arguments: str, folder: Path | None = None, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", *arguments]
    try:
        return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise LabError(
            f"apt-get {arguments[0]} did not end within {seconds:g} s: see whether `apt-get update` reaches the mirrors below "
            "/etc/apt, then run `make image` again"
        ) from error


def _last_lines(*told: str) -> str:
    """Return the end of each of what calls of apt told on stderr, as one line."""
    ends = ["; ".join(text.strip().splitlines()[-_LINES:])[-_CHARACTERS:] for text in told if text.strip()]
    return "; ".join(ends) or "it does not say why"


def root_entries(packages: Sequence[Package], folder: Path) -> dict[str, list[Entry]]:
    """Return what goes in, by the package that it comes from.

    Args:
        packages: all of them.
        folder: for unpacking; nothing stays in it.

    Raises:
        LabError: a library is in none of them.
    """
    found: dict[str, list[Entry]] = {}
    for package in packages:
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            run("dpkg-deb", "--extract", str(package.file), unpacked)
            found[package.name] = [*_wanted(Path(unpacked), package)]
    missing = {*LIBRARIES} - {entry.path.rpartition("/")[2] for entries in found.values() for entry in entries}
    if missing:
        raise LabError(f"no package has {', '.join(sorted(missing))}")
    return found


def _wanted(root: Path, package: Package) -> Iterator[Entry]:
    yield Entry(f"var/lib/dpkg/status.d/{package.name}", package.control.encode(), 0o644)
    for name in LIBRARIES:
        for path in sorted({*root.glob(f"lib*/**/{name}"), *root.glob(f"usr/lib*/**/{name}")}):
            if path.is_symlink():  # in /lib64, where programs look for the loader
                yield Entry(f"lib64/{name}", f"/{_LIBRARY_FOLDER}/{name}".encode(), 0o777, "link")
            else:
                yield Entry(f"{_LIBRARY_FOLDER}/{name}", path.read_bytes(), 0o755)
    document = root / "usr/share/doc" / package.name
    for path in (document, document / "copyright", root / "etc/os-release", root / "usr/lib/os-release"):
        yield from _as_it_is(root, path)
    for path in sorted(root.glob("usr/share/common-licenses/*")):
        yield from _as_it_is(root, path)
    authorities = sorted(root.glob("usr/share/ca-certificates/mozilla/*.crt"))
    if authorities:
        yield Entry(BUNDLE, b"".join(path.read_bytes() for path in authorities), 0o644)
        yield Entry("etc/ssl/cert.pem", b"certs/ca-certificates.crt", 0o777, "link")


def _as_it_is(root: Path, path: Path) -> Iterator[Entry]:
    name = str(path.relative_to(root))
    if path.is_symlink():
        yield Entry(name, str(path.readlink()).encode(), 0o777, "link")
    elif path.is_file():
        yield Entry(name, path.read_bytes(), 0o644)


def release_of(entries: Sequence[Entry]) -> str:
    """Return the name of the release as purls have it, such as debian-12, out of its os-release."""
    (text,) = (entry.data.decode() for entry in entries if entry.path == "usr/lib/os-release")
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return f"{values['ID']}-{values.get('VERSION_ID', 'testing').strip(chr(34))}"
