"""The programs that `make binary` built: on an old host, in a hostile environment, and built twice."""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefile import inputs
from onefile.build import MOST_BYTES, OUTPUT, ROOT, WORK, build
from onefile.programs import PROGRAMS
from tests.lab.binaries import cache_root
from tests.lab.debian import old_root
from tests.lab.golang import find_go
from tests.lab.progress import to_stderr

HOSTILE = {
    "PYTHONPATH": "/hostile", "PYTHONHOME": "/hostile", "PYTHONSTARTUP": "/hostile/x.py", "PYTHONINSPECT": "1",
    "LD_LIBRARY_PATH": "/hostile", "LC_ALL": "C",
}  # fmt: skip
NO_EXEC = "mount -t tmpfs -o noexec,mode=1777 tmpfs"


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the programs, as `make binary` leaves it."""
    subprocess.run(["make", "binary"], check=True, cwd=ROOT, capture_output=True, timeout=600)
    return OUTPUT


@pytest.fixture(scope="module")
def old_host(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian 11 root with the programs in /opt/bin, as an overlay; unmounted afterwards."""
    folder = tmp_path_factory.mktemp("old-host")
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    root = folder / "root"
    layers = f"lowerdir={old_root(to_stderr)},upperdir={folder}/upper,workdir={folder}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", root], check=True)
    try:
        (root / "opt/bin").mkdir()
        (root / "hostile").mkdir()
        for module in ("sitecustomize", "asyncio", "os", "nodeagent", "gardenlet", "encodings"):
            (root / f"hostile/{module}.py").write_text("raise SystemExit('hostile module')\n")
        for library in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"):
            (root / f"hostile/{library}").write_text("no library\n")
        for name in PROGRAMS:
            (root / "opt/bin" / name).write_bytes((built / name).read_bytes())
            (root / "opt/bin" / name).chmod(0o755)
        yield root
    finally:
        subprocess.run(["umount", root], check=True)


def run(root: Path, *command: str, hostile: bool = True, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a root with what every Linux has mounted, /tmp and /var/tmp noexec, and /usr read-only."""
    variables = " ".join(f"{name}={value}" for name, value in HOSTILE.items()) if hostile else ""
    script = "\n".join(
        (
            "set -e",
            f"cd {root}",
            "mount -t proc proc proc",
            "mount -t tmpfs -o mode=755 tmpfs run",
            f"{NO_EXEC} tmp",
            f"{NO_EXEC} var/tmp",
            "mount --bind usr usr; mount -o remount,bind,ro usr",
            before,
            # `env` itself is started with the machine's libraries: only what it starts sees the hostile ones.
            f'exec chroot . /usr/bin/env {variables} "$@"',
        )
    )
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_on_an_old_host_in_a_hostile_environment(old_host: Path, name: str) -> None:
    """Contract 1.3, 8.1: Debian 11, noexec /tmp and /var/tmp, read-only /usr, variables that point at traps."""
    for _ in range(2):
        done = run(old_host, f"/opt/bin/{name}", "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(rf"{name} v1\.150\.0 \(gardener-agents v\d+\.\d+\.\d+\)\n", done.stdout)
    (home,) = (old_host / "opt/bin").glob(f".{name}.unpacked")
    assert len(list(home.iterdir())) == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_below_a_read_only_usr_it_unpacks_elsewhere(old_host: Path, built: Path, name: str) -> None:
    """Installed below /usr, which cannot be written, it unpacks into /run where nothing else is there."""
    target = old_host / "usr/lib" / name
    target.write_bytes((built / name).read_bytes())
    target.chmod(0o755)
    try:
        done = run(old_host, f"/usr/lib/{name}", "--version")
    finally:
        target.unlink()
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((old_host / "usr/lib").glob(f".{name}.unpacked"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_module_can_be_loaded(old_host: Path, name: str) -> None:
    """Each module of ours, with all that it imports; and OpenSSL is a maintained one."""
    run(old_host, f"/opt/bin/{name}", "--version")
    (unpacked,) = (path for path in (old_host / f"opt/bin/.{name}.unpacked").iterdir() if path.is_dir())
    inside = f"/opt/bin/.{name}.unpacked/{unpacked.name}"
    (old_host / "opt/load.py").write_text((Path(__file__).parent / "load_all.py").read_text())
    ours = ",".join(PROGRAMS[name].packages)
    done = run(old_host, f"{inside}/bin/{name}", "-I", "-S", "-B", "-OO", "/opt/load.py", inside, ours, hostile=False)
    assert done.stdout.endswith("loaded\n"), done.stdout + done.stderr
    assert re.search(r"^OpenSSL 3\.5\.", done.stdout, re.M)


@pytest.mark.parametrize("name", PROGRAMS)
def test_of_the_machine_it_needs_the_c_library_only(old_host: Path, name: str) -> None:
    """Whatever is loaded wants glibc and the compiler's support library, which glibc itself asks for; no C++, no OpenSSL."""
    run(old_host, f"/opt/bin/{name}", "--version")
    wanted = set[str]()
    for path in (old_host / f"opt/bin/.{name}.unpacked").rglob("*"):
        if path.suffix == ".so" or path.parent.name == "bin":
            told = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
            wanted |= set(re.findall(r"NEEDED.*\[(.*)\]", told))
    assert wanted - {"ld-linux-x86-64.so.2", "libgcc_s.so.1"} == {
        *("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1")
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_small(built: Path, name: str) -> None:
    """At most 35 MB."""
    assert 10_000_000 < (built / name).stat().st_size <= MOST_BYTES


def test_two_builds_are_identical(tmp_path: Path) -> None:
    """A build in which every layer is packed anew, in another folder, gives the same bytes; whatever the interpreter left behind."""
    wanted = list(PROGRAMS.values())
    build(wanted, tmp_path / "one")
    interpreter = inputs.fetch_interpreter(WORK, find_go(cache_root() / "go", to_stderr), to_stderr)[0]
    (program,) = (interpreter / "bin").glob("python3.*")
    # Compiled modules of what packs, as an interpreter leaves them that may write.
    subprocess.run([program, "-I", "-c", "import json, pathlib, tarfile, functools"], check=True, timeout=60)
    assert list(interpreter.glob("lib/python3*/__pycache__/functools.*"))
    build(wanted, tmp_path / "two", layers_folder=tmp_path / "layers")
    one, two = ({name: (tmp_path / run / name).read_bytes() for name in PROGRAMS} for run in ("one", "two"))
    assert {name: hashlib.sha256(data).hexdigest() for name, data in one.items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in two.items()
    }


def test_make_has_nothing_to_do_after_a_build(built: Path) -> None:
    """`make binary` without a change builds nothing."""
    before = {path.name: path.stat().st_ino for path in built.iterdir()}
    done = subprocess.run(["make", "binary"], check=True, cwd=ROOT, capture_output=True, text=True)
    assert "Built" not in done.stdout
    assert {path.name: path.stat().st_ino for path in built.iterdir()} == before
