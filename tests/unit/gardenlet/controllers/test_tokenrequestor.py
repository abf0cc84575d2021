"""Tokens of ServiceAccounts in the garden, for Secrets of the seed."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.errors import Conflict, ServerError
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import SECRETS
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from gardenlet.apis.core_objects import SERVICE_ACCOUNTS
from gardenlet.controllers.tokenrequestor import serviceaccount as requestor
from gardenlet.controllers.tokenrequestor.marks import ASKED
from gardenlet.controllers.tokenrequestor.renewal import renewal
from tests.lab import pki
from tests.support.clock import EPOCH, FakeClock
from tests.support.fake_api import Document, FakeApi
from tests.support.tasks import running

LABELS = {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "garden"}
TOKEN_PATH = "/api/v1/namespaces/seed-one/serviceaccounts/{}/token"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
CA, OTHER_CA = (pki.Authority.create(name).certificate_pem for name in ("ca", "other"))


class Asking:
    """A seed with a Secret that asks, and a garden that answers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.garden, self.seed = FakeApi(), FakeApi()
        self.issued: list[Document] = []
        self.reviews = 0
        self.revoked: set[str] = set()
        self.bundle = CA
        for account in ("extension-a", "extension-b"):
            self.garden.answer(TOKEN_PATH.format(account), lambda body, name=account: self._issue(name, body))  # type: ignore[misc]
        self.garden.answer(REVIEWS, self._review)

    def _issue(self, account: str, body: Document) -> Document:
        self.issued.append({"account": account, **body["spec"]})
        expires = self.clock.now() + timedelta(seconds=body["spec"]["expirationSeconds"])
        token = f"token-{len(self.issued)}"
        return {"status": {"token": token, "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}}

    def _review(self, body: Document) -> Document:
        self.reviews += 1
        return {"status": {"authenticated": body["spec"]["token"] not in self.revoked}}

    def ask(
        self, name: str = "asks", *, account: str, data: dict[str, bytes] | None = None, **annotations: str
    ) -> None:
        """Create or change a Secret that asks; annotations without their prefix."""
        prefix = "serviceaccount.resources.gardener.cloud/"
        wish = {prefix + key.replace("_", "-"): value for key, value in {"name": account, **annotations}.items()}
        found = self.seed.read(SECRETS, name, "ns") or {"metadata": {}}
        kept = {
            key: value
            for key, value in (found["metadata"].get("annotations") or {}).items()
            if key in (requestor.RENEW, ASKED)
        }
        metadata = {"name": name, "namespace": "ns", "labels": LABELS, "annotations": {**kept, **wish}}
        encoded = {key: base64.b64encode(value).decode() for key, value in (data or {}).items()}
        self.seed.put(SECRETS, {"metadata": metadata, "data": encoded or found.get("data") or {}})

    def secret(self, name: str = "asks") -> Document:
        """Return the Secret."""
        found = self.seed.read(SECRETS, name, "ns")
        assert found is not None
        return found

    def data(self, name: str = "asks") -> dict[str, bytes]:
        """Return what it holds."""
        return {key: base64.b64decode(value) for key, value in (self.secret(name).get("data") or {}).items()}

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Run the controller."""
        seed, garden = (Client(transport=api, rng=Random(1)) for api in (self.seed, self.garden))
        cache = Cache(client=seed, clock=self.clock, rng=Random(2))
        secrets = cache.informer(SECRETS, label_selector=requestor.SELECTOR)
        parts = requestor.Parts(
            namespace="seed-one", seed=seed, garden=garden, bundle=lambda: self.bundle, clock=self.clock, rng=Random(3)
        )
        controller = requestor.new_controller(parts, secrets, workers=5)
        environment = Environment(clock=self.clock, rng=Random(4), metrics=Metrics())
        async with running(cache.run, lambda: controller.run(environment)):
            await asyncio.sleep(2)
            yield


@pytest.fixture
async def asking() -> Asking:
    """A seed where nobody asks yet."""
    return Asking()


async def test_a_token_for_a_secret(asking: Asking) -> None:
    """Contract core 9.1: ServiceAccount in the Seed's namespace, twelve hours by default, the time of renewal beside the token."""
    asking.ask(account="extension-a", labels='{"a": "b"}')
    async with asking.going():
        account = asking.garden.read(SERVICE_ACCOUNTS, "extension-a", "seed-one")
        assert account is not None
        assert account["metadata"]["labels"] == {"a": "b"}
        assert account["automountServiceAccountToken"] is False
        assert asking.issued == [{"account": "extension-a", "expirationSeconds": 43200}]
        assert asking.data() == {"token": b"token-1"}
        due = datetime.fromisoformat(asking.secret()["metadata"]["annotations"][requestor.RENEW])
        assert timedelta(hours=9.6) <= due - EPOCH <= timedelta(hours=10.1)


async def test_renewed_in_time_and_not_before(asking: Asking) -> None:
    """Contract core 9.1: after 80 to 84 % of its life another one, and in between nothing is asked but one review."""
    asking.ask(account="extension-a")
    async with asking.going():
        await asyncio.sleep(9.5 * 3600)
        assert len(asking.issued) == 1
        assert asking.reviews <= 1
        await asyncio.sleep(0.7 * 3600)
        assert len(asking.issued) == 2
        assert asking.data() == {"token": b"token-2"}


async def test_a_restart_asks_for_nothing_new(asking: Asking) -> None:
    """Contract core 9.1: a good token is reviewed once and kept; one that was revoked is replaced (counterparts 17.7 #19)."""
    asking.ask(account="extension-a")
    async with asking.going():
        pass
    async with asking.going():
        assert len(asking.issued) == 1
        for number in range(5):
            secret = asking.secret()
            other = base64.b64encode(str(number).encode()).decode()
            asking.seed.put(SECRETS, {**secret, "data": {**secret["data"], "other": other}})
            await asyncio.sleep(10)
        assert asking.reviews == 1
        assert len(asking.issued) == 1
    asking.revoked.add("token-1")
    async with asking.going():
        assert asking.data()["token"] == b"token-2"


async def test_a_changed_wish_is_fulfilled_at_once(asking: Asking) -> None:
    """Contract core 9, W38: another account or another life is asked for now, and not at the next renewal."""
    asking.ask(account="extension-a")
    async with asking.going():
        asking.ask(account="extension-b")
        await asyncio.sleep(2)
        assert [one["account"] for one in asking.issued] == ["extension-a", "extension-b"]
        asking.ask(account="extension-b", token_expiration_duration="1h")
        await asyncio.sleep(2)
        assert asking.issued[-1]["expirationSeconds"] == 3600


async def test_a_kubeconfig_gets_the_token_inside(asking: Asking) -> None:
    """Contract core 9.1: token and CA of the current context are replaced, the rest stays."""
    access = ClusterAccess(server="https://garden", ca_data=OTHER_CA, credentials=Credentials(token="old"))
    asking.ask(
        data={"kubeconfig": kubeconfig.render(access), "other": b"x"}, account="extension-a", inject_ca_bundle="true"
    )
    async with asking.going():
        found = kubeconfig.parse(asking.data()["kubeconfig"])
        assert (found.credentials.token, found.ca_data, found.server) == ("token-1", CA, "https://garden")
        assert asking.data()["other"] == b"x"
        assert "token" not in asking.data()


async def test_the_gardens_ca(asking: Asking) -> None:
    """Contract core 9.1, counterparts 17.7 #19: the CA goes with the token, and another CA brings another token."""
    asking.ask(account="extension-a", inject_ca_bundle="true")
    async with asking.going():
        assert asking.data() == {"token": b"token-1", "bundle.crt": CA}
    asking.bundle = OTHER_CA
    async with asking.going():
        assert asking.data() == {"token": b"token-2", "bundle.crt": OTHER_CA}


async def test_a_target_in_the_garden(asking: Asking) -> None:
    """Contract core 9.1: the token goes there, and nothing of it stays in the Secret that asks; a target that is gone comes back."""
    target = {
        "token-requestor.resources.gardener.cloud/target-secret-name": "there",
        "token-requestor.resources.gardener.cloud/target-secret-namespace": "seed-one",
        requestor.NAME: "extension-a",
    }
    metadata = {"name": "asks", "namespace": "ns", "labels": LABELS, "annotations": target}
    old = {key: base64.b64encode(b"old").decode() for key in ("token", "kept")}
    asking.seed.put(SECRETS, {"metadata": metadata, "data": old})
    async with asking.going():
        found = asking.garden.read(SECRETS, "there", "seed-one")
        assert found is not None
        assert base64.b64decode(found["data"]["token"]) == b"token-1"
        assert asking.data() == {"kept": b"old"}
    asking.garden.remove(SECRETS, "there", "seed-one")
    async with asking.going():
        assert asking.garden.read(SECRETS, "there", "seed-one") is not None


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {requestor.NAME: "extension-a", requestor.LABELS: "{"},
        {requestor.NAME: "extension-a", requestor.LABELS: "[1]"},
        {requestor.NAME: "extension-a", requestor.LIFE: "soon"},
    ],
)
async def test_a_wish_that_cannot_be_fulfilled(asking: Asking, annotations: dict[str, str]) -> None:
    """Contract core 9.1: an error, nothing is changed, and the others get theirs."""
    metadata = {"name": "bad", "namespace": "ns", "labels": LABELS, "annotations": annotations}
    asking.seed.put(SECRETS, {"metadata": metadata, "data": {}})
    asking.ask(account="extension-b")
    async with asking.going():
        assert asking.data("bad") == {}
        assert asking.data() == {"token": b"token-1"}


async def test_a_malformed_time_is_an_error(asking: Asking) -> None:
    """Contract core 9.1: what somebody wrote into our annotation is named, and the token stays."""
    asking.ask(account="extension-a")
    async with asking.going():
        secret = asking.secret()
        annotations = {**secret["metadata"]["annotations"], requestor.RENEW: "tomorrow"}
        asking.seed.put(SECRETS, {**secret, "metadata": {**secret["metadata"], "annotations": annotations}})
    async with asking.going():
        assert asking.data() == {"token": b"token-1"}
        assert len(asking.issued) == 1


async def test_failures_and_conflicts(asking: Asking) -> None:
    """Contract core 9.1: written from a fresh read after a conflict; a garden that fails is asked again."""
    asking.garden.fail(ServerError("no", status=500), method="POST", times=1)
    asking.seed.fail(Conflict("changed", status=409), method="PATCH", times=2)
    asking.ask(account="extension-a")
    async with asking.going():
        await asyncio.sleep(30)
        assert asking.data()["token"].startswith(b"token-")


async def test_a_token_that_somebody_takes_away(asking: Asking) -> None:
    """Contract core 9.1: an empty Secret, or one without its time, gets another token."""
    asking.ask(account="extension-a")
    async with asking.going():
        secret = asking.secret()
        asking.seed.put(SECRETS, {**secret, "data": {}})
        await asyncio.sleep(2)
        assert asking.data() == {"token": b"token-2"}
        secret = asking.secret()
        annotations = {key: value for key, value in secret["metadata"]["annotations"].items() if key != requestor.RENEW}
        asking.seed.put(SECRETS, {**secret, "metadata": {**secret["metadata"], "annotations": annotations}})
        await asyncio.sleep(2)
        assert asking.data() == {"token": b"token-3"}


@pytest.mark.parametrize(("hours", "least", "most"), [(10, 8.0, 8.4), (100, 19.2, 20.16)])
def test_time_of_renewal(hours: float, least: float, most: float) -> None:
    """Contract core 9.1: 80 to 84 % of its life, of 24 hours at most."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = [renewal(now + timedelta(hours=hours), now, fraction=0.8, rng=Random(seed)) - now for seed in range(50)]
    assert timedelta(hours=least) <= min(found)
    assert max(found) <= timedelta(hours=most)
    assert len(set(found)) > 1


def test_nothing_of_a_token_shows() -> None:
    """Tokens are in no representation of what is passed around."""
    secret: Any = json.dumps({"metadata": {"name": "a"}, "data": {"token": base64.b64encode(b"very-secret").decode()}})
    assert "very-secret" not in repr(SECRETS.model.model_validate_json(secret))
