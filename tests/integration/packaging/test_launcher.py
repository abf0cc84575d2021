"""The launcher, with a small program: where it unpacks, what it refuses, and what a kill or a full disk leaves behind."""

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from onefile import container
from tests.lab.api import wait_for
from tests.support.onefile import HOME, NAME, WITH_PROC, Root, digests

STARTS = 50
LONGEST_MOMENT = 0.25


def said(text: str, what: str) -> str:
    """Return the rest of the line that begins with a word."""
    return next(line.removeprefix(f"{what} ") for line in text.splitlines() if line.startswith(f"{what} "))


def folder_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the folder that a program ran from, as seen from its root; it must have ended well."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("late\n")
    return re.search(r"^version .* root (\S+)$", done.stdout, re.M)[1]  # type: ignore[index]


def test_the_program_takes_the_place_of_the_launcher(root: Root, v1: Path) -> None:
    """One process: the id of what was started is the id of the program, which gets all arguments."""
    with subprocess.Popen(
        root.command("one", "two words", before=[WITH_PROC]), stdout=subprocess.PIPE, text=True
    ) as started:
        output, _ = started.communicate(timeout=60)
    assert f"version v1 pid {started.pid} " in output
    assert re.findall("^argument (.*)$", output, re.M) == ["one", "two words"]
    assert root.left() == root.expected(v1)


def test_a_second_start_unpacks_nothing(root: Root) -> None:
    """The folder of the first start is used as it is."""
    root.start()
    (folder,) = root.versions()
    before = {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in folder.rglob("*")}
    assert folder_of(root.start()) == f"/opt/bin/{HOME}/{folder.name}"
    assert {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in folder.rglob("*")} == before


def test_what_would_load_foreign_code_is_not_inherited(root: Root) -> None:
    """Variables of the loader, the C library and the interpreter end here; all others go on."""
    hostile = {
        "LD_LIBRARY_PATH": "/tmp", "LD_PRELOAD": "/tmp/x.so", "PYTHONPATH": "/tmp", "PYTHONHOME": "/tmp",
        "PYTHONSTARTUP": "/tmp/x.py", "GCONV_PATH": "/tmp", "GLIBC_TUNABLES": "x",
    }  # fmt: skip
    output = root.start(environment={**hostile, "HTTPS_PROXY": "p"}).stdout
    names = set(re.findall(r"^export (\w+)", output, re.M))
    assert names.isdisjoint(hostile)
    assert f"export PATH='{os.environ['PATH']}'" in output
    assert "export HTTPS_PROXY='p'" in output


def test_it_finds_itself_without_proc(root: Root) -> None:
    """Called by its path, by a relative one, and through PATH, in a root without /proc."""
    for program in (f"/opt/bin/{NAME}", f"./opt/bin/{NAME}", NAME):
        done = root.start(before=(), program=program, environment={"PATH": f"/opt/bin:{os.environ['PATH']}"})
        assert folder_of(done).startswith(f"/opt/bin/{HOME}/")


def test_a_link_to_the_program_is_followed(root: Root, v1: Path) -> None:
    """Beside the binary means beside the file itself."""
    (root.path / "lib/link").symlink_to(f"/opt/bin/{NAME}")
    assert folder_of(root.start(program="/lib/link")).startswith(f"/opt/bin/{HOME}/")
    assert root.left() == root.expected(v1)


# Where it unpacks.

READ_ONLY = "mount --bind {0} {0}; mount -o remount,bind,ro {0}"
NO_EXEC = "mount --bind {0} {0}; mount -o remount,bind,noexec {0}"


def others_may_write(root: Root, folder: str) -> None:
    """Let everybody write there."""
    (root.path / folder).chmod(0o777)


def belongs_to_somebody(root: Root, folder: str) -> None:
    """Give it to another user."""
    os.chown(root.path / folder, 1000, 1000)


def above_belongs_to_somebody(root: Root, folder: str) -> None:
    """Give the folder above to another user, who could put another one in its place."""
    os.chown((root.path / folder).parent, 1000, 1000)


@pytest.mark.parametrize("spoil", [others_may_write, belongs_to_somebody, above_belongs_to_somebody])
def test_the_first_folder_that_nobody_else_can_change_is_used(
    root: Root, v1: Path, spoil: Callable[[Root, str], None]
) -> None:
    """Beside the program if only root can write there; else /var/lib/<name>."""
    spoil(root, "opt/bin")
    folder = f"var/lib/{NAME}"
    assert folder_of(root.start()) == f"/{folder}/{HOME}/{container.folder_name(v1)}"
    assert root.left() == root.expected(v1, folder)


def test_read_only_and_noexec_folders_are_passed_over(root: Root, v1: Path) -> None:
    """A read-only folder with the program and a noexec one: /run is used."""
    before = [WITH_PROC, READ_ONLY.format("opt/bin"), NO_EXEC.format(f"var/lib/{NAME}")]
    assert folder_of(root.start(before=before)).startswith(f"/run/{HOME}/")
    assert root.left() == root.expected(v1, "run")


def test_no_folder_at_all_is_an_error_that_names_each(root: Root) -> None:
    """Exit code 1, one line, a reason for each folder, nothing left."""
    (root.path / f"var/lib/{NAME}").rmdir()
    others_may_write(root, "opt/bin")
    done = root.start(before=[WITH_PROC, NO_EXEC.format("run")])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {NAME}: no folder to unpack the program into; /opt/bin: /opt/bin can be written by others; "
        f"/var/lib/{NAME}: does not exist; /run: is mounted noexec\n"
    )
    (root.path / f"var/lib/{NAME}").mkdir()
    assert root.left() == []


def test_what_an_earlier_start_left_elsewhere_goes(root: Root, v1: Path) -> None:
    """Once a better folder can be used, the one in the worse folder is removed."""
    root.start(before=[WITH_PROC, READ_ONLY.format("opt/bin")])
    assert root.left() == root.expected(v1, f"var/lib/{NAME}")
    folder_of(root.start())
    assert root.left() == root.expected(v1)


# What others prepared.


@pytest.mark.parametrize("kind", ["owner", "mode", "link", "file"])
def test_a_home_that_somebody_else_prepared_is_not_used(root: Root, v1: Path, kind: str) -> None:
    """It is left as it is, with what is in it, and the next folder is used."""
    prepared, planted = root.path / "opt/bin" / HOME, container.folder_name(v1)
    place = root.path / "lib/elsewhere" if kind == "link" else prepared
    if kind == "file":
        prepared.write_text("mine")
    else:
        (place / planted / "bin").mkdir(parents=True)
        (place / planted / "bin/sh").write_text("mine")
    if kind == "owner":
        os.chown(prepared, 1000, 1000)
    elif kind == "mode":
        prepared.chmod(0o775)
    elif kind == "link":
        prepared.symlink_to("/lib/elsewhere")
    before = digests(prepared)
    assert folder_of(root.start()).startswith(f"/var/lib/{NAME}/{HOME}/")
    assert digests(prepared) == before


def test_a_home_of_somebody_else_everywhere_is_an_error(root: Root) -> None:
    """The message says which and why."""
    for folder in ("opt/bin", f"var/lib/{NAME}", "run"):
        (root.path / folder / HOME).mkdir()
        os.chown(root.path / folder / HOME, 1000, 1000)
    done = root.start()
    assert done.returncode == 1
    assert f"/run/{HOME} was prepared by somebody else: it belongs to user 1000" in done.stderr


def missing(folder: Path) -> None:
    """Take a file away."""
    (folder / "many/7").unlink()


def changed(folder: Path) -> None:
    """Change a file without changing its length."""
    path = folder / "many/7"
    path.write_bytes(b"x" * path.stat().st_size)


def torn(folder: Path) -> None:
    """Cut a file off."""
    os.truncate(folder / "bin/sh", 1000)


def additional(folder: Path) -> None:
    """Add a file."""
    (folder / "many/more").write_text("more")


def opened(folder: Path) -> None:
    """Let others write a file."""
    (folder / "late.sh").chmod(0o666)


def given_away(folder: Path) -> None:
    """Give a file to another user."""
    os.chown(folder / "late.sh", 1000, 1000)


@pytest.mark.parametrize("damage", [missing, changed, torn, additional, opened, given_away])
def test_a_damaged_folder_is_unpacked_anew(root: Root, v1: Path, damage: Callable[[Path], None]) -> None:
    """A folder that is not exactly what was unpacked is never run; the next start makes it whole."""
    root.start()
    (folder,) = root.versions()
    whole = digests(folder)
    damage(folder)
    folder_of(root.start())
    assert digests(folder) == whole
    assert root.left() == root.expected(v1)


# What is damaged itself.


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (-1, "its end is missing"),
        (-60, "its end is not what was built"),
        (-200, "its index is not what was built"),
        (0.8, "does not have the digest that it was built with; install it again"),
    ],
    ids=["mark", "trailer", "index", "layer"],
)
def test_a_damaged_program_says_so(root: Root, v1: Path, at: float, message: str) -> None:
    """One bit that is other than built, anywhere behind the launcher: an error, and nothing is unpacked."""
    data = bytearray(v1.read_bytes())
    data[int(at) if at < 0 else int(len(data) * at)] ^= 0x10
    (root.path / "opt/bin" / NAME).write_bytes(data)
    done = root.start()
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert root.left() == []


def test_a_program_that_was_cut_off_says_so(root: Root, v1: Path) -> None:
    """A download that ended early."""
    data = v1.read_bytes()
    (root.path / "opt/bin" / NAME).write_bytes(data[: len(data) * 9 // 10])
    done = root.start()
    assert done.returncode == 1
    assert f"/opt/bin/{NAME} is damaged: its end is missing; install it again" in done.stderr
    assert root.left() == []


# Kills, others at the same time, full disks.


def wait_until(moment: float) -> None:
    """Wait for a moment of the monotonic clock."""
    wait_for(lambda: time.monotonic() > moment or None, timeout=5, what="the moment", interval=0.001)


def test_kills_at_any_moment_leave_nothing_half(root: Root, v1: Path) -> None:
    """50 starts with SIGKILL at random moments: a version is there whole or not at all, and in the end there is one folder."""
    root.start()
    (folder,) = root.versions()
    whole, random, unpacked = digests(folder), Random(7), 0
    for number in range(STARTS):
        # Away with it, so that each of them has to unpack.
        for path in root.versions():
            path.rename(path.with_suffix(f".old-{number}"))
        with subprocess.Popen(root.command(before=[WITH_PROC]), stdout=subprocess.DEVNULL) as started:
            wait_until(time.monotonic() + random.uniform(0, LONGEST_MOMENT))
            started.kill()
        for path in root.versions():
            unpacked += 1
            assert digests(path) == whole
    print(f"{unpacked} of {STARTS} had unpacked before they were killed")
    assert 0 < unpacked < STARTS
    folder_of(root.start())
    assert root.left() == root.expected(v1)


def test_four_at_once_unpack_once(root: Root, v1: Path) -> None:
    """Four first starts at the same time all run, from the one folder that is there afterwards."""
    started = [
        subprocess.Popen(root.command(before=[WITH_PROC]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0] * 4, outputs
    assert len({said(output, "version v1").rpartition(" ")[2] for output, _ in outputs}) == 1
    assert root.left() == root.expected(v1)


def small_disk(folder: str, program: Path, more_bytes: int) -> str:
    """Return the line that mounts a file system with room for the program file and a little more."""
    size = program.stat().st_size + more_bytes
    return f"mv opt/bin/{NAME} tmp/p; mount -t tmpfs -o size={size},mode=755 tmpfs {folder}; mv tmp/p opt/bin/{NAME}"


def test_a_full_disk_is_passed_over(root: Root, v1: Path) -> None:
    """No space beside the program: the next folder is used."""
    done = root.start(before=[WITH_PROC, small_disk("opt/bin", v1, 500_000)])
    assert folder_of(done) == f"/var/lib/{NAME}/{HOME}/{container.folder_name(v1)}"


def test_full_disks_are_an_error_and_nothing_is_left(root: Root, v1: Path) -> None:
    """No space anywhere: the message says so for each folder, and each is as it was before."""
    small = "mount -t tmpfs -o size=500k,mode=755 tmpfs"
    before = [WITH_PROC, small_disk("opt/bin", v1, 500_000), f"{small} var/lib/{NAME}", f"{small} run"]
    # Looked at in the same namespace: it is gone with the process.
    look = 'trap "find opt/bin var/lib run -mindepth 1" EXIT; chroot . /opt/bin/' + NAME + "; exit $?"
    done = root.start(before=[*before, look])
    assert done.returncode == 1
    assert done.stderr.count("no space left on device") == 3
    assert sorted(done.stdout.split()) == [f"opt/bin/{NAME}", f"var/lib/{NAME}"]


# Another version.


def test_another_version_replaces_the_one_before(root: Root, programs: dict[str, Path]) -> None:
    """After an update, and after going back, there is the folder of the one that was started last."""
    root.start()
    for version in ("v2", "v1"):
        root.install(programs[version])
        assert f"version {version} " in root.start().stdout
        assert root.left() == root.expected(programs[version])


def test_a_version_stays_as_long_as_it_runs(root: Root, programs: dict[str, Path]) -> None:
    """A program that still runs keeps its folder, and loads from it; the start after its end removes it."""
    with subprocess.Popen(
        root.command("wait", before=[WITH_PROC]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        wait_for(root.versions, timeout=20, what="the first version")
        assert running.stdout is not None
        assert "version v1" in running.stdout.readline()
        root.install(programs["v2"])
        assert "version v2 " in root.start().stdout
        assert len(root.versions()) == 2
        output, _ = running.communicate("go\n", timeout=20)
    assert output.endswith("late\n")
    root.start()
    assert root.left() == root.expected(programs["v2"])
