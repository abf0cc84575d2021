"""`Garden`: an API server with Gardener's kinds, its counterparts, and a seed, which may be the same API server."""

import base64
import datetime as dt
import http.client
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.lab.api import Api, wait_for
from tests.lab.binaries import Binaries, find_binaries
from tests.lab.controlplane import ControlPlane, Placement, Webhook, free_ports
from tests.lab.garden import permissions
from tests.lab.garden.admission import configurations
from tests.lab.garden.aggregation import API_SERVICES, GROUPS, HOST, attached, detached, registration, stored_kinds
from tests.lab.garden.authorization import CONDITION
from tests.lab.garden.bundle import garden_objects, seed_objects
from tests.lab.garden.crds import AGGREGATED, GARDEN, SEED, Kind
from tests.lab.garden.identity import SEEDS_GROUP, USER_PREFIX, bootstrap_token_id
from tests.lab.garden.server import AUTHORIZER_PATH
from tests.lab.processes import clean_environment, find, spawn
from tests.lab.progress import Say, silent
from tests.lab.requests import Request, RequestLog
from tests.lab.state import Ledger
from tests.lab.tokens import new_token, token_secret

_NAME = "garden-counterparts"
_ESTABLISHED_SECONDS = 30.0
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(slots=True)
class Garden:
    """A garden and its seed on 127.0.0.1, or where a placement says; `up` starts it.

    Attributes:
        ledger: record of what was started.
        version: of Gardener, as the garden says it.
        separate_seed: whether the seed is another API server.
        say: told about progress.
        placement: where the garden listens.
        given_seed: a control plane that is up and becomes the seed; what gardenlet may do there, whoever installs it says.
    """

    ledger: Ledger
    version: str = "v1.150.0"
    separate_seed: bool = True
    say: Say = silent
    placement: Placement = field(default_factory=Placement)
    given_seed: ControlPlane | None = None
    plane: ControlPlane = field(init=False)
    seed: ControlPlane = field(init=False)
    _port: int = 0
    _log: RequestLog | None = None
    _seed_log: RequestLog | None = None

    def __post_init__(self) -> None:
        self._port = free_ports(1)[0]
        hook = Webhook(f"https://127.0.0.1:{self._port}{AUTHORIZER_PATH}", "seed-authorizer", CONDITION)
        audited = (SEEDS_GROUP, "system:bootstrappers")
        self.plane = ControlPlane(
            self.ledger,
            placement=self.placement,
            webhook=hook,
            controller_manager=True,
            name="garden",
            audited=audited,
            objects=garden_objects(self.version),
        )
        self.seed = self.given_seed or self.plane
        if self.separate_seed and self.given_seed is None:
            self.seed = ControlPlane(
                self.ledger, name="seed", audited=("system:serviceaccounts:garden",), objects=seed_objects()
            )

    def up(self) -> None:
        """Start everything; on an error nothing is left."""
        binaries: Binaries = find_binaries(say=self.say)
        self.ledger.create()
        try:
            for plane in {
                id(plane): plane for plane in (self.plane, self.seed) if plane is not self.given_seed
            }.values():
                plane.binaries = binaries
                plane.prepare()
                plane.start()
            _define(self.plane.admin, (*GARDEN, *stored_kinds()))
            _define(self.seed.admin, SEED)
            self.start_counterparts()
            for path, body in configurations(f"https://127.0.0.1:{self._port}", self.plane.ca_pem):
                self.plane.admin.ensure(path, body)
            for path, body in registration(self._port, self.plane.ca_pem):
                self.plane.admin.ensure(path, body)
            _wait_answer(self.plane.admin, AGGREGATED, 200)
        except BaseException:
            self.stop() if self.given_seed else self.down()
            raise

    def stop(self) -> None:
        """End the garden alone: its record belongs to a lab that goes on."""
        self._stop_counterparts()
        self.plane.stop()

    def down(self) -> None:
        """End and remove everything."""
        if self.ledger.exists():
            self.ledger.remove()

    @property
    def api(self) -> Api:
        """Client of the garden with an administrator's rights."""
        return self.plane.admin

    def start_counterparts(self, *, approver: bool = True) -> None:
        """Start authorizer, admission and controllers, and wait until they answer."""
        plane = self.plane
        if not (plane.pki_folder / "counterparts.crt").exists():
            plane.issue_server_certificate("counterparts", ["127.0.0.1", HOST, plane.placement.address])
        argv = [sys.executable, "-m", "tests.lab.garden", "--port", str(self._port), "--pki", str(plane.pki_folder)]
        # From outside of its network namespace only we ask, whether it is well.
        argv += ["--listen", "0.0.0.0" if plane.placement.netns else "127.0.0.1"]
        argv += ["--server", plane.server, *([] if approver else ["--no-approver"])]
        root = Path(__file__).resolve().parents[3]
        environment = clean_environment(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1")
        netns = plane.placement.netns
        spawn(self.ledger, _NAME, argv, log=plane.log_path(_NAME), netns=netns, cwd=root, env=environment)
        wait_for(self._healthy, timeout=20, what="the garden's counterparts to answer")

    @contextmanager
    def without_approver(self) -> Iterator[None]:
        """Leave CSRs undecided for the length of a block; the webhooks are down for a moment at both ends."""
        self._stop_counterparts()
        self.start_counterparts(approver=False)
        try:
            yield
        finally:
            self._stop_counterparts()
            self.start_counterparts()

    @contextmanager
    def without_gardener(self) -> Iterator[None]:
        """Have Gardener's groups answer 503 for the length of a block, as where its own API server, behind Kubernetes', is down."""
        dead = free_ports(1)[0]
        gone = [one for one in self.api.list(API_SERVICES) if one["metadata"]["name"].endswith(GROUPS)]
        for one in gone:
            self.api.patch(f"{API_SERVICES}/{one['metadata']['name']}", detached(one, dead))
        kinds = (*GARDEN, *AGGREGATED)
        _wait_answer(self.api, kinds, 503)
        try:
            yield
        finally:
            for one in gone:
                self.api.patch(f"{API_SERVICES}/{one['metadata']['name']}", attached(one))
            _wait_answer(self.api, kinds, 200)

    def create_bootstrap_token(self, seed: str, *, validity: dt.timedelta = dt.timedelta(hours=1)) -> str:
        """Create a bootstrap token for a seed and return it."""
        token = f"{bootstrap_token_id(seed)}.{new_token().partition('.')[2]}"
        secret = token_secret(token, validity=validity, now=dt.datetime.now(dt.UTC))
        self.api.create("/api/v1/namespaces/kube-system/secrets", secret)
        return token

    def bootstrap_kubeconfig(self, seed: str, *, server: str = "") -> str:
        """Return a kubeconfig with a fresh bootstrap token for a seed, as YAML.

        Args:
            seed: its name.
            server: URL under which it reaches the garden; the garden's own where empty.
        """
        authority = base64.b64encode(self.plane.ca_pem).decode()
        cluster = {"server": server or self.plane.server, "certificate-authority-data": authority}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "garden", "cluster": cluster}],
            "users": [{"name": "bootstrap", "user": {"token": self.create_bootstrap_token(seed)}}],
            "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "bootstrap"}}],
            "current-context": "garden",
        }
        return str(yaml.safe_dump(document))

    def gardenlet_certificate(self, seed: str, **validity: dt.timedelta) -> tuple[bytes, bytes]:
        """Return a certificate and key of a seed's gardenlet, both PEM."""
        return self.plane.issue_client_certificate(USER_PREFIX + seed, [SEEDS_GROUP], **validity)

    def seed_certificate(self) -> tuple[bytes, bytes]:
        """Return certificate and key, both PEM, with which gardenlet is what its ServiceAccount would be in the seed."""
        return self.seed.issue_client_certificate(permissions.USER, permissions.GROUPS)

    def requests(self) -> list[Request]:
        """Return all requests of gardenlets and of bootstrapping ones to the garden."""
        if self._log is None:
            self._log = RequestLog(self.plane.audit_path)
        return self._log.read()

    def seed_requests(self) -> list[Request]:
        """Return all requests of gardenlets to the seed, where that is another API server."""
        if self._seed_log is None:
            self._seed_log = RequestLog(self.seed.audit_path)
        return [request for request in self._seed_log.read() if request.user == permissions.USER]

    def denials(self) -> list[Request]:
        """Return those that were refused, by the garden or by the seed, oldest first."""
        found = [one for one in self.requests() if one.denied and not self.plane.was_in_transition(one.received)]
        if self.seed is not self.plane:
            self._seed_log = self._seed_log or RequestLog(self.seed.audit_path)
            seen = self._seed_log.read()
            found += [one for one in seen if one.denied and not self.seed.was_in_transition(one.received)]
        return sorted(found, key=lambda request: request.received)

    def _stop_counterparts(self) -> None:
        process = find(self.ledger, _NAME)
        if process is not None:
            process.kill()

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.plane.ca_path))
        connection = http.client.HTTPSConnection(self.placement.address, self._port, timeout=2, context=context)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()


def _define(api: Api, kinds: tuple[Kind, ...]) -> None:
    """Create the definitions of kinds and wait until all are served."""
    for kind in kinds:
        api.ensure(_DEFINITIONS, kind.definition())
    _wait_answer(api, kinds, 200)


def _wait_answer(api: Api, kinds: tuple[Kind, ...], code: int) -> None:
    def answered() -> bool:
        return all(api.raw("GET", kind.collection)[0] == code for kind in kinds)

    wait_for(answered, timeout=_ESTABLISHED_SECONDS, what=f"Gardener's kinds to be answered with {code}")
