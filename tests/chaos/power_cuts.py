"""Power cuts that lose what was not synced, at random moments and at every system call that changes the disk.

Before the machine boots again its disk is looked at: nothing of the agent may be torn, empty or half written. Only the
journal and the copy for operators may be unreadable: both are replaced without a sync on purpose, and their loss is known
(contract 6.4 a, d).
"""

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import yaml

from tests.chaos.campaign import Case
from tests.chaos.interruption import agent_pid, end_once_applied, wait_ready, was_reached
from tests.chaos.random_moments import RandomMoments
from tests.chaos.recipes import PATHS, Recipe, content_of
from tests.chaos.sweep import SweepCampaign
from tests.chaos.twin import EMPTY, TOKEN_PATH, TwinCampaign
from tests.lab import power
from tests.lab.worker_osc import AGENT_FOLDER, CLUSTER_CA_FILE, WorkerOsc
from tests.support.worker import Worker

CALLS = {
    "fsync": ("fsync",),
    "rename": ("rename", "renameat", "renameat2"),
    "write": ("write",),
    "unlink": ("unlink", "unlinkat"),
    "link": ("linkat", "link"),
}
_ORIGINAL = {"/etc/of-the-os": b"of the operating system"}
_UNITS = "/etc/systemd/system"


class _Cuts(TwinCampaign):
    """What both campaigns do; the subject's disk forgets what was not synced."""

    storage = "ext4"
    _before: Recipe = EMPTY

    def recover(self) -> None:
        """Begin again with fresh machines."""
        super().recover()
        self._before = EMPTY

    def _settle(self) -> None:
        """Bring all of the past to the disk, so that only what happens from now on can be lost."""
        wait_ready(self._twin.subject)
        self._twin.subject.machine.run(["sync"])

    def strike(self) -> bool:
        """Cut."""
        power.cut_power(self._twin.subject.machine)
        return True

    def afterwards(self, recipe: Recipe) -> list[str]:
        """Look at the disk, boot, and compare."""
        twin = self._twin
        problems = disk_problems(twin.subject, [self._osc(self._before), self._osc(recipe)], [self._before, recipe])
        problems += token_problems(twin.subject, self._world.tokens)
        twin.subject.machine.boot()
        with contextlib.suppress(OSError):
            power.careful_disk(twin.subject.machine)
        self._before = recipe
        return problems + twin.compare(recipe)

    def _osc(self, recipe: Recipe) -> WorkerOsc:
        return self._world.osc(self._twin.subject, recipe)


class PowerCuts(_Cuts, RandomMoments):
    """A power cut at a random moment."""

    name = "power cuts"
    stream = 1

    def prepare(self) -> None:
        """Let the past come to the disk, but for a token that was written at this moment."""
        self._settle()
        self._twin.change_token()


class EveryWrite(SweepCampaign, _Cuts):
    """Each call of each kind that changes the disk, in turn: the agent is killed there, and the power goes."""

    name = "power cut at every write"
    kinds = CALLS

    def run(self, case: Case) -> list[str]:
        """Kill at the call, and cut."""
        twin = self._twin
        before, after = self.sides(case)
        self.begin(before)
        self._before = before
        self._settle()
        pid = agent_pid(twin.subject)
        with self.injected(case, pid) as log:
            end_once_applied(twin.subject, pid, twin.publish_to_both(after))
            reached = was_reached(log)
            if reached:
                self.strike()
        problems = self.afterwards(after) if reached else twin.compare(after)
        return self.end([*self.note(case, reached=reached), *problems], at=after)


def disk_problems(worker: Worker, versions: list[WorkerOsc], files: list[Recipe]) -> list[str]:
    """Return what on the disk of a machine that is off is neither as before nor as it was to become.

    Args:
        worker: its machine.
        versions: the OSC before and the one after.
        files: their recipes.
    """
    base = worker.machine.base
    state = _state_folder(worker)
    problems = [*_state_problems(state), *_remembered_problems(state, worker.base.pool.ca_pem)]
    config = Path(worker.base.pool.agent_config_path)
    inline = [osc.files[str(config)]["content"]["inline"]["data"].encode() for osc in (worker.base, *versions)]
    problems += _neither(state / config.name, inline)
    for path in PATHS:
        wanted = [content_of(recipe["files"][path]) for recipe in files if path in recipe["files"]]
        wanted += [_ORIGINAL[path]] if path in _ORIGINAL else []
        problems += _neither(base / "upper" / path.lstrip("/"), wanted)
    for path in {path for osc in versions for path in _unit_files(osc)}:
        wanted = [text.encode() for osc in versions if (text := _unit_files(osc).get(path)) is not None]
        problems += _neither(base / "upper" / path.lstrip("/"), wanted)
    ca = base / "var" / CLUSTER_CA_FILE.removeprefix("/var/")
    if ca.read_text() != worker.base.pool.ca_pem:
        problems.append(f"{CLUSTER_CA_FILE} is damaged")
    return problems


def token_problems(worker: Worker, published: Collection[str]) -> list[str]:
    """Return what is wrong with the token file of a machine that is off; a token may be an older one, but a whole one."""
    path = _state_folder(worker) / Path(TOKEN_PATH).name
    return _neither(path, [token.encode() for token in published])


def _state_folder(worker: Worker) -> Path:
    return worker.machine.base / "var" / AGENT_FOLDER.removeprefix("/var/")


def _remembered_problems(folder: Path, ca_pem: str) -> Iterator[str]:
    """Whatever is written with a sync is whole or not there; a record of generations that can be read knows the file."""
    for name in ("extracted-files.json", "credentials/pending-request.json"):
        try:
            if (folder / name).exists() and not json.loads((folder / name).read_text()):
                yield f"{name} is empty"
        except ValueError as error:
            yield f"{name} is torn: {error}"
    bundle = folder / "credentials/ca-bundle.crt"
    if bundle.exists() and bundle.read_text() != ca_pem:
        yield f"{bundle.name} has {bundle.stat().st_size} bytes that are no CA bundle"
    applied = folder / "last-applied-osc.yaml"
    try:
        record = json.loads((folder / "generations" / f"{applied.name}.json").read_text())
    except (OSError, ValueError):
        return  # replaced without a sync on purpose: what the record lost is recognised as foreign
    digest = hashlib.sha256(applied.read_bytes()).hexdigest() if applied.exists() else ""
    if digest not in (*record["digests"][:1], record["announced"]):
        yield f"{applied.name} is not what its record of generations calls the newest"


def _neither(path: Path, wanted: list[bytes]) -> list[str]:
    if not path.is_file() or path.read_bytes() in wanted:
        return []
    return [f"{path} has {path.stat().st_size} bytes that are of no OSC: {path.read_bytes()[:60]!r}"]


def _unit_files(osc: WorkerOsc) -> Mapping[str, str]:
    found = {}
    for unit in osc.document()["spec"]["units"]:
        if "content" in unit:
            found[f"{_UNITS}/{unit['name']}"] = unit["content"]
        for drop_in in unit.get("dropIns", []):
            found[f"{_UNITS}/{unit['name']}.d/{drop_in['name']}"] = drop_in["content"]
    return found


def _state_problems(folder: Path) -> Iterator[str]:
    for name in ("last-applied-osc.yaml", "originals/ledger.json"):
        path = folder / name
        try:
            if path.exists() and not json.loads(path.read_text()):
                yield f"{name} is empty"
        except ValueError as error:
            yield f"{name} is torn: {error}"
    for path in (folder / "credentials/kubeconfig", *folder.glob("config-*.yaml")):
        try:
            if not yaml.safe_load(path.read_text()):
                yield f"{path.name} is empty"
        except (OSError, yaml.YAMLError) as error:
            yield f"{path.name} is torn: {error}"
