"""`Lab`: a control plane, its counterparts and machines, held together by one ledger."""

import datetime as dt
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.lab import credentials, packages, state
from tests.lab.agent import REPOSITORY, AgentSource
from tests.lab.api import Api
from tests.lab.binaries import KUBERNETES_VERSION, Binaries, cache_root, find_binaries
from tests.lab.capability import why_no_lab
from tests.lab.controlplane import ControlPlane, Placement, Webhook
from tests.lab.counterparts.server import WEBHOOK_PATH
from tests.lab.counterparts_process import PORT, Counterparts
from tests.lab.errors import ApiError, LabError
from tests.lab.image import ImageSource
from tests.lab.machine import Machine, MachinePlace, Storage
from tests.lab.network import SERVER_ADDRESS, SERVER_NAME, SERVER_PORT, LabNetwork, MachineAddress
from tests.lab.node_init import registry_ca_objects
from tests.lab.processes import find
from tests.lab.progress import Say, silent
from tests.lab.registry import Kind, Registry
from tests.lab.requests import Request, RequestLog, unexpected_denials
from tests.lab.state import Ledger
from tests.lab.tokens import new_token, token_secret
from tests.lab.worker_images import publish_worker_images
from tests.lab.worker_osc import (
    AGENT_UNIT,
    CHECKSUM_ANNOTATION,
    INIT_UNIT,
    WorkerImages,
    WorkerOsc,
    WorkerPool,
    osc_secret,
)

DEFAULT_NAME = "lab"
DEFAULT_POOL = "worker"
_ETCD_PORT = 2379
_MOST_MACHINES = 200
_SECRETS = "/api/v1/namespaces/kube-system/secrets"


class Lab:
    """One lab; `up` starts it, the constructor alone attaches to one that runs.

    Attributes:
        name: labs of different names do not meet.
        ledger: record of what was started.
        network: namespace and bridge.
    """

    def __init__(self, name: str | None = None, *, root: Path | None = None, say: Say = silent) -> None:
        self.name = name or os.environ.get("LAB_NAME") or DEFAULT_NAME
        self.ledger = Ledger(self.name, root=root)
        self.network = LabNetwork(self.ledger)
        self._root = root
        self._say = say
        self._plane: ControlPlane | None = None
        self._binaries: Binaries | None = None
        self._log: RequestLog | None = None
        self._images: dict[AgentSource, WorkerImages] = {}
        self._registry_ca = ""

    def up(self, *, apiserver_flags: Mapping[str, str] | None = None, keep: bool = False) -> None:
        """Bring what is missing on the host, clear what a killed run left, and start the control plane.

        Args:
            apiserver_flags: flags of kube-apiserver, added or replaced.
            keep: whether the lab outlives this process; otherwise the next lab clears it once we are gone.

        Raises:
            LabError: this host cannot run a lab, or this one is up already.
        """
        reason = why_no_lab()
        if reason is not None:
            raise LabError(reason)
        packages.ensure_tools(say=self._say)
        self._binaries = find_binaries(say=self._say)
        state.remove_abandoned(root=self._root)
        if self.is_up():
            raise LabError(f"lab {self.name!r} is up already")
        self.ledger.remove()
        self.ledger.create()
        state.claim(self.ledger)
        try:
            self._start(apiserver_flags or {})
        except BaseException:
            self.down()
            raise
        if keep:
            state.release(self.ledger)

    def _start(self, flags: Mapping[str, str]) -> None:
        self.network.create()
        plane = self._new_plane(flags)
        plane.prepare()
        plane.start()
        self.counterparts.start()

    def down(self) -> None:
        """End and remove everything, whoever started it; nothing to do is fine."""
        if self.ledger.exists():
            self.ledger.remove()

    def is_up(self) -> bool:
        """Whether the control plane was started and still runs."""
        return self.ledger.exists() and find(self.ledger, "etcd") is not None

    def require_up(self) -> None:
        """Raise unless the lab is up."""
        if not self.is_up():
            raise LabError(f"lab {self.name!r} is not up; start it with: python -m tests.lab up")

    @property
    def control_plane(self) -> ControlPlane:
        """The API server and what belongs to it."""
        if self._plane is None:
            self.require_up()
            self._plane = self._new_plane({})
        return self._plane

    @property
    def counterparts(self) -> Counterparts:
        """Authorizer and CSR approver."""
        return Counterparts(self.control_plane)

    def registry(self, kind: Kind = "tls") -> Registry:
        """Return a container registry in the lab's network; started when it is asked for first."""
        self.require_up()
        registry = Registry(self.ledger, self.network, kind)
        registry.start()
        return registry

    @property
    def api(self) -> Api:
        """Client with an administrator's rights."""
        return self.control_plane.admin

    def _new_plane(self, flags: Mapping[str, str]) -> ControlPlane:
        placement = Placement(
            address=self.network.host_side_address,
            inside=SERVER_ADDRESS,
            port=SERVER_PORT,
            etcd_port=_ETCD_PORT,
            netns=self.network.netns,
            names=(SERVER_NAME,),
        )
        self._plane = ControlPlane(
            self.ledger,
            binaries=self._binaries,
            placement=placement,
            webhook=Webhook(f"https://127.0.0.1:{PORT}{WEBHOOK_PATH}"),
            controller_manager=True,
            flags=flags,
        )
        return self._plane

    def add_machine(self, name: str, *, storage: Storage = "tmpfs") -> Machine:
        """Boot a new machine: what an operating system's image has, and nothing of user data.

        Args:
            name: host name; lower case, digits and dashes.
            storage: `tmpfs`, or `ext4` on a loop device.

        Raises:
            LabError: the name is taken or no host name.
        """
        self.require_up()
        if not name or not all(c.isdigit() or c.islower() or c == "-" for c in name) or len(name) > 40:
            raise LabError(f"machine name {name!r}: lower case letters, digits and dashes")
        known = self._known()
        if name in known:
            raise LabError(f"machine {name!r} exists already")
        index = next(i for i in range(_MOST_MACHINES) if i not in known.values())
        self.ledger.record("machine", name=name, index=index, owner=name)
        source = ImageSource(hidden=(REPOSITORY, cache_root()))
        return Machine.create(self._place(index), name, source, storage=storage)

    def machine(self, name: str) -> Machine:
        """Return a machine by name.

        Raises:
            LabError: there is none of that name.
        """
        self.require_up()
        known = self._known()
        if name not in known:
            raise LabError(f"no machine {name!r}; there are: {', '.join(known) or 'none'}")
        return Machine(self._place(known[name]), name)

    @property
    def machines(self) -> dict[str, Machine]:
        """All machines by name, running or not."""
        return {name: Machine(self._place(index), name) for name, index in self._known().items()}

    def _known(self) -> dict[str, int]:
        return {entry["name"]: entry["index"] for entry in self.ledger.entries("machine")}

    def _place(self, index: int) -> MachinePlace:
        return MachinePlace(self.ledger, self.network, MachineAddress(index))

    def agent(self, kind: str) -> AgentSource:
        """Return the agent to put on machines: `binary` or `source`."""
        staging = self.ledger.directory / "agent-source"
        return AgentSource("source" if kind == "source" else "binary", staging)

    def pool(self, agent: AgentSource, name: str = DEFAULT_POOL) -> WorkerPool:
        """Return a worker pool of this cluster for machines with that agent; its programs come out of images."""
        plane, version = self.control_plane, agent.version()
        images = self.worker_images(agent)
        return WorkerPool(name, plane.server_inside, plane.ca_pem.decode(), version, KUBERNETES_VERSION, images)

    def worker_images(self, agent: AgentSource) -> WorkerImages:
        """Return the images of that agent and of the kubelet; pushed to the lab's registry when they are asked for first."""
        if agent not in self._images:
            if self._binaries is None:
                self._binaries = find_binaries(say=self._say)
            self._images[agent] = publish_worker_images(self.registry(), agent, self._binaries.kubelet)
        return self._images[agent]

    def create_bootstrap_token(self, *, validity: dt.timedelta = dt.timedelta(hours=1)) -> str:
        """Create a bootstrap token and return it."""
        token = new_token()
        self.api.create(_SECRETS, token_secret(token, validity=validity, now=dt.datetime.now(dt.UTC)))
        return token

    def publish_registry_ca(self, pem: str) -> None:
        """Let bootstrapping machines read the CA of the registry that has their agent: contract 8.1."""
        if self._registry_ca == pem:
            return
        for collection, manifest in registry_ca_objects(pem):
            try:
                self.api.create(collection, manifest)
            except ApiError as error:
                if error.status != 409:
                    raise
        self._registry_ca = pem

    def publish_osc(self, osc: WorkerOsc, *, secret_name: str | None = None) -> str:
        """Write the OSC's Secret, as gardenlet and gardener-resource-manager do; returns the checksum."""
        return self.publish_osc_bytes(osc.data(), pool=osc.pool.name, secret_name=secret_name or osc.pool.secret_name)

    def publish_osc_bytes(self, data: bytes, *, pool: str, secret_name: str) -> str:
        """Write arbitrary bytes as an OSC's Secret; returns the checksum."""
        secret = osc_secret(pool, secret_name, data)
        try:
            self.api.patch(f"{_SECRETS}/{secret_name}", secret)
        except ApiError as error:
            if error.status != 404:
                raise
            self.api.create(_SECRETS, secret)
        checksum: str = secret["metadata"]["annotations"][CHECKSUM_ANNOTATION]
        return checksum

    def requests(self) -> list[Request]:
        """Return all requests that node agents and bootstrapping machines made, and those that made or removed Nodes."""
        if self._log is None:
            self._log = RequestLog(self.control_plane.audit_path)
        return self._log.read()

    def denials(self) -> list[Request]:
        """Return all requests of node agents and bootstrapping machines that were refused."""
        return [request for request in self.requests() if request.denied and request.observed]

    def unexpected_denials(self) -> list[Request]:
        """Return the refused requests that are a fault: see `requests.unexpected_denials`."""
        return unexpected_denials(self.requests(), [*self.counterparts.outages(), *self.control_plane.transitions])

    def delete_node(self, name: str) -> None:
        """Delete a Node object, as machine-controller-manager does for a machine that is gone."""
        self.api.delete(f"/api/v1/nodes/{name}")

    @contextmanager
    def removed_after(self, machine: Machine) -> Iterator[Machine]:
        """Remove a machine and its Node after a block.

        Raises:
            LabError: a credential is in what its agent printed, or in an event.
        """
        try:
            yield machine
            if machine.running() and (found := self.credentials_printed(machine)):
                raise LabError(f"credentials were printed: {', '.join(found)}")
        finally:
            machine.stop()
            self.delete_node(machine.name)
            shutil.rmtree(machine.base, ignore_errors=True)

    def credentials_printed(self, machine: Machine) -> list[str]:
        """Return which credentials are in what a machine's agent printed or in an event, without repeating them."""
        argv = ["journalctl", "--no-pager", "--output=cat", *(f"--unit={unit}" for unit in (AGENT_UNIT, INIT_UNIT))]
        journal = (f"journal of {machine.name}", machine.run(argv).stdout)
        # Nothing where no agent runs.
        answer = machine.run(["curl", "-s", "--max-time", "5", "http://127.0.0.1:2752/metrics"], check=False)
        metrics = (f"metrics of {machine.name}", answer.stdout)
        return credentials.found_in_all([journal, metrics, credentials.events_of(self.api)])
