"""What the parts of a program are: names, versions, licences. Its licence texts and its bill of materials come from here.

Distributions say it themselves, in their metadata. What is linked into the interpreter and into distributions without
being named there is listed here, with a text for each in `licenses/`; a test asks the libraries for their versions.
"""

import email
import email.message
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.errors import LabError

TEXTS = Path(__file__).with_name("licenses")
INTERPRETER = "cpython"
INTERPRETER_LICENSE = "Python-2.0.1"
LAUNCHER = "launcher"
_OURS = "gardener-agents"
_LICENSE_FILE = re.compile(r"(licenses/.+|(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*)", re.IGNORECASE)
_LAUNCHERS = {"go": "BSD-3-Clause", "github.com/klauspost/compress": "BSD-3-Clause AND Apache-2.0 AND MIT"}
LICENSES = frozenset({"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"})
"""SPDX ids of requirements/runtime.lock's distributions; a person looks at any other before it is shipped."""
_BETWEEN_IDS = re.compile(r"[()]|\s+(?:AND|OR|WITH)\s+")
# What metadata of before PEP 639 has, in a field of any text or as a classifier.
_EXPRESSIONS = {
    "Apache 2.0": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
}


@dataclass(frozen=True, slots=True)
class Linked:
    """A library that is linked into another part.

    Attributes:
        within: that part.
        name: of the library, and of its text in `licenses/`.
        version: empty where nothing tells it.
        licence: an SPDX expression.
    """

    within: str
    name: str
    version: str
    licence: str


LINKED = (
    Linked(INTERPRETER, "bzip2", "1.0.8", "bzip2-1.0.6"),
    Linked(INTERPRETER, "expat", "2.8.1", "MIT"),
    Linked(INTERPRETER, "libedit", "20240808-3.1", "BSD-3-Clause"),
    Linked(INTERPRETER, "libffi", "3.4.6", "MIT"),
    Linked(INTERPRETER, "libuuid", "1.0.3", "BSD-3-Clause"),
    Linked(INTERPRETER, "mpdecimal", "4.0.0", "BSD-2-Clause"),
    Linked(INTERPRETER, "ncurses", "6.5", "X11"),
    Linked(INTERPRETER, "openssl", "3.5.7", "Apache-2.0"),
    Linked(INTERPRETER, "sqlite", "3.53.1", "blessing"),
    Linked(INTERPRETER, "xz", "5.8.1", "0BSD"),
    Linked(INTERPRETER, "zlib", "1.3.1", "Zlib"),
    Linked(INTERPRETER, "zstd", "1.5.7", "BSD-3-Clause"),
    Linked("cffi", "libffi", "", "MIT"),
    Linked("pyyaml", "libyaml", "0.2.5", "MIT"),
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution as it lies in the folder of all of them.

    Attributes:
        name: as it says itself.
        version: its version.
        licence: an SPDX expression.
        folder: its `.dist-info`.
    """

    name: str
    version: str
    licence: str
    folder: Path

    def files(self) -> list[str]:
        """Return what was installed with it, relative to the folder of all distributions."""
        return [line.split(",")[0] for line in (self.folder / "RECORD").read_text().splitlines()]

    def license_files(self) -> list[Path]:
        """Return its licence texts."""
        inside = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return [path for path in inside if _LICENSE_FILE.fullmatch(str(path.relative_to(self.folder)))]

    def linked(self) -> list[dict[str, Any]]:
        """Return what its own bills of materials say is compiled into it, as CycloneDX has components."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("sboms/*.json")):
            components = json.loads(path.read_text()).get("components", [])
            found += [one for one in components if one.get("scope") != "excluded"]
        return found


def distribution(folder: Path, name: str) -> Distribution:
    """Return a distribution by its name.

    Raises:
        LabError: it is not in the folder, or its licence is not known.
    """
    found = list(folder.glob(f"{name.replace('-', '_')}-[0-9]*.dist-info"))
    if len(found) != 1:
        raise LabError(f"requirements/runtime.lock does not bring {name}")
    metadata = email.message_from_string((found[0] / "METADATA").read_text())
    return Distribution(name, str(metadata["Version"]), _expression(metadata, name), found[0])


def _expression(metadata: email.message.Message, name: str) -> str:
    """Return an SPDX expression of known licences; a text that is none must be in the table above.

    The first that was stated decides: expression, field, classifiers. So a field that is not known stops the build, whatever
    stands beside it; but one of several lines is the licence's text and not its name, and UNKNOWN is what setuptools wrote.
    """
    field = str(metadata["License"] or "")
    stated = "" if "\n" in field or field == "UNKNOWN" else field
    classifiers = [text for text in map(str, metadata.get_all("Classifier", [])) if text.startswith("License ::")]
    text = str(metadata["License-Expression"] or "") or stated or "; ".join(classifiers) or field
    found = _EXPRESSIONS.get(text, text)
    ids = {part.strip() for part in _BETWEEN_IDS.split(found)} - {""}
    if not ids or not ids <= LICENSES:
        raise LabError(
            f"{name} says that its licence is '{textwrap.shorten(text, 120)}', which is not known here: read its text, and if "
            "it may be shipped, add its SPDX id to LICENSES or this text to _EXPRESSIONS in packaging/onefile/parts.py"
        )
    return found


def linked_into(part: str) -> list[Linked]:
    """Return the libraries of the list above that a part has in it."""
    return [one for one in LINKED if one.within == part]


def linked_into_launcher(folder: Path) -> dict[Path, Linked]:
    """Return what is linked into the launcher, by the licence text that lies beside it: `<name> <version>.txt`."""
    found = {}
    for path in sorted(folder.glob("*.txt")):
        name, _, version = path.stem.replace("_", "/").partition(" ")
        if name not in _LAUNCHERS:
            raise LabError(f"the licence of {name} is not known here")
        found[path] = Linked(LAUNCHER, name, version, _LAUNCHERS[name])
    return found


def texts_of_distributions(folder: Path, names: Iterable[str]) -> str:
    """Return the licence texts of some distributions, and of what is linked into them."""
    return "".join(text for name in names for text in _distribution_texts(distribution(folder, name)))


def _distribution_texts(one: Distribution) -> Iterator[str]:
    files = one.license_files()
    if not files:
        raise LabError(f"{one.name} has no licence text")
    for path in files:
        title = f"{one.name} {one.version}: {path.relative_to(one.folder)}"
        yield _section(title, one.licence, path)
    yield from _linked_texts(one.name)
    if any(part["name"] == "openssl" for part in one.linked()):
        yield _section(f"openssl in {one.name}", "Apache-2.0", TEXTS / "openssl.txt")


def texts_of_interpreter(library: Path, version: str) -> str:
    """Return the licence texts of the interpreter, whose library is given, and of what is linked into it."""
    own = _section(f"{INTERPRETER} {version}", INTERPRETER_LICENSE, library / "LICENSE.txt")
    return own + "".join(_linked_texts(INTERPRETER))


def texts_of_program(root: Path, launcher: Path) -> str:
    """Return our licence, and those of the launcher's modules, which lie beside it."""
    modules = (
        _section(f"{one.name} {one.version} in {LAUNCHER}", one.licence, path)
        for path, one in linked_into_launcher(launcher).items()
    )
    return _section(_OURS, "Apache-2.0", root / "LICENSE") + "".join(modules)


def _linked_texts(part: str) -> Iterator[str]:
    for one in linked_into(part):
        title = " ".join(filter(None, (one.name, one.version, "in", part)))
        yield _section(title, one.licence, TEXTS / f"{one.name}.txt")


def _section(title: str, licence: str, text: Path) -> str:
    return f"{'=' * 120}\n{title} ({licence})\n{'=' * 120}\n\n{text.read_text().strip()}\n\n\n"
