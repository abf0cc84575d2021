"""Rules of the lab's garden, row by row."""

import base64
import datetime as dt
import json
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from tests.lab import pki
from tests.lab.counterparts.authorization import Effect, Review
from tests.lab.garden.admission import answer, configurations, json_patch, labelled, refusal
from tests.lab.garden.approval import access_review, is_decided, requested_seed
from tests.lab.garden.authorization import decide, needs_object, object_path
from tests.lab.garden.crds import AGGREGATED, GARDEN, SEED
from tests.lab.garden.identity import SEEDS_GROUP, USER_PREFIX, bootstrap_token_id, label_of
from tests.lab.garden.lifecycle import is_fresh, offline_conditions

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
USAGES = ["digital signature", "key encipherment", "client auth"]


def csr(*, name: str = USER_PREFIX + "s", group: str = SEEDS_GROUP, san: bool = False, **spec: Any) -> dict[str, Any]:
    """Return a CertificateSigningRequest."""
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if san:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("x")]), critical=False)
    pem = builder.sign(pki.new_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    whole = {"signerName": "kubernetes.io/kube-apiserver-client", "usages": USAGES, "username": "u", **spec}
    return {"kind": "CertificateSigningRequest", "spec": {**whole, "request": base64.b64encode(pem).decode()}}


def review(resource: str, verb: str, **more: Any) -> Review:
    """Return a question of seed s's gardenlet."""
    return Review(user=USER_PREFIX + "s", groups=(SEEDS_GROUP,), resource=resource, verb=verb, **more)


@pytest.mark.parametrize(
    ("request_", "seed"),
    [
        (csr(), "s"),
        (csr(usages=[*reversed(USAGES), USAGES[0]]), "s"),
        (csr(san=True), None),
        (csr(group="other"), None),
        (csr(name="gardener.cloud:system:shoot:a:b"), None),
        (csr(name=USER_PREFIX), None),
        (csr(usages=USAGES[:2]), None),
        (csr(signerName="kubernetes.io/kubelet-serving"), None),
    ],
)
def test_shape_of_a_seed_client(request_: dict[str, Any], seed: str | None) -> None:
    """Counterparts contract 4, 17.7 #1: usages in any order and repeated; a name that is no seed's, or a SAN, is left alone."""
    assert requested_seed(request_) == seed


def test_a_request_is_decided_once_and_asked_about_as_its_user() -> None:
    """Counterparts contract 4: approved, denied or issued ones are left alone; the review carries the user."""
    assert not is_decided(csr())
    assert is_decided({**csr(), "status": {"conditions": [{"type": "Denied"}]}})
    assert is_decided({**csr(), "status": {"certificate": "x"}})
    asked = access_review(csr(groups=["g"]))["spec"]
    assert (asked["user"], asked["groups"]) == ("u", ["g"])
    assert asked["resourceAttributes"]["subresource"] == "seedclient"


def test_id_of_a_bootstrap_token() -> None:
    """Counterparts contract 17.7 #24."""
    assert bootstrap_token_id("my-seed") == "88264c"


ALLOWED = [
    review("seeds.core.gardener.cloud", "create"),
    review("seeds.core.gardener.cloud", "get", name="s"),
    review("seeds.core.gardener.cloud", "patch", name="s", subresource="status"),
    review("seeds.core.gardener.cloud", "list", labels={label_of("s"): "true"}),
    review("shoots.core.gardener.cloud", "watch", labels={label_of("s"): "true"}),
    review("bastions.operations.gardener.cloud", "list", fields={"spec.seedName": "s"}),
    review("controllerinstallations.core.gardener.cloud", "list", fields={"spec.seedRef.name": "s"}),
    review("backupbuckets.core.gardener.cloud", "list"),
    review("leases.coordination.k8s.io", "patch", namespace="gardener-system-seed-lease", name="s"),
    review("secrets", "list", namespace="seed-s"),
    review("secrets", "delete", namespace="kube-system", name=f"bootstrap-token-{bootstrap_token_id('s')}"),
    review("serviceaccounts", "create", namespace="seed-s", name="a", subresource="token"),
    review("serviceaccounts", "delete", namespace="garden", name="gardenlet-bootstrap-s"),
    review("certificatesigningrequests.certificates.k8s.io", "create", subresource="seedclient"),
    review("configmaps", "get", namespace="kube-system", name="cluster-identity"),
    review("events.events.k8s.io", "create", namespace="x"),
    review("namespaces", "get", name="seed-s"),
]
REFUSED = [
    review("seeds.core.gardener.cloud", "get", name="t"),
    review("seeds.core.gardener.cloud", "list"),
    review("seeds.core.gardener.cloud", "list", labels={label_of("t"): "true"}),
    review("shoots.core.gardener.cloud", "list", fields={"spec.seedName": "s"}),
    review("shoots.core.gardener.cloud", "create"),
    review("projects.core.gardener.cloud", "list"),
    review("leases.coordination.k8s.io", "patch", namespace="gardener-system-seed-lease", name="t"),
    review("leases.coordination.k8s.io", "delete", namespace="gardener-system-seed-lease", name="s"),
    review("secrets", "list"),
    review("secrets", "get", namespace="seed-t", name="x"),
    review("secrets", "get", namespace="kube-system", name=f"bootstrap-token-{bootstrap_token_id('s')}"),
    review("certificatesigningrequests.certificates.k8s.io", "list"),
    review("namespaces", "get", name="garden"),
    review("events", "list"),
]


@pytest.mark.parametrize("question", ALLOWED, ids=str)
def test_what_a_gardenlet_may(question: Review) -> None:
    """Counterparts contract 15.2."""
    assert decide(question, None).effect is Effect.ALLOW


@pytest.mark.parametrize("question", REFUSED, ids=str)
def test_what_a_gardenlet_may_not(question: Review) -> None:
    """Counterparts contract 15.2: no opinion, never a denial."""
    found = {"kind": "Secret", "metadata": {}} if question.name else None
    assert decide(question, found).effect is Effect.NO_OPINION


def test_an_object_says_whose_it_is() -> None:
    """Counterparts contract 15.3: by seed name, label or requested subject; deleting what is unknown is allowed."""
    shoot = review("shoots.core.gardener.cloud", "patch", namespace="n", name="x")
    assert needs_object(shoot)
    assert object_path(shoot) == "/apis/core.gardener.cloud/v1beta1/namespaces/n/shoots/x"
    own, other = {"spec": {"seedName": "s"}}, {"spec": {"seedName": "t"}}
    assert [decide(shoot, found).effect is Effect.ALLOW for found in (own, other)] == [True, False]
    bucket = review("backupbuckets.core.gardener.cloud", "delete", name="x")
    assert decide(bucket, None).effect is Effect.ALLOW
    request = review("certificatesigningrequests.certificates.k8s.io", "get", name="x")
    requests = (csr(), csr(name=USER_PREFIX + "t"))
    assert [decide(request, found).effect is Effect.ALLOW for found in requests] == [True, False]


IDENTITY = "workloadidentities.security.gardener.cloud"
REFERENCE = {"kind": "WorkloadIdentity", "namespace": "garden", "name": "x"}
REFERRING = [
    {"backup": {"credentialsRef": REFERENCE}},
    {"dns": {"provider": {"credentialsRef": REFERENCE}}},
    {"dns": {"internal": {"credentialsRef": REFERENCE}}},
    {"dns": {"defaults": [{"credentialsRef": REFERENCE}]}},
    {"resources": [{"name": "x", "resourceRef": {"kind": "WorkloadIdentity", "name": "x"}}]},
]
OTHERS = [
    {},
    {"backup": {"credentialsRef": {**REFERENCE, "kind": "Secret"}}},
    {"backup": {"credentialsRef": {**REFERENCE, "namespace": "other"}}},
    {"backup": {"credentialsRef": {**REFERENCE, "name": "y"}}},
]


def asks_for_identity(verb: str, subresource: str, *, name: str = "x") -> Review:
    """Return a question about a WorkloadIdentity of the namespace `garden`."""
    return review(IDENTITY, verb, subresource=subresource, namespace="garden", name=name)


@pytest.mark.parametrize(("verb", "subresource"), [("get", ""), ("create", "token")])
def test_a_seed_refers_to_its_identities(verb: str, subresource: str) -> None:
    """Counterparts contract 15.2, 15.3, core 12.1: read one, and have tokens of it; the Seed itself is looked at."""
    asked = asks_for_identity(verb, subresource)
    assert needs_object(asked)
    assert object_path(asked) == "/apis/core.gardener.cloud/v1beta1/seeds/s"
    assert all(decide(asked, {"spec": spec}).effect is Effect.ALLOW for spec in REFERRING)
    assert all(decide(asked, {"spec": spec}).effect is Effect.NO_OPINION for spec in OTHERS)
    assert decide(asked, None).effect is Effect.NO_OPINION


@pytest.mark.parametrize(
    ("verb", "subresource", "name"),
    [
        ("create", "", "x"),
        ("create", "", ""),
        ("create", "token", ""),
        ("patch", "", "x"),
        ("delete", "", "x"),
        ("update", "status", "x"),
        ("get", "token", "x"),
        ("list", "", ""),
        ("watch", "", ""),
    ],
)
def test_what_a_seed_may_not_with_its_identities(verb: str, subresource: str, name: str) -> None:
    """Core contract 12.1: no more than get and `token` create, also of one that the Seed refers to."""
    asked = asks_for_identity(verb, subresource, name=name)
    found = {"spec": REFERRING[0]} if needs_object(asked) else None
    assert decide(asked, found).effect is Effect.NO_OPINION


def test_others_are_not_decided_about() -> None:
    """Counterparts contract 15.1: only the group with the user prefix."""
    stranger = Review(user="admin", groups=(SEEDS_GROUP,), resource="seeds.core.gardener.cloud", verb="get")
    assert decide(stranger, None).effect is Effect.NO_OPINION


def test_labels_are_recomputed() -> None:
    """Counterparts contract 17.2: stale ones go, foreign ones stay, provider and region of a Seed are added."""
    metadata = {"name": "s", "labels": {label_of("old"): "true", "mine": "1"}}
    seed = {"metadata": metadata, "spec": {"provider": {"type": "local", "region": "r"}}}
    wanted = {"mine": "1", label_of("s"): "true"}
    wanted |= {"seed.gardener.cloud/provider": "local", "seed.gardener.cloud/region": "r"}
    assert labelled("Seed", seed) == wanted
    assert json_patch("Seed", {**seed, "metadata": {**metadata, "labels": wanted}}) == []
    shoot = {"metadata": {"name": "x"}, "spec": {"seedName": "a"}, "status": {"seedName": "b"}}
    assert labelled("Shoot", shoot) == {label_of("a"): "true", label_of("b"): "true"}
    decoded = base64.b64decode(
        answer({"apiVersion": "v", "kind": "k", "request": {"uid": "u"}}, patch=b"[1]")["response"]["patch"]
    )
    assert json.loads(decoded) == [1]


def creation(resource: str, name: str = "", namespace: str = "", **document: Any) -> dict[str, Any]:
    """Return a request to create something, of seed s's gardenlet."""
    return {
        "operation": "CREATE",
        "userInfo": {"username": USER_PREFIX + "s", "groups": [SEEDS_GROUP]},
        "resource": {"resource": resource},
        "namespace": namespace,
        "name": name,
        "object": {"metadata": {"name": name}, **document},
    }


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        (creation("seeds", "s"), True),
        (creation("seeds", "t"), False),
        (creation("leases", "s", "gardener-system-seed-lease"), True),
        (creation("leases", "gardenlet-leader-election", "garden"), True),
        (creation("leases", "t", "gardener-system-seed-lease"), False),
        (creation("backupbuckets", "b", spec={"seedName": "s"}), True),
        (creation("backupbuckets", "b", spec={"seedName": "t"}), False),
        (creation("serviceaccounts", "a", "seed-s"), True),
        (creation("serviceaccounts", "a", "seed-t"), False),
        (creation("secrets", "x", "garden"), False),
        (creation("certificatesigningrequests", "c", **csr()), True),
        (creation("certificatesigningrequests", "c", **csr(name=USER_PREFIX + "t")), False),
    ],
)
def test_what_a_gardenlet_may_create(request_: dict[str, Any], allowed: bool) -> None:
    """Counterparts contract 15.4; updates and other users are not looked at."""
    assert (refusal(request_) is None) is allowed
    assert refusal({**request_, "operation": "UPDATE"}) is None
    assert refusal({**request_, "userInfo": {"username": "admin"}}) is None


def test_age_of_a_lease() -> None:
    """Counterparts contract 17.7 #8: 40 s is stale, 39.9 s is fresh; none is stale."""
    ages = [dt.timedelta(seconds=seconds) for seconds in (40, 39.9)]
    leases: list[dict[str, Any]] = [{"spec": {"renewTime": (NOW - age).isoformat()}} for age in ages]
    assert [is_fresh(lease, NOW) for lease in leases] == [False, True]
    assert not is_fresh(None, NOW)
    assert not is_fresh({"spec": {}}, NOW)


def test_a_silent_gardenlet() -> None:
    """Counterparts contract 5.2, 17.7 #7: a new Seed is left alone; otherwise one condition changes, once."""
    assert offline_conditions({"status": {}}, NOW) is None
    other = {"type": "ExtensionsReady", "status": "True"}
    ready = {"type": "GardenletReady", "status": "True"}
    found = offline_conditions({"status": {"conditions": [ready, other]}}, NOW)
    assert found is not None
    assert [(one["type"], one["status"]) for one in found] == [
        ("GardenletReady", "Unknown"),
        ("ExtensionsReady", "True"),
    ]
    assert offline_conditions({"status": {"conditions": found}}, NOW) is None


def test_definitions_are_well_formed() -> None:
    """Counterparts contract 17.3: a schema that keeps everything, a status subresource, conditions by type."""
    for kind in (*GARDEN, *AGGREGATED, *SEED):
        (version,) = kind.definition()["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        assert schema["x-kubernetes-preserve-unknown-fields"]
        assert version["subresources"] == {"status": {}}
        conditions = schema["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    shoots = GARDEN[1].definition()["spec"]["versions"][0]
    assert [field["jsonPath"] for field in shoots["selectableFields"]] == [".spec.seedName", ".status.seedName"]


def test_webhooks_fail_closed() -> None:
    """Counterparts contract 15.1: an admission that does not answer refuses."""
    for _, body in configurations("https://127.0.0.1:1", b"ca"):
        (hook,) = body["webhooks"]
        assert (hook["failurePolicy"], hook["timeoutSeconds"], hook["matchPolicy"]) == ("Fail", 10, "Equivalent")
