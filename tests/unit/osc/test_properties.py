"""Any history of applies, kills and failures ends on the machine that the last OSC alone would have made."""

import hashlib
from collections.abc import Iterable
from pathlib import PurePosixPath

from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from agents.core.yamlio import dump_json, load_yaml
from osc.codec import Decoded, decode_document, decode_file_content, dump_state, load_state
from osc.diff import Changes, Dirty, Touched, diff
from osc.merge import Effective, effective
from osc.plan import RestartAgent, Step, plan
from osc.types import OWN_UNIT, Unit
from tests.support.clock import FakeClock
from tests.support.osc_machine import UNIT_MODE, Killed, Machine
from tests.support.osc_strategies import HOSTNAME, OWN_UNITS, operating_system_configs

MOST_ACTS = 60


class AgentRestart(Exception):
    """The agent ended so that systemd starts it again."""


class OneProcess:
    """The caller's part, as small as it can be: one process of the agent on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.clock = FakeClock()
        self.journal = machine.new_journal(self.clock)

    def apply(self, decoded: Decoded, fail: Iterable[int] = ()) -> bool:
        """Apply an OSC; the steps with these numbers fail. Returns whether it was applied to its end."""
        desired = effective(decoded.config, hostname=HOSTNAME)
        checksum = hashlib.sha256(dump_json(decoded.document)).hexdigest()
        loaded = self.journal.load()
        if loaded.pending is not None and loaded.pending.checksum == checksum:
            changes = loaded.pending.changes
        else:
            changes = self._compute(desired, checksum, compare=loaded.compare_with_disk)
        steps = plan(changes, desired)
        unfinished: set[str] = set()
        changed: set[str] = set()
        for number, step in enumerate(steps.steps):
            if step.id in steps.blocked(unfinished):
                continue
            if number in set(fail):
                unfinished.add(step.id)
            elif isinstance(step, RestartAgent):
                self._restart(step, changed)
            else:
                changed |= {step.id} if self.machine.execute(step) else set()
                self._note(step, steps.steps, changed)
                self.clock.advance(0.03)
                self.journal.done(step)
        if unfinished:
            return False
        self.journal.commit(decoded.document)
        return True

    def _compute(self, desired: Effective, checksum: str, *, compare: bool) -> Changes:
        applied = self.journal.load_last_applied()
        old = effective(applied.decoded.config, hostname=HOSTNAME) if applied.decoded else None
        dirty = compare_with_disk(self.machine, desired) if compare or applied.torn else Dirty()
        pending = self.journal.pending
        touched = pending.touched if pending else Touched()
        changes = diff(desired, old=old, touched=touched, dirty=dirty)
        return self.journal.begin(checksum, changes)

    def _note(self, step: Step, steps: tuple[Step, ...], changed: set[str]) -> None:
        watched = frozenset[str]().union(*(other.watched for other in steps if isinstance(other, RestartAgent)))
        if step.id in watched & changed:
            self.journal.own_bytes_changed()

    def _restart(self, step: RestartAgent, changed: set[str]) -> None:
        pending = self.journal.pending
        assert pending is not None
        needed = step.required or bool(step.watched & changed)
        self.journal.done(step)
        if needed:
            self.journal.flush(sync=True)
            raise AgentRestart


def compare_with_disk(machine: Machine, desired: Effective) -> Dirty:
    """Return what on the disk is not as this OSC wants it."""
    paths = {
        file.path
        for file in desired.files
        if file.content.inline is not None
        and machine.files.get(file.path) != (decode_file_content(file.content.inline), file.mode)
    }
    units = {
        unit.name for unit in desired.units if any(machine.files.get(path) != found for path, found in owned(unit))
    }
    return Dirty(frozenset(paths), frozenset(units))


def owned(unit: Unit) -> list[tuple[str, tuple[bytes, int]]]:
    """Return path, bytes and mode of the files that a unit puts on the disk."""
    content = [(unit.path, (unit.content.encode(), UNIT_MODE))] if unit.content is not None else []
    folder = unit.drop_in_directory
    return content + [(f"{folder}/{item.name}", (item.content.encode(), UNIT_MODE)) for item in unit.drop_ins]


def apply(machine: Machine, decoded: Decoded, *, kill: int | None = None, fail: Iterable[int] = ()) -> bool:
    """Run processes of the agent until one has applied the OSC, or until the kill. Returns whether it was applied."""
    machine.acts_left = kill
    try:
        for _ in range(3):
            process = OneProcess(machine)
            try:
                if process.apply(decoded, fail) or process.apply(decoded):
                    return True
            except AgentRestart:
                machine.start_agent()
                fail = ()
        raise AssertionError("the agent restarts itself for ever")
    except Killed:
        machine.start_agent()
        return False
    finally:
        machine.acts_left = None


def alone(decoded: Decoded) -> Machine:
    """Return the machine that only ever saw this OSC."""
    machine = Machine()
    machine.start_agent()
    assert apply(machine, decoded)
    return machine


def paths_of(decoded: Decoded) -> set[str]:
    """Return all paths that an OSC puts on the disk of this host."""
    return set(effective(decoded.config, hostname=HOSTNAME).written_paths())


def check_is_as_alone(machine: Machine, last: Decoded, earlier: list[Decoded]) -> None:
    """Compare with the machine that only ever saw the last OSC.

    What the contract lets stay: directories, the agent's own unit file, and the state of the operating system's units that
    left the OSC.
    """
    expected = alone(last)
    units = effective(last.config, hostname=HOSTNAME).units_by_name()
    old_units = [unit for osc in earlier for unit in effective(osc.config, hostname=HOSTNAME).units]
    ignored = set() if OWN_UNIT in units else {Unit(name=OWN_UNIT).path}
    files = {path: found for path, found in machine.files.items() if path not in ignored}
    assert files == {path: found for path, found in expected.files.items() if path not in ignored}
    compared = {*units, *OWN_UNITS}
    assert machine.enabled & compared == expected.enabled & compared
    assert machine.loaded == {path: content for path, (content, _) in machine.files.items() if path in machine.loaded}
    assert set(machine.running) & compared - {OWN_UNIT} == set(expected.running) & compared - {OWN_UNIT}
    stale = {path for unit in old_units if unit.name != OWN_UNIT for path in unit.written_paths()} - set(expected.files)
    for name, running in machine.running.items():
        unit = units.get(name, Unit(name=name))
        wanted = {path: content for path, (content, _) in owned(unit)}
        assert {path: running.loaded.get(path) for path in wanted} == wanted, name
        assert {path: running.files[path] for path in unit.file_paths} == {
            path: machine.files[path][0] for path in unit.file_paths
        }, name
        definitions = (unit.path, f"{unit.drop_in_directory}/")
        assert not [path for path in stale if path.startswith(definitions) and path in running.loaded], name


def assume_no_folder_in_the_way(histories: list[Decoded]) -> None:
    """Leave out what the contract does not promise: a file where an earlier OSC made a directory (directories stay)."""
    directories: set[str] = set()
    for decoded in histories:
        paths = paths_of(decoded)
        assume(not paths & directories)
        directories |= {str(parent) for path in paths for parent in PurePosixPath(path).parents}


OSCS = operating_system_configs()
KILLS = st.integers(min_value=0, max_value=MOST_ACTS)


@given(OSCS, OSCS)
@settings(max_examples=150, deadline=None)
def test_second_osc_gives_the_machine_of_the_second_alone(first: Decoded, second: Decoded) -> None:
    """Contract 6.3: applying A and then B gives the machine of applying B alone."""
    assume_no_folder_in_the_way([first, second])
    machine = alone(first)
    assert apply(machine, second)
    check_is_as_alone(machine, second, [first])


@given(OSCS, OSCS, KILLS)
@settings(max_examples=150, deadline=None)
def test_kill_at_any_act_then_the_same_osc_converges(first: Decoded, second: Decoded, kill: int) -> None:
    """Contract 6.4: an apply that is killed at any act and begun again ends on the same machine."""
    assume_no_folder_in_the_way([first, second])
    machine = alone(first)
    if not apply(machine, second, kill=kill):
        note(f"killed after {machine.acts} acts")
    assert apply(machine, second)
    check_is_as_alone(machine, second, [first])


@given(st.lists(st.tuples(OSCS, KILLS), max_size=3), OSCS)
@settings(max_examples=150, deadline=None)
def test_w10_superseded_applies_leave_nothing_behind(begun: list[tuple[Decoded, int]], last: Decoded) -> None:
    """Contract 6.4 b, W10: whatever was begun and superseded, the last OSC ends on the machine of itself alone."""
    assume_no_folder_in_the_way([*(decoded for decoded, _ in begun), last])
    machine = Machine()
    machine.start_agent()
    for decoded, kill in begun:
        apply(machine, decoded, kill=kill)
    assert apply(machine, last)
    check_is_as_alone(machine, last, [decoded for decoded, _ in begun])


@given(OSCS, OSCS, KILLS)
@settings(max_examples=150, deadline=None)
def test_return_to_the_first_osc_after_a_partial_second(first: Decoded, second: Decoded, kill: int) -> None:
    """Contract 6.4 b: going back to the OSC that is last-applied undoes what a partial apply of another one did."""
    assume_no_folder_in_the_way([first, second, first])
    machine = alone(first)
    apply(machine, second, kill=kill)
    assert apply(machine, first)
    check_is_as_alone(machine, first, [second])


@given(OSCS, OSCS, st.sets(st.integers(min_value=0, max_value=20), max_size=4))
@settings(max_examples=150, deadline=None)
def test_failed_steps_are_done_by_the_next_attempt(first: Decoded, second: Decoded, fail: set[int]) -> None:
    """Contract 6.2: what failed is tried again and what was done stays done; the end is the same machine."""
    assume_no_folder_in_the_way([first, second])
    machine = alone(first)
    assert apply(machine, second, fail=fail)
    check_is_as_alone(machine, second, [first])


@given(OSCS, OSCS, KILLS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_power_cut_converges(first: Decoded, second: Decoded, kill: int, torn: bool) -> None:
    """Contract 6.4 d: after a power cut that loses or tears what was not synced, the same OSC converges."""
    assume_no_folder_in_the_way([first, second])
    machine = alone(first)
    apply(machine, second, kill=kill)
    machine.cut_power(torn=torn)
    machine.start_agent()
    assert apply(machine, second)
    expected = alone(second)
    paths = paths_of(second)
    assert {path: machine.files[path] for path in paths} == {path: expected.files[path] for path in paths}


@given(OSCS)
@settings(max_examples=150, deadline=None)
def test_document_survives_the_state_file(decoded: Decoded) -> None:
    """Contract 5.2: last-applied holds the whole document, with apiVersion and kind, and reads back as the same OSC."""
    content = dump_state(decoded.document)
    assert decode_document(load_state(content)) == decoded
    assert load_yaml(content) == load_state(content)
    assert decoded.document["kind"] == "OperatingSystemConfig"
