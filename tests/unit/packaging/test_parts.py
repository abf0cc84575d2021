"""Under which licences the parts of a program are; what nobody knows stops a build."""

import json
import re
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from image.sbom import distribution_part
from onefile import parts
from tests.lab.errors import LabError

ROOT = Path(__file__).parents[3]


def install(folder: Path, *headers: str, compiled_in: Sequence[Mapping[str, object]] = ()) -> Path:
    """Put a distribution `thing` with these lines of metadata into a folder, and a bill of materials if it is to have one."""
    info = folder / "thing-1.0.dist-info"
    (info / "sboms").mkdir(parents=True)
    (info / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", "Name: thing", "Version: 1.0", *headers, "", "Text."])
    )
    (info / "RECORD").write_text("thing/__init__.py,,\n")
    if compiled_in:
        (info / "sboms/thing.json").write_text(json.dumps({"components": compiled_in}))
    return folder


def test_every_distribution_of_the_lock_has_a_known_licence() -> None:
    """Each can be told, and no licence is taken for known that none of them has."""
    lock = (ROOT / "requirements/runtime.lock").read_text()
    installed = Path(sysconfig.get_path("purelib"))
    found = {
        name: parts.distribution(installed, name).licence for name in re.findall(r"^([\w-]+)==", lock, re.MULTILINE)
    }
    assert len(found) > 30
    assert found["cryptography"] == "Apache-2.0 OR BSD-3-Clause"
    assert found["hyperframe"] == "MIT"
    assert {word for licence in found.values() for word in licence.split()} - {"AND", "OR"} == parts.LICENSES


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        (("License-Expression: MIT",), "MIT"),
        (("License-Expression: (MIT OR Apache-2.0) AND BSD-3-Clause",), "(MIT OR Apache-2.0) AND BSD-3-Clause"),
        (("License: Apache 2.0", "Classifier: License :: OSI Approved :: Apache Software License"), "Apache-2.0"),
        (("License: UNKNOWN", "Classifier: License :: OSI Approved :: MIT License"), "MIT"),
        (
            ("License: The MIT License", "        Copyright", "Classifier: License :: OSI Approved :: MIT License"),
            "MIT",
        ),
        (("Classifier: Typing :: Typed", "Classifier: License :: OSI Approved :: MIT License"), "MIT"),
    ],
)
def test_a_licence_is_an_expression_of_known_ids(headers: tuple[str, ...], licence: str, tmp_path: Path) -> None:
    """Taken from the expression, else from the field, else from the only classifier; old texts are translated."""
    assert parts.distribution(install(tmp_path, *headers), "thing").licence == licence


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ((), ""),
        (("License: UNKNOWN",), "UNKNOWN"),
        (("License: BSD",), "BSD"),
        (("License: Proprietary", "Classifier: License :: OSI Approved :: MIT License"), "Proprietary"),
        (("License-Expression: GPL-3.0-only",), "GPL-3.0-only"),
        (("License-Expression: MIT AND LicenseRef-Ours",), "MIT AND LicenseRef-Ours"),
        (("License-Expression: Apache-2.0 WITH LLVM-exception",), "Apache-2.0 WITH LLVM-exception"),
        (("License-Expression: MIT Apache-2.0",), "MIT Apache-2.0"),
        (("License-Expression: ()",), "()"),
        (
            ("Classifier: License :: OSI Approved", "Classifier: License :: OSI Approved :: MIT License"),
            "License :: OSI Approved; License :: OSI Approved :: MIT License",
        ),
    ],
)
def test_a_licence_that_is_not_known_stops_the_build(headers: tuple[str, ...], text: str, tmp_path: Path) -> None:
    """One line with the distribution, what it says, and where a licence that has been looked at is to be added."""
    with pytest.raises(LabError) as caught:
        parts.distribution(install(tmp_path, *headers), "thing")
    message = str(caught.value)
    assert message.startswith(f"thing says that its licence is '{text}', ")
    assert "packaging/onefile/parts.py" in message


def test_a_whole_licence_text_in_the_field_is_shown_by_its_beginning(tmp_path: Path) -> None:
    """The message stays one short line."""
    with pytest.raises(LabError, match=r"'Copyright somebody, all rights .*\[\.\.\.\]'") as caught:
        parts.distribution(
            install(tmp_path, "License: Copyright somebody,", *["        all rights reserved"] * 99), "thing"
        )
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_compiled_in_keeps_its_licence_and_openssl_has_one(tmp_path: Path) -> None:
    """A wheel's own bill says the licences of its crates; OpenSSL stands in it without one."""
    crate = {"name": "a", "purl": "pkg:cargo/a@1", "licenses": [{"expression": "Unlicense"}]}
    openssl = {"name": "openssl", "purl": "pkg:generic/openssl@4"}
    install(tmp_path, "License-Expression: MIT", compiled_in=[crate, openssl])
    linked = {one["name"]: one["licenses"] for one in distribution_part(tmp_path, "thing", "app/").linked}
    assert linked == {"a": [{"expression": "Unlicense"}], "openssl": [{"expression": "Apache-2.0"}]}


@pytest.mark.parametrize("licences", [{}, {"licenses": []}])
def test_what_is_compiled_in_without_a_licence_stops_the_build(licences: dict[str, object], tmp_path: Path) -> None:
    """OpenSSL's licence is no other library's; the component and its distribution are named, and where to add it."""
    component = {"name": "libthing", "purl": "pkg:generic/libthing@1", **licences}
    install(tmp_path, "License-Expression: MIT", compiled_in=[component])
    with pytest.raises(LabError, match=r"libthing in thing comes without a licence: .*packaging/image/sbom\.py"):
        distribution_part(tmp_path, "thing", "app/")
