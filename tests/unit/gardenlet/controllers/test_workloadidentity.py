"""Tokens of workload identities in the garden, for Secrets of the seed."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import Conflict, Invalid, NotFound, ServerError
from agents.kube.models import SECRETS
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from gardenlet.controllers.tokenrequestor import workloadidentity as requestor
from gardenlet.controllers.tokenrequestor.renewal import InvalidSecret
from tests.support.clock import EPOCH, FakeClock
from tests.support.fake_api import Document, FakeApi
from tests.support.tasks import running

PREFIX = "workloadidentity.security.gardener.cloud/"
RENEW, ASKED = f"{PREFIX}token-renew-timestamp", "agents.gardener.cloud/token-asked-for"
PURPOSE, PROVIDER = "security.gardener.cloud/purpose", "workloadidentity.security.gardener.cloud/provider"
LABELS = {PURPOSE: "workload-identity-token-requestor", PROVIDER: "local"}
BUCKET = {"kind": "BackupBucket", "apiVersion": "core.gardener.cloud/v1beta1", "name": "b", "uid": "u-1"}
SHOOT = {"kind": "Shoot", "apiVersion": "core.gardener.cloud/v1beta1", "name": "s", "namespace": "p", "uid": "u-2"}
CONFIG = b"issuer: https://issuer"


class Asking:
    """A seed with Secrets that ask, and a garden that answers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.garden, self.seed = FakeApi(), FakeApi()
        self.issued: list[Document] = []
        self.life: timedelta | None = None
        self.expires: str | None = None
        for identity in ("backup", "dns"):
            path = f"/apis/security.gardener.cloud/v1alpha1/namespaces/garden/workloadidentities/{identity}/token"
            self.garden.answer(path, lambda body, name=identity: self._issue(name, body))  # type: ignore[misc]

    def _issue(self, identity: str, body: Document) -> Document:
        assert (body["apiVersion"], body["kind"]) == ("security.gardener.cloud/v1alpha1", "TokenRequest")
        self.issued.append({"identity": identity, **body["spec"]})
        life = self.life or timedelta(seconds=body["spec"]["expirationSeconds"])
        expires = self.expires
        if expires is None:
            expires = (self.clock.now() + life).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"status": {"token": f"token-{len(self.issued)}", "expirationTimestamp": expires}}

    def ask(self, identity: str = "backup", *, context: str | None = None, asks: str = "asks") -> None:
        """Create or change a Secret that asks for a token of an identity in the namespace `garden`; what we wrote stays."""
        asked = {f"{PREFIX}name": identity, f"{PREFIX}namespace": "garden"}
        self.put(asks, asked if context is None else {**asked, f"{PREFIX}context-object": context})

    def put(self, name: str, annotations: dict[str, str]) -> None:
        """Create or change a Secret; data and what we wrote stay."""
        found = self.seed.read(SECRETS, name, "ns") or {"metadata": {}, "data": {"config": _encoded(CONFIG)}}
        before = found["metadata"].get("annotations") or {}
        kept = {key: value for key, value in before.items() if key in (RENEW, ASKED)}
        metadata = {"name": name, "namespace": "ns", "labels": LABELS, "annotations": {**kept, **annotations}}
        self.seed.put(SECRETS, {"metadata": metadata, "data": found["data"]})

    def secret(self, name: str = "asks") -> Document:
        """Return a Secret."""
        found = self.seed.read(SECRETS, name, "ns")
        assert found is not None
        return found

    def token(self, name: str = "asks") -> bytes | None:
        """Return the token that it holds."""
        token = self.secret(name)["data"].get("token")
        return None if token is None else base64.b64decode(token)

    def due(self) -> timedelta:
        """Return when it is to be renewed, counted from the beginning."""
        return datetime.fromisoformat(self.secret()["metadata"]["annotations"][RENEW]) - EPOCH

    @asynccontextmanager
    async def going(self, life: timedelta = timedelta(hours=6)) -> AsyncIterator[Metrics]:
        """Run the controller."""
        seed, garden = (Client(transport=api, rng=Random(1)) for api in (self.seed, self.garden))
        cache, metrics = Cache(client=seed, clock=self.clock, rng=Random(2)), Metrics()
        secrets = cache.informer(SECRETS, label_selector=requestor.SELECTOR)
        parts = requestor.Parts(seed=seed, garden=garden, life=life, clock=self.clock, rng=Random(3))
        controller = requestor.new_controller(parts, secrets, workers=5)
        environment = Environment(clock=self.clock, rng=Random(4), metrics=metrics)
        async with running(cache.run, lambda: controller.run(environment)):
            await asyncio.sleep(2)
            yield metrics


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.fixture
async def asking() -> Asking:
    """A seed where nobody asks yet."""
    return Asking()


async def test_a_token_for_a_secret(asking: Asking) -> None:
    """Contract core 9.2: token and time of renewal are written, `config` and the provider's label are the Secret's own."""
    asking.ask()
    async with asking.going():
        assert asking.issued == [{"identity": "backup", "expirationSeconds": 21600}]
        assert asking.token() == b"token-1"
        assert timedelta(hours=3) <= asking.due() <= timedelta(hours=3.2)
        assert base64.b64decode(asking.secret()["data"]["config"]) == CONFIG
        assert asking.secret()["metadata"]["labels"] == LABELS


async def test_other_secrets_are_not_touched(asking: Asking) -> None:
    """Contract core 9.2: only Secrets with the label are watched and served."""
    asking.ask()
    metadata = {**asking.secret()["metadata"], "name": "other", "labels": {PROVIDER: "local"}}
    asking.seed.put(SECRETS, {"metadata": metadata, "data": {}})
    async with asking.going():
        assert len(asking.issued) == 1
        assert asking.secret("other")["data"] == {}
        selectors = [dict(call.query)["labelSelector"] for call in asking.seed.requests("GET") if call.query]
        assert set(selectors) == {"security.gardener.cloud/purpose=workload-identity-token-requestor"}


@pytest.mark.parametrize("context", [BUCKET, SHOOT])
async def test_what_the_token_is_for(asking: Asking, context: dict[str, str]) -> None:
    """Contract core 9.2: the context object goes with the request, the namespace of one that has one, too."""
    asking.ask(context=json.dumps({**context, "unknown": 1}))
    async with asking.going(life=timedelta(hours=1)):
        assert asking.issued == [{"identity": "backup", "expirationSeconds": 3600, "contextObject": context}]


async def test_renewed_in_time_and_not_before(asking: Asking) -> None:
    """Contract core 9.2: after 50 to 52.5 % of what the garden gave, of a day at most; in between nothing is asked."""
    asking.life = timedelta(hours=48)
    asking.ask()
    async with asking.going():
        assert timedelta(hours=12) <= asking.due() <= timedelta(hours=12.6)
        await asyncio.sleep(11.9 * 3600)
        assert len(asking.issued) == 1
        await asyncio.sleep(0.8 * 3600)
        assert asking.token() == b"token-2"
        assert len(asking.issued) == 2


async def test_own_writes_and_restarts_ask_for_nothing(asking: Asking) -> None:
    """Contract core 9, W38: our write brings no second reconcile, and what is written down is known after a restart."""
    asking.ask()
    async with asking.going() as metrics:
        await asyncio.sleep(60)
        assert _reconciles(metrics) == 1
    async with asking.going():
        for number in range(5):
            secret = asking.secret()
            data = {**secret["data"], "config": _encoded(f"changed {number}".encode())}
            asking.seed.put(SECRETS, {**secret, "data": data})
            await asyncio.sleep(10)
        assert len(asking.issued) == 1
        assert base64.b64decode(asking.secret()["data"]["config"]) == b"changed 4"


async def test_a_changed_wish_is_fulfilled_at_once(asking: Asking) -> None:
    """Contract core 9, W38: another identity or another context is asked for now; the same said differently is not."""
    asking.ask()
    async with asking.going():
        asking.ask("dns")
        await asyncio.sleep(2)
        asking.ask("dns", context=json.dumps(BUCKET))
        await asyncio.sleep(2)
        asking.ask("dns", context=json.dumps(dict(reversed(BUCKET.items())), indent=1))
        await asyncio.sleep(2)
        assert [one["identity"] for one in asking.issued] == ["backup", "dns", "dns"]
        assert [one.get("contextObject") for one in asking.issued] == [None, None, BUCKET]
        assert asking.token() == b"token-3"


@pytest.mark.parametrize(
    ("context", "says"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[1]", "is no object"),
        ("null", "is no object"),
        (json.dumps({**BUCKET, "uid": ""}), "is no reference to an object"),
        (json.dumps({**BUCKET, "name": 1}), "is no reference to an object"),
        (json.dumps({**SHOOT, "namespace": ["p"]}), "is no reference to an object"),
        (json.dumps({"name": "b"}), "is no reference to an object"),
    ],
)
async def test_a_context_that_is_none(
    asking: Asking, context: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract core 9.2: one error that names the annotation, nothing is asked or written, and it is not tried again."""
    asking.ask(context=context, asks="bad")
    asking.ask(asks="good")
    before = asking.secret("bad")
    async with asking.going() as metrics:
        await asyncio.sleep(3600)
        assert asking.secret("bad") == before
        assert asking.token("good") == b"token-1"
        assert len(asking.issued) == 1
        assert _reconciles(metrics) == 2
    errors = [line for line in "".join(capsys.readouterr()).splitlines() if "[error" in line]
    assert len(errors) == 1
    with pytest.raises(InvalidSecret, match=says) as caught:
        requestor.Wish.of(before["metadata"]["annotations"])
    assert caught.value.fields["annotation"] == "workloadidentity.security.gardener.cloud/context-object"


async def test_a_context_that_is_put_right(asking: Asking) -> None:
    """Contract core 9.2: while it is wrong the old token stays; put right, it is fulfilled at once."""
    asking.ask()
    async with asking.going():
        asking.ask(context="{")
        await asyncio.sleep(2)
        assert asking.token() == b"token-1"
        asking.ask(context=json.dumps(BUCKET))
        await asyncio.sleep(2)
        assert asking.token() == b"token-2"


@pytest.mark.parametrize("missing", ["name", "namespace"])
async def test_a_wish_without_an_identity(asking: Asking, missing: str) -> None:
    """Contract core 9.2: without name or namespace there is nothing to ask for."""
    asked = {f"{PREFIX}{key}": "backup" for key in ("name", "namespace") if key != missing}
    asking.put("asks", asked)
    async with asking.going() as metrics:
        await asyncio.sleep(600)
        assert asking.token() is None
        assert _reconciles(metrics) == 1
    with pytest.raises(InvalidSecret) as caught:
        requestor.Wish.of(asked)
    assert caught.value.fields["annotation"] == PREFIX + missing


async def test_a_token_that_somebody_takes_away(asking: Asking) -> None:
    """Contract core 4.3, 9.2: without its token or its time a Secret gets another one, which is how an operator asks for it."""
    asking.ask()
    async with asking.going():
        secret = asking.secret()
        asking.seed.put(SECRETS, {**secret, "data": {"config": secret["data"]["config"]}})
        await asyncio.sleep(2)
        assert asking.token() == b"token-2"
        secret = asking.secret()
        annotations = {key: value for key, value in secret["metadata"]["annotations"].items() if key != RENEW}
        asking.seed.put(SECRETS, {**secret, "metadata": {**secret["metadata"], "annotations": annotations}})
        await asyncio.sleep(2)
        assert asking.token() == b"token-3"


async def test_a_malformed_time_is_an_error(asking: Asking) -> None:
    """Contract core 9.2: what somebody wrote into our annotation is not overwritten, and the token stays."""
    asking.ask()
    async with asking.going():
        secret = asking.secret()
        annotations = {**secret["metadata"]["annotations"], RENEW: "tomorrow"}
        asking.seed.put(SECRETS, {**secret, "metadata": {**secret["metadata"], "annotations": annotations}})
    async with asking.going() as metrics:
        await asyncio.sleep(600)
        assert _reconciles(metrics) == 1
        assert asking.secret()["metadata"]["annotations"][RENEW] == "tomorrow"
        assert len(asking.issued) == 1


@pytest.mark.parametrize("expires", ["2020-01-01T00:00:00Z", "soon", ""])
async def test_a_token_of_no_use(asking: Asking, expires: str) -> None:
    """Contract core 9.2: a token that has expired already, or says nothing of it, is not written, and not asked for at once again."""
    asking.ask()
    asking.expires = expires
    async with asking.going():
        await asyncio.sleep(600)
        assert asking.token() is None
        assert len(asking.issued) < 25
        asking.expires = None
        await asyncio.sleep(600)
        assert asking.token() is not None


async def test_failures_and_conflicts(asking: Asking) -> None:
    """Contract core 9.2: a garden that fails is asked again; somebody else's write in between is kept."""
    asking.garden.fail(ServerError("no", status=500), method="POST", times=2)
    asking.seed.fail(Conflict("changed", status=409), method="PATCH", times=2)
    asking.ask()
    async with asking.going():
        await asyncio.sleep(60)
        assert asking.token() == b"token-1"
        assert len(asking.issued) == 1


async def test_an_identity_that_is_not_there_yet(asking: Asking) -> None:
    """Contract core 9.2: a WorkloadIdentity that does not exist is waited for, with growing pauses; one refused as invalid is not."""
    asking.garden.fail(NotFound("no", status=404), method="POST", path="/apis/security.gardener.cloud/v1alpha1/")
    asking.ask()
    async with asking.going():
        await asyncio.sleep(60)
        assert asking.token() is None
        asked = len(asking.garden.requests("POST"))
        assert asked < 20
        asking.garden.heal()
        await asyncio.sleep(600)
        assert asking.token() == b"token-1"
        asking.garden.fail(Invalid("no", status=422), method="POST")
        before = len(asking.garden.requests("POST"))
        asking.ask("dns")
        await asyncio.sleep(600)
        assert len(asking.garden.requests("POST")) == before + 1
        assert asking.token() == b"token-1"


async def test_a_secret_that_goes(asking: Asking) -> None:
    """Contract core 9.2: for a Secret that is gone, or going, nothing is asked."""
    asking.ask()
    async with asking.going():
        asking.seed.remove(SECRETS, "asks", "ns")
        asking.ask(asks="going")
        secret = asking.secret("going")
        metadata = {**secret["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        asking.seed.put(SECRETS, {**secret, "metadata": metadata})
        issued = len(asking.issued)
        await asyncio.sleep(7 * 3600)
        assert len(asking.issued) == issued


async def test_no_token_is_logged(asking: Asking, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed about a renewal has the identity in it, and not the token."""
    asking.ask()
    async with asking.going():
        pass
    printed = "".join(capsys.readouterr())
    assert "garden/backup" in printed
    assert "token-1" not in printed


def _reconciles(metrics: Metrics) -> int:
    """Return how many reconciles there were, whatever their end."""
    lines = metrics.render().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("controller_runtime_reconcile_total{")))
