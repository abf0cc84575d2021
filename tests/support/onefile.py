"""Small one-file programs that start in milliseconds, and a root of their own to start them in."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onefile import container, inputs, layers
from onefile.container import Layer, Start
from tests.lab.binaries import cache_root
from tests.lab.golang import find_go
from tests.lab.packages import static_busybox
from tests.lab.progress import to_stderr

WORK = inputs.ROOT / "build" / "onefile"
NAME = "example"
HOME = f".{NAME}.unpacked"
FOLDERS = ("opt/bin", f"var/lib/{NAME}", "run")
FILES = 200
WITH_PROC = "mount --bind /proc proc"

# busybox's shell: says what it was started with, loads a file of its folder late, as an interpreter does, and may wait.
_SCRIPT = """\
root=${0%/start.sh}
echo "version VERSION pid $$ root $root"
for argument; do echo "argument $argument"; done
export -p
[ "$1" = wait ] && read line
. $root/late.sh
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """What all small programs are made of: the launcher, and what packs."""

    launcher: Path
    interpreter: Path

    @classmethod
    def fetch(cls) -> "Parts":
        """Build or find them."""
        go = find_go(cache_root() / "go", to_stderr)
        installation, _ = inputs.fetch_interpreter(WORK, go, to_stderr)
        launcher = inputs.build_launcher(WORK, go, to_stderr)
        return cls(launcher, next((installation / "bin").glob("python3.*")))

    def program(self, folder: Path, version: str) -> Path:
        """Make a program of two layers: a shell with some ballast, and many small files."""
        folder.mkdir()
        shell = static_busybox()
        assert shell is not None
        texts = {"start.sh": _SCRIPT.replace("VERSION", version), "late.sh": "echo late\n"}
        texts |= {f"many/{number}": f"{version} {number}\n" * 50 for number in range(FILES)}
        entries = []
        for number, (target, text) in enumerate(texts.items()):
            (folder / str(number)).write_text(text)
            entries.append(layers.Entry(target, folder / str(number)))
        (folder / "ballast").write_bytes(
            b"".join(hashlib.sha256(bytes([i, j])).digest() for i in range(256) for j in range(256))
        )
        first = [layers.Entry("bin/sh", shell, mode=0o755), layers.Entry("ballast", folder / "ballast")]
        packed: list[Layer] = [
            layers.pack(name, some, interpreter=self.interpreter, folder=folder)
            for name, some in {"shell": first, "files": entries}.items()
        ]
        output = folder / NAME
        start = Start(NAME, "bin/sh", ("{root}/start.sh",))
        container.write(output, launcher=self.launcher, layers=packed, start=start, stamp={"version": version})
        return output


@dataclass(frozen=True, slots=True)
class Root:
    """A root file system in which only the program is, at /opt/bin.

    Attributes:
        path: where it is on the host.
    """

    path: Path

    def create(self) -> "Root":
        """Make the folders."""
        for folder in (*FOLDERS, "proc", "tmp", "lib"):
            (self.path / folder).mkdir(parents=True)
        self.path.chmod(0o755)
        return self

    def install(self, program: Path) -> None:
        """Put a program at /opt/bin, under a temporary name first as an update does."""
        target = self.path / "opt/bin" / NAME
        shutil.copy(program, target.with_name(".new"))
        target.with_name(".new").replace(target)

    def command(self, *arguments: str, before: Sequence[str] = (), program: str = f"/opt/bin/{NAME}") -> list[str]:
        """Return the command that starts the program in here; it becomes the program, in one process.

        Args:
            arguments: of the program.
            before: shell lines that mount something, seen by this start only; the working directory is the root.
            program: how it is called.
        """
        lines = ["set -e", f"cd {self.path}", *before, f'exec chroot . {program} "$@"']
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "sh", *arguments]

    def start(
        self,
        *arguments: str,
        before: Sequence[str] = (WITH_PROC,),
        program: str = f"/opt/bin/{NAME}",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Start the program and wait for its end."""
        return subprocess.run(
            self.command(*arguments, before=before, program=program),
            env={"PATH": os.environ["PATH"], **(environment or {})},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def left(self) -> list[str]:
        """Return what is in all folders into which programs unpack themselves: homes, and what is in those."""
        found = []
        for folder in FOLDERS:
            homes = [path for path in (self.path / folder).iterdir() if path.name not in (NAME, ".new")]
            found += [str(path.relative_to(self.path)) for path in homes]
            found += [str(path.relative_to(self.path)) for home in homes if home.is_dir() for path in home.iterdir()]
        return sorted(found)

    def expected(self, program: Path, folder: str = "opt/bin") -> list[str]:
        """Return what `left` has if one version is unpacked and nothing else is there."""
        return [f"{folder}/{HOME}", f"{folder}/{HOME}/{container.folder_name(program)}", f"{folder}/{HOME}/lock"]

    def versions(self, folder: str = "opt/bin") -> list[Path]:
        """Return the unpacked versions in a folder, finished ones only."""
        return [path for path in (self.path / folder / HOME).glob("*") if path.is_dir() and not path.suffix]


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder, with its permissions."""
    return {
        f"{path.relative_to(folder)} {path.stat().st_mode:o}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def restamped(program: bytes, version: str) -> bytes:
    """Return a program with another version in its index, which makes it another one, with a folder of its own."""
    offset, length = struct.unpack("<QQ", program[-64:-48])
    index = json.loads(program[offset : offset + length])
    text = json.dumps({**index, "version": version}).encode()
    trailer = struct.pack("<QQ", offset, len(text)) + hashlib.sha256(text).digest() + container.MARK
    return program[:offset] + text + trailer
