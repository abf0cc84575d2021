"""`Garden`: an API server with Gardener's kinds, its counterparts, and a seed, which may be the same API server."""

import datetime as dt
import http.client
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.api import Api, wait_for
from tests.lab.binaries import Binaries, find_binaries
from tests.lab.controlplane import ControlPlane, Webhook, free_ports
from tests.lab.garden import permissions
from tests.lab.garden.admission import configurations
from tests.lab.garden.aggregation import HOST, registration, stored_kinds
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
    """A garden and its seed on 127.0.0.1; `up` starts it.

    Attributes:
        ledger: record of what was started.
        version: of Gardener, as the garden says it.
        separate_seed: whether the seed is another API server.
        say: told about progress.
    """

    ledger: Ledger
    version: str = "v1.150.0"
    separate_seed: bool = True
    say: Say = silent
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
            webhook=hook,
            controller_manager=True,
            name="garden",
            audited=audited,
            objects=garden_objects(self.version),
        )
        self.seed = self.plane
        if self.separate_seed:
            self.seed = ControlPlane(
                self.ledger, name="seed", audited=("system:serviceaccounts:garden",), objects=seed_objects()
            )

    def up(self) -> None:
        """Start everything; on an error nothing is left."""
        binaries: Binaries = find_binaries(say=self.say)
        self.ledger.create()
        try:
            for plane in {id(plane): plane for plane in (self.plane, self.seed)}.values():
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
            _wait_served(self.plane.admin, AGGREGATED)
        except BaseException:
            self.down()
            raise

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
            plane.issue_server_certificate("counterparts", ["127.0.0.1", HOST])
        argv = [sys.executable, "-m", "tests.lab.garden", "--port", str(self._port), "--pki", str(plane.pki_folder)]
        argv += ["--server", plane.server, *([] if approver else ["--no-approver"])]
        root = Path(__file__).resolve().parents[3]
        environment = clean_environment(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1")
        spawn(self.ledger, _NAME, argv, log=plane.log_path(_NAME), cwd=root, env=environment)
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

    def create_bootstrap_token(self, seed: str, *, validity: dt.timedelta = dt.timedelta(hours=1)) -> str:
        """Create a bootstrap token for a seed and return it."""
        token = f"{bootstrap_token_id(seed)}.{new_token().partition('.')[2]}"
        secret = token_secret(token, validity=validity, now=dt.datetime.now(dt.UTC))
        self.api.create("/api/v1/namespaces/kube-system/secrets", secret)
        return token

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
        found = [one for one in self.requests() if one.denied and not self.plane.was_starting(one.received)]
        if self.seed is not self.plane:
            self._seed_log = self._seed_log or RequestLog(self.seed.audit_path)
            seen = self._seed_log.read()
            found += [one for one in seen if one.denied and not self.seed.was_starting(one.received)]
        return sorted(found, key=lambda request: request.received)

    def _stop_counterparts(self) -> None:
        process = find(self.ledger, _NAME)
        if process is not None:
            process.kill()

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.plane.ca_path))
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=2, context=context)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()


def _define(api: Api, kinds: tuple[Kind, ...]) -> None:
    """Create the definitions of kinds and wait until all are served."""
    for kind in kinds:
        api.ensure(_DEFINITIONS, kind.definition())
    _wait_served(api, kinds)


def _wait_served(api: Api, kinds: tuple[Kind, ...]) -> None:
    def served() -> bool:
        return all(api.raw("GET", kind.collection)[0] == 200 for kind in kinds)

    wait_for(served, timeout=_ESTABLISHED_SECONDS, what="Gardener's kinds to be served")
