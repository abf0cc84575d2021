"""Build the programs, one file each: `build/bin/gardener-node-agent` and `build/bin/gardenlet`.

See packaging/README.md for what such a file is, and why.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # found from anywhere; and not from this folder, whose names are no modules of their own
    sys.path[0:1] = [str(ROOT), str(ROOT / "packaging")]

from onefile import container, inputs, layers, listing, parts  # noqa: E402 - found only with the path above
from onefile.programs import PROGRAMS, Program, read_versions  # noqa: E402
from tests.lab.binaries import cache_root  # noqa: E402
from tests.lab.errors import LabError  # noqa: E402
from tests.lab.golang import find_go  # noqa: E402
from tests.lab.packages import Tool, ensure_tools, program  # noqa: E402
from tests.lab.progress import to_stderr  # noqa: E402

OUTPUT = ROOT / "build" / "bin"
WORK = ROOT / "build" / "onefile"
NEEDED = (Tool("strip", "binutils", lambda: program("strip")),)
MOST_BYTES = 35_000_000

_START = """\
import sys

sys.path.append(__file__.rpartition("/")[0] + "/app")

from {main} import main

raise SystemExit(main())
"""
# Isolated, without `site`, never writing compiled modules, as if optimised, and UTF-8 whatever the locale.
_ARGUMENTS = ("-I", "-S", "-B", "-OO", "-X", "utf8", "{root}/start.pyc")


def build(wanted: list[Program], output: Path = OUTPUT, *, layers_folder: Path = WORK / "layers") -> None:
    """Build programs and print what is in them.

    Args:
        wanted: which.
        output: folder for the files.
        layers_folder: where packed layers are kept, for the next build.

    Raises:
        LabError: something is missing, does not compile, or has grown too large.
    """
    ensure_tools(say=to_stderr, tools=NEEDED)
    output.mkdir(parents=True, exist_ok=True)
    go = find_go(cache_root() / "go", to_stderr)
    installation, version = inputs.fetch_interpreter(WORK, go, to_stderr)
    distributions = inputs.fetch_distributions(WORK, version, to_stderr)
    launcher = inputs.build_launcher(WORK, go, to_stderr)
    content: dict[str, list[layers.Entry]] = {}
    for one in wanted:
        start = WORK / f"start-{one.name}.py"
        start.write_text(_START.format(main=one.main))
        content |= {
            f"{one.name}: interpreter": list(layers.interpreter_entries(installation, one)),
            f"{one.name}: distributions": [
                *layers.distribution_entries(distributions, one.distributions),
                _licenses(one, "distributions", parts.texts_of_distributions(distributions, one.distributions)),
            ],
            f"{one.name}: ours": [
                *layers.program_entries(ROOT, one, start),
                _licenses(one, one.name, parts.texts_of_program(ROOT, launcher.parent)),
            ],
        }
    library = next((installation / "lib").glob("python3.*"))
    texts = parts.texts_of_interpreter(library, version)
    content["standard library"] = [*layers.stdlib_entries(installation), _licenses(None, "interpreter", texts)]
    interpreter = next((installation / "bin").glob("python3.*"))
    packed = layers.pack_all(content, interpreter=interpreter, folder=layers_folder)
    for one in wanted:
        own = [layer for name, layer in packed.items() if name.partition(":")[0] in (one.name, "standard library")]
        _write(one, own, launcher, output)


def start_of(one: Program) -> container.Start:
    """Return what the launcher becomes."""
    return container.Start(one.name, f"bin/{one.name}", _ARGUMENTS)


def _licenses(one: Program | None, name: str, text: str) -> layers.Entry:
    """Return the file with the licence texts of a layer. One file, not a hundred: each file costs time at each start."""
    path = WORK / f"licenses-{one.name if one else 'all'}-{name}.txt"
    path.write_text(text)
    return layers.Entry(f"licenses/{name}.txt", path)


def _write(one: Program, own: list[container.Layer], launcher: Path, output: Path) -> None:
    ours, gardener = read_versions(ROOT, one)
    file = output / one.name
    container.write(
        file,
        launcher=launcher,
        layers=own,
        start=start_of(one),
        stamp={"version": ours, "gardenerVersion": gardener},
    )
    (WORK / f"{one.name}.files.txt").write_text(listing.all_files(own))
    print(listing.summary(f"{one.name} {ours}, for Gardener {gardener}", own, launcher.stat().st_size))
    size = file.stat().st_size
    print(f"  build/bin/{one.name}: {size / 1e6:.1f} MB; each file: build/onefile/{one.name}.files.txt\n", flush=True)
    if size > MOST_BYTES:
        raise LabError(f"{one.name} has {size} bytes, more than {MOST_BYTES}")


def main() -> int:
    """Build; return the exit code."""
    started = time.monotonic()
    try:
        build(list(PROGRAMS.values()))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Built {' and '.join(PROGRAMS)} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
