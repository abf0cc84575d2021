"""The house rules that no linter knows."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("agents", "osc", "systemd", "nodeagent", "gardenlet")
LONGEST_MODULE = 500
LONGEST_FUNCTION = 60
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "common", "misc"}


def tracked(pattern: str = "*") -> list[Path]:
    """Return the files that git tracks, or all of them in an exported tree."""
    done = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, check=False, capture_output=True, text=True)
    names = (
        done.stdout.split("\n")
        if done.returncode == 0
        else [str(path.relative_to(ROOT)) for path in ROOT.rglob(pattern)]
    )
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield each function of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def product() -> list[Path]:
    """Return the modules of the product and of the lab."""
    folders = (*PRODUCT, "tests/lab", "tests/bench", "scripts")
    return [
        path
        for path in tracked("*.py")
        if str(path.relative_to(ROOT)).startswith(tuple(f"{name}/" for name in folders))
    ]


def test_modules_and_functions_stay_small() -> None:
    """A module has at most 500 lines, a function at most 60."""
    long = [
        f"{path.relative_to(ROOT)}: {lines}"
        for path in product()
        if (lines := len(path.read_text().splitlines())) > LONGEST_MODULE
    ]
    for path in product():
        for function in functions(path):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > LONGEST_FUNCTION:
                long.append(f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {lines}")
    assert long == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    """A file named utils is a missing name."""
    assert [str(path) for path in tracked("*.py") if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_every_test_has_a_docstring() -> None:
    """A test's docstring is its claim."""
    silent = [
        f"{path.relative_to(ROOT)}::{function.name}"
        for path in tracked("tests/*.py")
        for function in functions(path)
        if function.name.startswith("test_") and ast.get_docstring(function) is None
    ]
    assert silent == []


def test_packaging_is_no_python_package() -> None:
    """A `packaging/__init__.py` would hide the PyPI package of that name."""
    assert not list((ROOT / "packaging").rglob("__init__.py"))


def test_lock_files_name_no_index() -> None:
    """Locks hold names, versions and hashes, and no address of a package registry."""
    for path in (ROOT / "requirements").iterdir():
        text = path.read_text()
        assert "://" not in text, path
        assert "index-url" not in text, path
    pinned = [line for line in (ROOT / "requirements/dev.lock").read_text().splitlines() if "==" in line]
    assert pinned
    assert all(line.endswith("\\") for line in pinned), "each pin is followed by its hashes"


def test_runtime_pins_are_the_development_pins() -> None:
    """What is tested is what is shipped: the runtime lock is a subset of the development lock."""

    def pins(name: str) -> set[str]:
        return set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / f"requirements/{name}.lock").read_text(), re.M))

    assert pins("runtime")
    assert pins("runtime") <= pins("dev")


def test_links_between_documents_lead_somewhere() -> None:
    """Each relative link of a Markdown file exists."""
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in tracked("*.md")
        for target in re.findall(r"\]\(([^)#]+)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize(
    "command", ["demo", "test", "lint", "binary", "deb", "image", "bench", "lab-shell", "lab-down", "documents"]
)
def test_make_has_the_documented_targets(command: str) -> None:
    """Every target that the documents name exists and is listed by `make help`."""
    assert re.search(rf"^{command}:.*## ", (ROOT / "Makefile").read_text(), re.M)


WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\bdate\.today\(|CLOCK_REALTIME")


def test_the_wall_clock_is_asked_in_one_place() -> None:
    """A wall clock jumps. The product reads it through `Clock`, so that tests can make it jump, and times nothing by it."""
    readers = [
        str(path.relative_to(ROOT))
        for folder in PRODUCT
        for path in tracked(f"{folder}/*.py")
        if WALL_CLOCK.search(path.read_text())
    ]
    assert readers == ["agents/core/clock.py"]
