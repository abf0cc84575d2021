"""What is in a program, with sizes: a short table on the console, and every file in a text beside the build."""

from collections import Counter
from collections.abc import Iterable, Sequence

from onefile.container import Layer, UnpackedFile


def group(file: UnpackedFile) -> str:
    """Return what a file is counted under: a package below `app`, else the kind of thing."""
    top, _, rest = file.path.partition("/")
    if top == "app":
        return rest.partition("/")[0].removesuffix(".pyc").partition(".")[0]
    return {"bin": "interpreter", "lib": "standard library", "licenses": "licences"}.get(top, "start")


def all_files(layers: Iterable[Layer]) -> str:
    """Return one line for each file: bytes, permissions, path; largest first."""
    files = [file for layer in layers for file in layer.files]
    files.sort(key=lambda file: (-file.size, file.path))
    return "".join(f"{file.size:>10} {file.mode:04o} {file.path}\n" for file in files)


def summary(title: str, layers: Sequence[Layer], launcher_bytes: int) -> str:
    """Return the table: bytes packed for each layer, bytes unpacked for each package."""
    files = [file for layer in layers for file in layer.files]
    unpacked = sum(file.size for file in files)
    sizes = Counter[str]()
    for file in files:
        sizes[group(file)] += file.size
    lines = [f"{title}: {len(files)} files, {unpacked / 1e6:.1f} MB unpacked"]
    lines += [f"  {'packed':<24}{'MB':>6}", f"  {'launcher':<24}{launcher_bytes / 1e6:>6.1f}"]
    for layer in layers:
        lines.append(f"  {layer.name.rpartition(': ')[2]:<24}{layer.packed.stat().st_size / 1e6:>6.1f}")
    lines.append(f"  {'unpacked':<24}{'MB':>6}")
    lines += [f"  {name:<24}{size / 1e6:>6.2f}" for name, size in sizes.most_common()]
    return "\n".join(lines)
