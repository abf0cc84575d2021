"""Which programs there are, and what goes into each: a list that a person can read, and tests hold against the imports."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

_SERVING = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "frozenlist", "idna", "multidict", "propcache", "yarl",
    "annotated-types", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection",
    "cffi", "cryptography",
    "kubernetes-asyncio", "six",
    "prometheus-client", "pyyaml", "structlog",
)  # fmt: skip

NEVER_IMPORTED = frozenset({"certifi", "pycparser", "python-dateutil", "tzdata", "urllib3"})
"""Asked for by what we ship, but not loaded: `agents/kube/lean.py` has stand-ins for them, or only the build would need them."""


@dataclass(frozen=True, slots=True)
class Program:
    """One file to be built.

    Attributes:
        name: of the file.
        main: module with `main`, which returns the exit code.
        packages: ours.
        distributions: of others, all that they import included.
    """

    name: str
    main: str
    packages: tuple[str, ...]
    distributions: tuple[str, ...]


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            name="gardener-node-agent",
            main="nodeagent.cli",
            packages=("agents", "osc", "systemd", "nodeagent"),
            distributions=(
                *_SERVING,
                *("asyncinotify", "brotli", "dbus-next", "grpclib", "h2", "hpack", "hyperframe", "tomli-w"),
            ),
        ),
        Program(
            name="gardenlet",
            main="gardenlet.cli",
            packages=("agents", "gardenlet"),
            distributions=_SERVING,
        ),
    )
}

_STDLIB_LEFT_OUT = frozenset(
    {
        "__phello__", "_ios_support.py", "_android_support.py", "_apple_support.py", "_aix_support.py", "_osx_support.py",
        "_pyrepl", "antigravity.py", "cProfile.py", "compileall.py", "curses", "dbm", "doctest.py", "ensurepip",
        "ftplib.py", "idlelib", "imaplib.py", "lib-dynload", "mailbox.py", "nturl2path.py", "pdb.py", "poplib.py",
        "profile.py", "profiling", "pstats.py", "pydoc.py", "pydoc_data", "site-packages", "smtplib.py", "sqlite3",
        "tabnanny.py", "test", "this.py", "tkinter", "trace.py", "turtle.py", "turtledemo", "unittest",
        "venv", "wave.py", "webbrowser.py", "xmlrpc", "zipapp.py",
    }
)  # fmt: skip
_DISTRIBUTION_LEFT_OUT = (
    # 37 MiB of generated models, and one client class for each API group; see agents/kube/lean.py.
    r"kubernetes_asyncio/(?!__init__|client/[^/]+$)",
    r"pydantic/(v1/|mypy\.py|_hypothesis_plugin)",
    r"aiohttp/(pytest_plugin|test_utils)\.py",
    r"grpclib/(channelz|health|plugin|reflection|testing)[/.]",
    r"frozenlist/_frozenlist\.",  # wants the machine's C++ library; a list in Python takes its place
    r"cffi/",  # cryptography needs the compiled half of it only
    r"asyncinotify/__main__",
    r"(.*/)?(tests?|__pycache__)/",
    r"(.*/)?(test_[^/]*|[^/]*_test)\.py",
    r"(bin|share|include)/",
    r"[^/]*\.dist-info/",
)
_LEFT_OUT = re.compile("|".join(f"(?:{pattern})" for pattern in _DISTRIBUTION_LEFT_OUT))


def stdlib_wanted(path: str) -> bool:
    """Tell whether a file of the standard library goes in; the path is relative to it."""
    top = path.partition("/")[0]
    if top in _STDLIB_LEFT_OUT or top.startswith("config-") or not path.endswith(".py"):
        return False
    return "/test/" not in path and "/tests/" not in path


def distribution_wanted(path: str) -> bool:
    """Tell whether a file of a distribution goes in; the path is relative to the folder of all of them."""
    return path.endswith((".py", ".so")) and not _LEFT_OUT.match(path)


def read_versions(root: Path, program: Program) -> tuple[str, str]:
    """Return our version and the Gardener version that a program speaks, from its own module."""
    module = root / program.main.partition(".")[0] / "version.py"
    values = {
        target.id: node.value.value
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return str(values["VERSION"]), str(values["GARDENER_VERSION"])
