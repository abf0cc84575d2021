"""What goes into a one-file program, held against what is imported."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from agents.kube import lean
from onefile.programs import NEVER_IMPORTED, PROGRAMS, Program, distribution_wanted, read_versions, stdlib_wanted

ROOT = Path(__file__).parents[3]


def normal(name: str) -> str:
    """Return a distribution's name as locks write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(program: Program) -> Iterator[str]:
    """Yield what our modules of a program import, wherever in the module, and what they load by its name."""
    yield from lean.EXPORTS.values()
    for package in program.packages:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    yield str(node.module)


def required(name: str) -> set[str]:
    """Return the distributions that another one asks for on this platform, extras not counted."""
    found = set()
    for line in metadata.requires(name) or []:
        if "extra ==" not in line and "win32" not in line and not re.search(r"python_version < .3\.1[0-4]", line):
            found.add(normal(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0]))
    return found


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_every_import_is_shipped_and_nothing_else(program: Program) -> None:
    """Each import of ours is of ours, of the standard library or of a listed distribution; each of those is needed."""
    owners = metadata.packages_distributions()
    ours, needed = set(program.packages), set[str]()
    for name in imported(program):
        top = name.partition(".")[0]
        if top not in ours and top not in sys.stdlib_module_names:
            needed |= {normal(owner) for owner in owners[top]}
    waiting = list(needed)
    while waiting:
        more = required(waiting.pop()) - needed - NEVER_IMPORTED
        needed |= more
        waiting += more
    assert set(program.distributions) == needed


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_no_import_is_of_a_part_that_is_left_out(program: Program) -> None:
    """What our modules import of the standard library and of distributions is wanted, module by module."""
    left_out = []
    for name in sorted(set(imported(program))):
        top, path = name.partition(".")[0], name.replace(".", "/")
        if top in program.packages:
            continue
        wanted = stdlib_wanted if top in sys.stdlib_module_names else distribution_wanted
        if not (wanted(f"{path}.py") or wanted(f"{path}/__init__.py")):
            left_out.append(name)
    assert left_out == []


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("asyncio/events.py", True),
        ("encodings/utf_8.py", True),
        ("encodings/utf_32_be.py", True),
        ("test/test_os.py", False),
        ("idlelib/run.py", False),
        ("tkinter/__init__.py", False),
        ("ensurepip/__init__.py", False),
        ("unittest/mock.py", False),
        ("lib-dynload/_testcapi.cpython-314-x86_64-linux-gnu.so", False),
        ("config-3.14-x86_64-linux-gnu/Makefile", False),
        ("build-details.json", False),
    ],
)
def test_what_of_the_standard_library_goes_in(path: str, wanted: bool) -> None:
    """Modules that run go in; tests, tools for people and for compiling do not."""
    assert stdlib_wanted(path) is wanted


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("aiohttp/client.py", True),
        ("aiohttp/_http_parser.cpython-314-x86_64-linux-gnu.so", True),
        ("aiohttp/_http_parser.pyx", False),
        ("aiohttp/test_utils.py", False),
        ("kubernetes_asyncio/__init__.py", True),
        ("kubernetes_asyncio/client/__init__.py", True),
        ("kubernetes_asyncio/client/api_client.py", True),
        ("kubernetes_asyncio/client/models/v1_pod.py", False),
        ("kubernetes_asyncio/client/api/core_v1_api.py", False),
        ("kubernetes_asyncio/config/kube_config_test.py", False),
        ("_cffi_backend.cpython-314-x86_64-linux-gnu.so", True),
        ("cffi/api.py", False),
        ("pydantic/v1/main.py", False),
        ("pydantic-2.14.3.dist-info/METADATA", False),
        ("yaml/__init__.py", True),
    ],
)
def test_what_of_a_distribution_goes_in(path: str, wanted: bool) -> None:
    """Modules and shared libraries go in; generated models, tests, sources and metadata do not."""
    assert distribution_wanted(path) is wanted


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_versions_are_read_without_importing(program: Program) -> None:
    """Contract 1.3: ours and the Gardener version that a program speaks, as its own module says."""
    ours, gardener = read_versions(ROOT, program)
    assert re.fullmatch(r"v\d+\.\d+\.\d+", ours)
    assert gardener == "v1.150.0"
