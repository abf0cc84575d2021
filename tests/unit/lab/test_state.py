"""The ledger: whatever was started is found and ended by id, also by another process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.errors import LabError
from tests.lab.processes import find, spawn
from tests.lab.state import Ledger, ProcessIdentity, claim, locked, release, remove_abandoned


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    made = Ledger("unit", root=tmp_path)
    made.create()
    return made


def _gone(pid: int) -> ProcessIdentity:
    """Return an identity with that pid that no process has any more."""
    return ProcessIdentity(pid, 1)


def test_process_writes_its_own_line_and_is_ended(ledger: Ledger) -> None:
    """A started program is in the ledger with pid and start time, and undo ends it."""
    process = spawn(ledger, "sleeper", ["sleep", "100"], log=ledger.directory / "log")
    assert process.identity in ledger.processes()
    assert find(ledger, "sleeper") is not None
    ledger.undo()
    assert not process.alive()
    assert find(ledger, "sleeper") is None


def test_recycled_pid_is_never_hit(ledger: Ledger) -> None:
    """An entry whose start time is another's is not a process of ours."""
    ledger.record("process", owner="lab", name="other", pid=os.getpid(), start=1)
    assert ledger.processes() == []
    assert not _gone(os.getpid()).send(signal.SIGKILL)
    ledger.undo()


def test_processes_of_one_owner_are_ended_and_the_rest_stays(ledger: Ledger) -> None:
    """Undoing one machine leaves the others, and drops its lines."""
    one = spawn(ledger, "one", ["sleep", "100"], log=ledger.directory / "log", owner="m1")
    other = spawn(ledger, "other", ["sleep", "100"], log=ledger.directory / "log", owner="m2")
    ledger.undo(owner="m1")
    assert not one.alive()
    assert other.alive()
    assert {entry["owner"] for entry in ledger.entries("process")} == {"m2"}
    ledger.remove()
    assert not other.alive()
    assert not ledger.exists()


def test_stop_freeze_and_thaw(ledger: Ledger) -> None:
    """A frozen process is alive and can be stopped all the same."""
    process = spawn(ledger, "sleeper", ["sleep", "100"], log=ledger.directory / "log")
    process.freeze()
    assert process.alive()
    process.thaw()
    process.freeze()
    process.stop(timeout=5)
    assert not process.alive()


def test_program_that_does_not_exist_is_seen(ledger: Ledger) -> None:
    """A program that cannot be started does not stay in the ledger as running."""
    try:
        process = spawn(ledger, "none", ["/nonexistent"], log=ledger.directory / "log")
    except LabError:
        return
    while process.alive():
        pass
    assert ledger.processes() == []


def test_torn_line_is_left_out(ledger: Ledger) -> None:
    """A line that a kill cut off does not hide the others."""
    ledger.record("file", path=str(ledger.directory / "x"))
    with ledger.path.open("a") as log:
        log.write('{"kind": "fi')
    assert [entry["kind"] for entry in ledger.entries()] == ["file"]


def test_undo_is_idempotent_and_removes_files(ledger: Ledger) -> None:
    """Files and folders go, what is not there is fine, a second time is fine."""
    file, folder = ledger.directory / "file", ledger.directory / "folder"
    file.touch()
    (folder / "below").mkdir(parents=True)
    for path in (file, folder, ledger.directory / "never"):
        ledger.record("file", path=str(path))
    ledger.record("mount", path=str(ledger.directory / "not-mounted"))
    ledger.record("netns", name="no-such-namespace")
    ledger.record("cgroup", path=str(ledger.directory / "no-cgroup"))
    ledger.undo()
    ledger.undo()
    assert not file.exists()
    assert not folder.exists()


def test_lab_of_a_killed_owner_is_removed_by_the_next(tmp_path: Path) -> None:
    """A claimed lab whose owner was killed is abandoned; one with a living owner, or released, is not."""
    script = (
        "import sys, time; from pathlib import Path; from tests.lab.state import Ledger, claim; "
        "ledger = Ledger('orphan', root=Path(sys.argv[1])); ledger.create(); claim(ledger); print('ok', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ok\n"
        assert remove_abandoned(root=tmp_path) == []
        owner.kill()
    mine, free = Ledger("mine", root=tmp_path), Ledger("free", root=tmp_path)
    for ledger in (mine, free):
        ledger.create()
        claim(ledger)
    release(free)
    assert remove_abandoned(root=tmp_path) == ["orphan"]
    assert mine.exists()
    assert free.exists()


def test_lock_is_held_once(tmp_path: Path) -> None:
    """A second holder is told so in one line."""
    with locked("x", root=tmp_path), pytest.raises(LabError, match="in use"), locked("x", root=tmp_path):
        pass
    with locked("x", root=tmp_path):
        pass


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 30])
def test_lab_name_is_checked(name: str, tmp_path: Path) -> None:
    """A name becomes part of paths and of a network namespace's name."""
    with pytest.raises(LabError, match="letters"):
        Ledger(name, root=tmp_path)
