"""What goes where in an unpacked program, and packing it in layers, of which only those that changed are packed again.

Layers because the interpreter and the standard library, three quarters of all bytes, take most of the time to pack and
never change while somebody works on ours; and because the launcher unpacks them side by side.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from onefile.container import Layer, UnpackedFile
from onefile.parts import distribution
from onefile.programs import Program, distribution_wanted, stdlib_wanted
from tests.lab.errors import LabError

LEVEL = 19
"""Of zstd: 22 saves 1 % more, and takes twice as long and twice the memory to unpack."""
_AT_ONCE = 2
_ASSEMBLE = Path(__file__).with_name("assemble.py")
# As isolated as with -I, but that would not read the seed, and what a module compiles to can depend on it. It also depends on whether
# modules that do the packing were compiled or loaded: what somebody left in the interpreter's folder is not looked at.
_ISOLATED = ("-P", "-s", "-S", "-B", "-X", "pycache_prefix=/nonexistent")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file to be packed.

    Attributes:
        target: path below the program's folder.
        source: where its content is.
        display: of a module that is to be compiled: its name in tracebacks; empty for all else.
        mode: permissions.
    """

    target: str
    source: Path
    display: str = ""
    mode: int = 0o644


def interpreter_entries(installation: Path, program: Program) -> Iterator[Entry]:
    """Yield the interpreter, under the program's name: that is what a list of processes shows."""
    (executable,) = (installation / "bin").glob("python3.*")
    yield Entry(f"bin/{program.name}", executable, mode=0o755)


def stdlib_entries(installation: Path) -> Iterator[Entry]:
    """Yield the standard library. Its folder for compiled modules must exist, or the interpreter complains; it is empty."""
    (library,) = (installation / "lib").glob("python3.*")
    for path in library.rglob("*"):
        name = str(path.relative_to(library))
        if stdlib_wanted(name):
            yield _module(path, f"lib/{library.name}/{name}", f"{library.name}/{name}")
    yield Entry(f"lib/{library.name}/LICENSE.txt", library / "LICENSE.txt")
    yield Entry(f"lib/{library.name}/lib-dynload/none", Path("/dev/null"))


def distribution_entries(folder: Path, names: Iterable[str]) -> Iterator[Entry]:
    """Yield what is wanted of some distributions.

    Raises:
        LabError: one of them is not in the folder.
    """
    for name in names:
        for path in distribution(folder, name).files():
            if distribution_wanted(path):
                yield _module(folder / path, f"app/{path}", path)


def program_entries(root: Path, program: Program, start: Path) -> Iterator[Entry]:
    """Yield our own modules, and the few lines that start them."""
    for package in program.packages:
        for path in (root / package).rglob("*.py"):
            name = str(path.relative_to(root))
            yield _module(path, f"app/{name}", name)
    yield Entry("start.pyc", start, display="start.py")


def _module(path: Path, target: str, display: str) -> Entry:
    if path.suffix == ".py":
        return Entry(f"{target}c", path, display)
    return Entry(target, path)


def pack(name: str, entries: Iterable[Entry], *, interpreter: Path, folder: Path) -> Layer:
    """Pack a layer, unless one with the very same content was packed before.

    Args:
        name: of the layer, for the listing.
        entries: what goes in; the order does not matter.
        interpreter: compiles and packs.
        folder: where packed layers are kept.

    Raises:
        LabError: something does not compile.
    """
    ordered = sorted(entries, key=lambda entry: entry.target)
    how = f"{LEVEL} {' '.join(_ISOLATED)}"
    digest = hashlib.sha256(_ASSEMBLE.read_bytes() + interpreter.read_bytes() + how.encode())
    for entry in ordered:
        content = hashlib.sha256(entry.source.read_bytes()).hexdigest()
        digest.update(f"{entry.target} {entry.display} {entry.mode} {content}\n".encode())
    packed = folder / f"{digest.hexdigest()[:32]}.zst"
    listing = packed.with_suffix(".json")
    if not listing.exists():
        order = {"output": str(packed), "level": LEVEL, "entries": [asdict(entry) for entry in ordered]}
        done = subprocess.run(
            [interpreter, *_ISOLATED, _ASSEMBLE],
            input=json.dumps(order, default=str),
            env={"PYTHONHASHSEED": "0"},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise LabError(f"the layer {name} was not packed: {done.stderr.strip()[-1500:]}")
    return Layer(name, packed, tuple(UnpackedFile(**file) for file in json.loads(listing.read_text())))


def pack_all(parts: dict[str, list[Entry]], *, interpreter: Path, folder: Path) -> dict[str, Layer]:
    """Pack several layers, two at once; returns them by name. Those that were packed before and are not asked for go."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        packed = list(pool.map(lambda item: pack(*item, interpreter=interpreter, folder=folder), parts.items()))
    used = {layer.packed.with_suffix(suffix).name for layer in packed for suffix in (".zst", ".json")}
    for path in folder.iterdir():
        if path.name not in used:
            path.unlink()
    return dict(zip(parts, packed, strict=True))
