"""Two workers: one that suffers, and one that gets the same OSC alone; in the end they must be equal."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from tests.chaos.interruption import converge, restart_without_limit, wait_ready
from tests.chaos.observed import Observed, file_problems, state_problems
from tests.chaos.recipes import VENDOR_UNITS, VERSIONS, Recipe, build, image_bytes, secret_object
from tests.lab import power
from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.errors import ApiError
from tests.lab.machine import Machine, Storage
from tests.lab.network import SERVER_NAME
from tests.lab.oci import Entry, Image
from tests.lab.registry import CA_FILE
from tests.lab.worker_osc import AGENT_FOLDER, WorkerOsc
from tests.support.worker import Worker

_numbers = count(1)
_VENDOR = "[Unit]\nDescription=of the operating system\n[Service]\nExecStart=/bin/sleep 1009\n[Install]\nWantedBy=multi-user.target\n"
EMPTY: Recipe = {"files": {}, "units": {}, "registries": {}, "config": None}
TOKEN_SECRET, TOKEN_PATH = "gardener-valitail", f"{AGENT_FOLDER}/chaos-token"
_TOKEN = {"syncPeriod": "15s", "syncConfigs": [{"secretName": TOKEN_SECRET, "path": TOKEN_PATH}]}
"""The shortest period that may be configured."""
QUIET_SECONDS = 20.0
TOKEN_SECONDS = 40.0
PUBLISH_SECONDS = 60.0


@dataclass(slots=True)
class World:
    """What all campaigns share.

    Attributes:
        lab: a running lab.
        agent: the agent under test.
        images: references of the images, by version.
        tokens: all that the Secret with the token has held.
    """

    lab: Lab
    agent: AgentSource
    images: tuple[str, ...] = ()
    tokens: list[str] = field(default_factory=list)

    @classmethod
    def create(cls, lab: Lab, agent: AgentSource) -> "World":
        """Push the images and create the Secret."""
        registry = lab.registry()
        images = [
            registry.push(Image.build([Entry("tool", image_bytes(version))]), "chaos/tool", f"v{version}")
            for version in VERSIONS
        ]
        try:
            lab.api.create("/api/v1/namespaces/kube-system/secrets", secret_object())
        except ApiError as error:
            if error.status != 409:
                raise
        world = cls(lab, agent, tuple(images))
        world.change_token()
        return world

    def change_token(self) -> str:
        """Have the Secret hold another token, of several pages and each time of another length; returns it."""
        token = f"token {len(self.tokens)} " * (1000 + 100 * len(self.tokens))
        self.tokens.append(token)  # before it is there: whoever sees it must find it here
        body = {"metadata": {"name": TOKEN_SECRET}, "stringData": {"token": token}}
        self.lab.api.ensure("/api/v1/namespaces/kube-system/secrets", body)
        self.lab.api.patch(f"/api/v1/namespaces/kube-system/secrets/{TOKEN_SECRET}", body)
        return token

    def worker(self, *, storage: Storage = "tmpfs") -> Worker:
        """Let a fresh machine join, with the operating system's things of the universe."""
        machine = self.lab.add_machine(f"chaos-{next(_numbers)}", storage=storage)
        for name in VENDOR_UNITS:
            machine.write(f"/usr/lib/systemd/system/{name}", _VENDOR.encode())
        machine.write("/etc/of-the-os", b"of the operating system", 0o640)
        machine.systemctl("daemon-reload")
        machine.systemctl("enable", "--now", *VENDOR_UNITS)
        if storage == "ext4":
            power.careful_disk(machine)
        server = f"https://{SERVER_NAME}:6443"
        worker = Worker.join(self.lab, machine, self.agent, server=server, token=_TOKEN)
        registry = self.lab.registry()
        base = worker.base.with_file(CA_FILE, registry.ca_pem, mode=0o644).with_registry(registry.hosts_entry())
        worker = replace(worker, base=base)
        converge(worker, worker.publish(base))
        restart_without_limit(worker)
        return worker

    def remove(self, machine: Machine) -> None:
        """Remove a machine with its Node."""
        with self.lab.removed_after(machine):
            pass

    def osc(self, worker: Worker, recipe: Recipe) -> WorkerOsc:
        """Return the OSC of a recipe for a worker's pool."""
        return build(worker.base, recipe, self.images)


@dataclass(slots=True)
class Twin:
    """A subject, and a reference that is never harmed.

    Attributes:
        world: shared things.
        storage: of the subject's disk.
        remembers: whether what a recipe made of the reference is kept, and the reference gets each recipe once: for few recipes that
            come again and again.
    """

    world: World
    storage: Storage = "tmpfs"
    remembers: bool = False
    subject: Worker = field(init=False)
    reference: Worker = field(init=False)
    _remembered: dict[str, Observed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._join()

    def _join(self) -> None:
        self._remembered.clear()
        self.subject = self.world.worker(storage=self.storage)
        self.reference = self.world.worker()

    def publish_to_both(self, recipe: Recipe) -> str:
        """Publish a recipe for both, for the reference only if it has to be looked at; returns the subject's checksum."""
        for worker in self._concerned(recipe):
            checksum = self.publish(worker, recipe)
        return checksum

    def publish(self, worker: Worker, recipe: Recipe) -> str:
        """Publish a recipe for one of the two, as soon as there is an API server; returns the checksum."""
        osc = self.world.osc(worker, recipe)
        return wait_for(lambda: worker.publish(osc), timeout=PUBLISH_SECONDS, what="the OSC to be published")

    def change_token(self) -> None:
        """Change the token, and wait until the subject has it: all that comes next meets a file that was written just now."""
        token = self.world.change_token().encode()
        machine = self.subject.machine
        wait_for(lambda: machine.read(TOKEN_PATH) == token, timeout=TOKEN_SECONDS, what="the token on the machine")

    def compare(self, recipe: Recipe) -> list[str]:
        """Wait until both have applied a recipe, and return in what they differ, from each other and from it."""
        for worker in self._concerned(recipe):
            converge(worker, self._checksum(worker, recipe))

        def differences() -> list[str]:
            document = self.world.osc(self.subject, recipe).document()
            wanted = self._remembered.get(_key(recipe)) or Observed.of(self.reference.machine)
            found = Observed.of(self.subject.machine).differences(wanted)
            found += file_problems(self.subject.machine, recipe) + state_problems(self.subject.machine, document)
            if self.remembers and not found:
                self._remembered[_key(recipe)] = wanted
            return found

        # What runs only after the Node was annotated, and what systemd does in its own time, may take a moment.
        try:
            wait_for(lambda: not differences(), timeout=QUIET_SECONDS, what="two equal machines", interval=0.3)
        except Exception:  # noqa: BLE001 - what is wrong is what counts
            return differences()
        return []

    def _concerned(self, recipe: Recipe) -> tuple[Worker, ...]:
        """Return the reference, unless it is known what the recipe makes of it, and the subject."""
        return (self.subject,) if _key(recipe) in self._remembered else (self.reference, self.subject)

    def start_from(self, recipe: Recipe) -> None:
        """See to it that this is where both begin; most times they are there already."""
        self.publish_to_both(recipe)
        self.compare(recipe)
        wait_ready(self.subject)

    def restore(self) -> list[str]:
        """Take both back to the OSC that every worker has; returns in what they differ then."""
        self.publish_to_both(EMPTY)
        return self.compare(EMPTY)

    def renew(self) -> None:
        """Begin again with fresh machines."""
        self.close()
        self._join()

    def close(self) -> None:
        """Remove both machines."""
        for worker in (self.subject, self.reference):
            self.world.remove(worker.machine)

    def _checksum(self, worker: Worker, recipe: Recipe) -> str:
        data: Any = self.world.osc(worker, recipe).data()
        return hashlib.sha256(data).hexdigest()


def _key(recipe: Recipe) -> str:
    return json.dumps(recipe, sort_keys=True)


class TwinCampaign:
    """What campaigns with two machines share; these are made when the first case asks for them.

    Args:
        world: shared things.
        seed: of everything that is drawn.
        scratch: folder for logs.
    """

    storage: Storage = "tmpfs"
    remembers = False

    def __init__(self, world: World, *, seed: int, scratch: Path) -> None:
        self._world = world
        self._seed = seed
        self._scratch = scratch
        self._made: Twin | None = None

    @property
    def _twin(self) -> Twin:
        if self._made is None:
            self._made = Twin(self._world, storage=self.storage, remembers=self.remembers)
        return self._made

    def recover(self) -> None:
        """Begin again with fresh machines."""
        if self._made is not None:
            self._made.renew()

    def close(self) -> None:
        """Remove the machines."""
        if self._made is not None:
            self._made.close()
