"""The bill of materials of an image, as CycloneDX: each part with version, licence, purl, and the paths that are its own.

Paths are those in the image, or for a one-file program those below the folder into which it is unpacked. Every file belongs
to a part, and a test holds that against the image.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from image.debian import Package
from onefile import parts
from onefile.programs import Program, distribution_wanted
from tests.lab.errors import LabError

SPECIFICATION = "1.6"
_WHEELS_OWN = ("type", "name", "version", "purl", "hashes")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an image.

    Attributes:
        name: of it.
        version: of it; empty if nobody knows.
        purl: its name for the world.
        licence: an SPDX expression, or where the text is.
        kind: CycloneDX's type.
        paths: files and folders that are its own.
        linked: what is compiled into it, as CycloneDX has components.
        sha256: of its one file, if it is one.
    """

    name: str
    version: str
    purl: str
    licence: str
    kind: str = "library"
    paths: tuple[str, ...] = ()
    linked: tuple[Mapping[str, Any], ...] = ()
    sha256: str = ""
    expression: bool = field(default=True)

    def component(self) -> dict[str, Any]:
        """Return it as CycloneDX has it."""
        found: dict[str, Any] = {"type": self.kind, "bom-ref": self.purl, "name": self.name}
        if self.version:
            found["version"] = self.version
        found["purl"] = self.purl
        found["licenses"] = [{"expression": self.licence} if self.expression else {"license": {"name": self.licence}}]
        if self.sha256:
            found["hashes"] = [{"alg": "SHA-256", "content": self.sha256}]
        if self.paths:
            found["evidence"] = {"occurrences": [{"location": path} for path in sorted(self.paths)]}
        if self.linked:
            ordered = sorted(self.linked, key=lambda one: (str(one["purl"]), json.dumps(one)))
            found["components"] = [{**one, "bom-ref": f"{self.purl}#{one['purl']}"} for one in ordered]
        return found


def interpreter_part(version: str, paths: Sequence[str]) -> Part:
    """Return the interpreter with what is linked into it."""
    purl = f"pkg:generic/{parts.INTERPRETER}@{version}"
    linked = tuple(_linked(one) for one in parts.linked_into(parts.INTERPRETER))
    return Part(
        parts.INTERPRETER, version, purl, parts.INTERPRETER_LICENSE, "platform", paths=tuple(paths), linked=linked
    )


def launcher_part(launcher: Path, version: str, *paths: str) -> Part:
    """Return the launcher, with what is linked into it."""
    linked = tuple(_linked(one) for one in parts.linked_into_launcher(launcher.parent).values())
    return Part(
        parts.LAUNCHER, version, f"pkg:generic/gardener-agents-launcher@{version}", "Apache-2.0", "application",
        paths=paths, linked=linked,
    )  # fmt: skip


def _linked(one: parts.Linked) -> dict[str, Any]:
    kind, name = ("golang", "stdlib") if one.name == "go" else ("generic", one.name)
    kind = "golang" if "/" in name else kind
    found = {"type": "library", "name": name}
    if one.version:
        found["version"] = one.version
    purl = f"pkg:{kind}/{name}" + (f"@{one.version}" if one.version else "")
    return {**found, "purl": purl, "licenses": [{"expression": one.licence}]}


def distribution_part(folder: Path, name: str, home: str) -> Part:
    """Return a distribution, its files below `home`.

    Raises:
        LabError: it is not there, or nobody says under which licence it or something compiled into it is.
    """
    one = parts.distribution(folder, name)
    wanted = (path for path in one.files() if distribution_wanted(path))
    tops = {f"{home}{path.partition('/')[0]}" for path in wanted}
    linked: list[dict[str, Any]] = [_linked(library) for library in parts.linked_into(name)]
    for found in one.linked():
        kept = {key: found[key] for key in _WHEELS_OWN if key in found}
        linked.append({"licenses": _licences(found, name), **kept})
    return Part(
        name, one.version, f"pkg:pypi/{name}@{one.version}", one.licence,
        paths=tuple(path.replace(".py", ".pyc") if path.endswith(".py") else path for path in tops),
        linked=tuple(_without_copies(linked)),
    )  # fmt: skip


def _licences(component: Mapping[str, Any], within: str) -> list[Any]:
    """Return the licences of what is compiled into a distribution; OpenSSL is the one that comes without."""
    if stated := component.get("licenses"):
        return list(stated)
    if component["name"] != "openssl":
        raise LabError(
            f"{component['name']} in {within} comes without a licence: find it out, and name it in packaging/image/sbom.py"
        )
    return [{"expression": "Apache-2.0"}]


def _without_copies(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({one["purl"]: one for one in found}.values())


def debian_part(package: Package, paths: Sequence[str], release: str) -> Part:
    """Return a Debian package."""
    version, architecture = package.field("Version"), package.field("Architecture")
    purl = f"pkg:deb/debian/{package.name}@{quote(version, safe='')}?arch={architecture}&distro={release}"
    licence = f"see /usr/share/doc/{package.name}/copyright"
    return Part(package.name, version, purl, licence, paths=tuple(paths), expression=False)


def document(one: Program, version: str, digest: str, created: str | None, found: Sequence[Part]) -> bytes:
    """Return the bill of materials.

    Args:
        one: the program; its own part is the first of `found`.
        version: ours.
        digest: of the image's manifest.
        created: time that the image claims to be from.
        found: all parts.
    """
    image = f"pkg:oci/{one.name}@{quote(digest, safe='')}?arch=amd64&tag={version.removeprefix('v')}"
    metadata: dict[str, Any] = {
        "component": {"type": "container", "bom-ref": image, "name": one.name, "version": version, "purl": image}
    }
    bill = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image)}",
        "version": 1,
        "metadata": ({"timestamp": created} if created else {}) | metadata,
        "components": [part.component() for part in found],
        "dependencies": [
            {"ref": image, "dependsOn": [found[0].purl]},
            {"ref": found[0].purl, "dependsOn": sorted(part.purl for part in found[1:])},
        ],
    }
    return json.dumps(bill, indent=1).encode() + b"\n"
