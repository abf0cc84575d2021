"""Bootstrap against a real garden with a seed beside it: from a token to a certificate, and what is left afterwards."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from agents.core.clock import SystemClock
from agents.core.errors import FatalError
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.transport import Call, HttpTransport
from agents.pki.certificate import parse_leaf
from gardenlet.bootstrap.cleanup import clean_up
from gardenlet.bootstrap.garden_kubeconfig import GardenKubeconfig, Origin
from gardenlet.bootstrap.secrets import JOURNAL
from gardenlet.config import GardenClientConnection
from tests.lab.garden.garden import Garden
from tests.lab.garden.identity import bootstrap_token_id

SECRETS = "/api/v1/namespaces/garden/secrets"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


class Killed(BaseException):
    """Stands for SIGKILL: nobody handles it."""


class Dying(HttpTransport):
    """A transport whose process is killed before, or right after, a request that changes something."""

    kill_at = -1
    after = False
    changes = 0

    async def request(self, call: Call, *, deadline: float = 30.0, connect_deadline: float = 3.0) -> bytes:
        """Send a request, or die."""
        if call.method == "GET":
            return await super().request(call, deadline=deadline, connect_deadline=connect_deadline)
        Dying.changes += 1
        dies = Dying.changes == Dying.kill_at
        if dies and not Dying.after:
            raise Killed
        try:
            return await super().request(call, deadline=deadline, connect_deadline=connect_deadline)
        finally:
            if dies:
                raise Killed


@dataclass
class Bootstrapping:
    """One seed's gardenlet before it has a kubeconfig."""

    garden: Garden
    name: str
    clients: list[Client] = field(default_factory=list)

    @property
    def connection(self) -> GardenClientConnection:
        """Return what is configured."""
        return GardenClientConnection.model_validate(
            {
                "kubeconfigSecret": {"namespace": "garden", "name": f"{self.name}-kubeconfig"},
                "bootstrapKubeconfig": {"namespace": "garden", "name": f"{self.name}-bootstrap"},
            }
        )

    def client(self, access: ClusterAccess) -> Client:
        """Return a client that may die."""
        transport = Dying(access, user_agent="test/1", clock=SystemClock())
        self.clients.append(Client(transport=transport, rng=Random(1)))
        return self.clients[-1]

    def seed(self) -> Client:
        """Return a client of the seed."""
        plane = self.garden.seed
        certificate, key = plane.issue_client_certificate("admin", ["system:masters"])
        credentials = Credentials(client_certificate=certificate, client_key=key)
        return self.client(ClusterAccess(server=plane.server, ca_data=plane.ca_pem, credentials=credentials))

    def hand_token(self) -> None:
        """Put a bootstrap kubeconfig into the seed, as whoever deploys a gardenlet does."""
        token, plane = self.garden.create_bootstrap_token(self.name), self.garden.plane
        access = ClusterAccess(server=plane.server, ca_data=plane.ca_pem, credentials=Credentials(token=token))
        data = {"kubeconfig": base64.b64encode(kubeconfig.render(access)).decode()}
        self.garden.seed.admin.create(SECRETS, {"metadata": {"name": f"{self.name}-bootstrap"}, "data": data})

    async def process(self) -> Origin:
        """Do what a process does: resolve, then clean up with what was resolved."""
        seed = self.seed()
        resolving = GardenKubeconfig(
            connection=self.connection,
            seed_name=self.name,
            seed=seed,
            new_client=self.client,
            clock=SystemClock(),
            rng=Random(1),
        )
        found = await resolving.resolve()
        assert resolving.secret is not None
        assert resolving.pending is not None
        garden = self.client(found.access)
        await garden.get_raw("/version")
        assert await clean_up(
            seed=seed, garden=garden, secret=resolving.secret, pending=resolving.pending, clock=SystemClock()
        )
        return found.origin

    def found(self, suffix: str) -> dict[str, Any] | None:
        """Return a Secret of the seed."""
        return self.garden.seed.admin.find(f"{SECRETS}/{self.name}-{suffix}")

    def requests(self) -> list[str]:
        """Return the names of our requests."""
        user = f"system:bootstrap:{self.token_id}"
        return [one["metadata"]["name"] for one in self.garden.api.list(CSRS) if one["spec"]["username"] == user]

    @property
    def token_id(self) -> str:
        """Return the public part of the bootstrap token."""
        return bootstrap_token_id(self.name)

    def leftovers(self) -> list[str]:
        """Return what a finished bootstrap must not leave."""
        token = f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{self.token_id}"
        left = [suffix for suffix in ("bootstrap", "kubeconfig-pending") if self.found(suffix)]
        left += ["token"] if self.garden.api.find(token) else []
        stored = self.found("kubeconfig")
        left += [JOURNAL] if stored and JOURNAL in (stored["metadata"].get("annotations") or {}) else []
        return left

    async def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            with suppress(Exception):
                await client.close()
        self.clients.clear()


@pytest.fixture
async def bootstrapping(garden: Garden) -> AsyncIterator[Bootstrapping]:
    """A seed that nobody knows, with a bootstrap kubeconfig."""
    found = Bootstrapping(garden, f"seed-{uuid4().hex[:8]}")
    Dying.kill_at, Dying.changes = -1, 0
    found.hand_token()
    yield found
    await found.close()


@pytest.fixture(autouse=True)
def _nobody_dies_later() -> Iterator[None]:
    yield
    Dying.kill_at = -1


async def test_from_a_token_to_a_certificate(bootstrapping: Bootstrapping) -> None:
    """Contract core 3.2 to 3.5, 13.1.1: CSR approved, kubeconfig stored, bootstrap Secret and token gone; then it is used."""
    assert await bootstrapping.process() is Origin.BOOTSTRAPPED
    stored = bootstrapping.found("kubeconfig")
    assert stored is not None
    assert set(stored["data"]) == {"kubeconfig"}
    access = kubeconfig.parse(base64.b64decode(stored["data"]["kubeconfig"]))
    leaf = parse_leaf(access.credentials.client_certificate)
    assert leaf.common_name == f"gardener.cloud:system:seed:{bootstrapping.name}"
    assert leaf.organizations == ("gardener.cloud:system:seeds",)
    assert access.ca_data == bootstrapping.garden.plane.ca_pem
    assert bootstrapping.leftovers() == []
    (name,) = bootstrapping.requests()
    assert name.startswith("seed-csr-")
    assert await bootstrapping.process() is Origin.STORED


async def test_killed_at_every_write(garden: Garden) -> None:
    """Contract core 13.1.2, W6, W8: before and after each write of a bootstrap: converges, one CSR, no token left."""
    for after in (False, True):
        for number in range(1, 30):
            one = Bootstrapping(garden, f"seed-{uuid4().hex[:8]}")
            one.hand_token()
            Dying.changes, Dying.kill_at, Dying.after = 0, number, after
            killed = await dies(one.process)
            Dying.kill_at = -1
            await one.close()
            await one.process()
            await one.close()
            assert (one.leftovers(), len(one.requests())) == ([], 1), (
                f"killed {'after' if after else 'before'} {number}"
            )
            await one.close()
            if not killed:
                break
        assert number == 9


async def dies(body: Callable[[], Awaitable[object]]) -> bool:
    """Tell whether a process was killed."""
    try:
        await body()
    except Killed:
        return True
    return False


async def test_a_bootstrap_secret_that_was_not_used_stays(bootstrapping: Bootstrapping) -> None:
    """Contract core 3.1: an operator's new bootstrap kubeconfig is not removed by an older journal."""
    one = bootstrapping
    Dying.changes, Dying.kill_at, Dying.after = 0, 4, False  # right before the bootstrap Secret would be removed
    assert await dies(one.process)
    Dying.kill_at = -1
    assert one.found("kubeconfig") is not None
    bootstrap = one.found("bootstrap")
    assert bootstrap is not None
    one.garden.seed.admin.delete(f"{SECRETS}/{one.name}-bootstrap")
    one.garden.seed.admin.create(SECRETS, {"metadata": {"name": f"{one.name}-bootstrap"}, "data": bootstrap["data"]})
    assert await one.process() is Origin.STORED
    assert one.leftovers() == ["bootstrap"]


@pytest.mark.parametrize("stored", ["expired", "torn", "exec"])
async def test_a_stored_kubeconfig_that_cannot_be_used_is_replaced(bootstrapping: Bootstrapping, stored: str) -> None:
    """Contract core 3.1, W7, W9: expired, damaged or with refused fields: bootstrapped again where there is material."""
    one = bootstrapping
    content = b"apiVersion: v1\nclusters: ["
    if stored == "expired":
        pair = one.garden.gardenlet_certificate(one.name, validity=-timedelta(seconds=1), age=timedelta(hours=1))
        credentials = Credentials(client_certificate=pair[0], client_key=pair[1])
        content = kubeconfig.render(ClusterAccess(server=one.garden.plane.server, credentials=credentials))
    elif stored == "exec":
        content = b"current-context: x\nusers: [{name: u, user: {exec: {command: /bin/evil}}}]"
    body = {"metadata": {"name": f"{one.name}-kubeconfig"}, "data": {"kubeconfig": base64.b64encode(content).decode()}}
    one.garden.seed.admin.create(SECRETS, body)
    assert await one.process() is Origin.BOOTSTRAPPED
    assert one.leftovers() == []


async def test_without_material_it_waits_and_is_woken_by_it(garden: Garden) -> None:
    """Contract core 1.2, W1: a bootstrap Secret that comes later is found; only configuration errors are fatal."""
    one = Bootstrapping(garden, f"seed-{uuid4().hex[:8]}")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(one.process())
        await asyncio.sleep(0.5)
        assert not task.done()
        await asyncio.to_thread(one.hand_token)
    assert task.result() is Origin.BOOTSTRAPPED
    await one.close()


async def test_a_configuration_without_any_way_is_fatal(garden: Garden) -> None:
    """Contract core 3.1: neither a Secret nor a file: an error that names both."""
    one = Bootstrapping(garden, "nobody")
    resolving = GardenKubeconfig(
        connection=GardenClientConnection(),
        seed_name="nobody",
        seed=one.seed(),
        new_client=one.client,
        clock=SystemClock(),
        rng=Random(1),
    )
    with pytest.raises(FatalError, match="kubeconfigSecret"):
        await resolving.resolve()
    await one.close()
