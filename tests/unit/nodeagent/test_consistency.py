"""What differs between an applied OSC and the disk."""

import os
from pathlib import Path

import pytest

from nodeagent.host.consistency import Finding, inspect
from osc.merge import Effective
from osc.types import DropIn, File, FileContent, Inline, Unit


def inline(path: str, data: str, encoding: str = "") -> File:
    """Return a file with inline content."""
    return File(path=path, content=FileContent(inline=Inline(encoding=encoding, data=data)))


def put(root: Path, path: str, content: str) -> None:
    """Write a file below the root."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)


def look(
    root: Path, *, files: tuple[File, ...] = (), units: tuple[Unit, ...] = (), loaded: set[str] | None = None
) -> list[Finding]:
    """Inspect a machine below the root."""
    return list(inspect(Effective(files, units), loaded_units=loaded, root=root))


def test_a_machine_as_it_was_applied_has_no_findings(tmp_path: Path) -> None:
    """Contract 7.11: files in each encoding, a unit with drop-in and an existing filePath are all right."""
    put(tmp_path, "/etc/a", "x")
    put(tmp_path, "/etc/b", "x")
    put(tmp_path, "/etc/systemd/system/u.service", "[Service]\n")
    put(tmp_path, "/etc/systemd/system/u.service.d/10.conf", "d")
    unit = Unit(
        name="u.service", content="[Service]\n", drop_ins=(DropIn(name="10.conf", content="d"),), file_paths=("/etc/a",)
    )
    files = (inline("/etc/a", "x", "plain"), inline("/etc/b", "eA==", "base64"), inline("/etc/empty", ""))
    assert look(tmp_path, files=files, units=(unit,), loaded=set()) == []


@pytest.mark.parametrize(
    ("file", "reason", "path"),
    [
        (inline("/etc/none", "x"), "FileMissing", "/etc/none"),
        (inline("/etc/other", "x"), "FileMismatch", "/etc/other"),
        (inline("/etc/folder", "x"), "FileReadError", "/etc/folder"),
        (inline("/etc/other", "x", "gzip"), "FileUnsupportedEncoding", None),
        (inline("/etc/other", "%", "b64"), "FileDecodeError", None),
    ],
)
def test_each_kind_of_file_trouble_has_its_reason(tmp_path: Path, file: File, reason: str, path: str | None) -> None:
    """Contract 7.11: each difference of a file is reported under its reason; what can be repaired names the path."""
    put(tmp_path, "/etc/other", "y")
    put(tmp_path, "/etc/folder/inside", "")
    (finding,) = look(tmp_path, files=(file,))
    assert (finding.reason, finding.path) == (reason, path)


def test_a_mismatch_tells_both_digests(tmp_path: Path) -> None:
    """Contract 7.11: FileMismatch contains both SHA-256 values."""
    put(tmp_path, "/etc/a", "y")
    (finding,) = look(tmp_path, files=(inline("/etc/a", "x"),))
    assert "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" in finding.message
    assert "a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa" in finding.message


def test_a_huge_file_is_a_mismatch_that_tells_its_size(tmp_path: Path) -> None:
    """Contract 7.11: files, unit files and drop-ins that somebody made a terabyte differ, and are not read for that."""
    paths = ["/etc/a", "/etc/systemd/system/u.service", "/etc/systemd/system/u.service.d/10.conf"]
    for path in paths:
        put(tmp_path, path, "x")
        os.truncate(tmp_path / path.lstrip("/"), 2**40)
    unit = Unit(name="u.service", content="x", enable=True, drop_ins=(DropIn(name="10.conf", content="x"),))
    findings = look(tmp_path, files=(inline("/etc/a", "x"),), units=(unit,), loaded=set())
    assert [finding.reason for finding in findings] == ["FileMismatch", "UnitMismatch", "DropInMismatch"]
    assert findings[0].message.endswith(f"found {2**40} bytes")


def test_w13_units_are_compared_with_file_drop_ins_and_dependencies(tmp_path: Path) -> None:
    """Contract 7.11, 9 W13: unit content, drop-ins and filePaths are really compared."""
    put(tmp_path, "/etc/systemd/system/u.service", "old")
    put(tmp_path, "/etc/systemd/system/u.service.d/20.conf", "old")
    drop_ins = (DropIn(name="10.conf", content="d"), DropIn(name="20.conf", content="new"))
    unit = Unit(name="u.service", content="new", drop_ins=drop_ins, file_paths=("/etc/none", f"/etc/{'n' * 300}"))
    reasons = [finding.reason for finding in look(tmp_path, units=(unit,), loaded=set())]
    assert reasons == ["UnitMismatch", "DropInMissing", "DropInMismatch", "DependencyMissing", "DependencyMissing"]


def test_a_unit_of_the_operating_system_is_found_in_usr(tmp_path: Path) -> None:
    """Contract 7.11: the first of the three directories that has the file counts; a unit without any is missing."""
    put(tmp_path, "/usr/lib/systemd/system/os.service", "x")
    units = (
        Unit(name="os.service"),
        Unit(name="gone.service"),
        Unit(name="ours.service", content="x", file_paths=("/none",)),
    )
    findings = look(tmp_path, units=units, loaded=set())
    assert [(finding.reason, finding.unit) for finding in findings] == [
        ("UnitFileMissing", None),
        ("UnitFileMissing", "ours.service"),
    ]


@pytest.mark.parametrize(
    ("content", "enable", "loaded", "found"),
    [
        ("[Install]\n", True, {"u.service"}, False),
        ("[Install]\n", True, set(), True),
        ("[Install]\n", False, {"u.service"}, True),
        ("[Install]\n", False, set(), False),
        ("[Service]\n", True, set(), False),
        ("[Install]\n", None, set(), False),
        ("[Install]\n", True, None, False),
    ],
)
def test_explicit_enable_is_compared_with_the_loaded_units(
    tmp_path: Path, content: str, enable: bool | None, loaded: set[str] | None, found: bool
) -> None:
    """Contract 7.11: only an explicit `enable` is compared; a unit without [Install] counts as enabled; unknown is silent."""
    put(tmp_path, "/etc/systemd/system/u.service", content)
    findings = look(tmp_path, units=(Unit(name="u.service", content=content, enable=enable),), loaded=loaded)
    assert [finding.reason for finding in findings] == (["UnitEnableMismatch"] if found else [])
