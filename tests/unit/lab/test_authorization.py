"""The decision table of the node-agent-authorizer, row by row: counterparts contract 14.3."""

import base64
from typing import Any

import pytest
import yaml

from tests.lab.counterparts.authorization import Effect, Facts, PoolSecret, Review, decide, readable_secrets
from tests.lab.counterparts.reader import references_of
from tests.lab.counterparts.server import answer

_ME = "gardener.cloud:node-agent:machine:m1"
_GROUPS = ("gardener.cloud:node-agents", "system:authenticated")
_NODE = {
    "metadata": {
        "labels": {"worker.gardener.cloud/gardener-node-agent-secret-name": "osc-a", "kubernetes.io/hostname": "h1"}
    }
}
_CSRS = "certificatesigningrequests.certificates.k8s.io"
_LEASES = "leases.coordination.k8s.io"


def _review(verb: str, resource: str, name: str = "", **fields: Any) -> Review:
    return Review(user=_ME, groups=_GROUPS, verb=verb, resource=resource, name=name, **fields)


def _effect(review: Review, **facts: Any) -> Effect:
    return decide(review, Facts(**facts)).effect


@pytest.mark.parametrize(
    ("user", "groups", "effect"),
    [
        (_ME, (), Effect.NO_OPINION),
        ("system:node:m1", _GROUPS, Effect.NO_OPINION),
        ("gardener.cloud:node-agent:machine:", _GROUPS, Effect.DENY),
        (_ME, _GROUPS, Effect.ALLOW),
    ],
)
def test_identity_needs_prefix_and_group(user: str, groups: tuple[str, ...], effect: Effect) -> None:
    """Contract 4.8, Appendix C (authorizer): only prefix and group together make a node agent, and a machine name must follow."""
    review = Review(user=user, groups=groups, verb="list", resource="nodes")
    assert decide(review, Facts()).effect is effect


@pytest.mark.parametrize(
    ("review", "facts", "effect"),
    [
        (_review("create", _CSRS), {}, Effect.ALLOW),
        (_review("get", _CSRS, "x"), {"csr": {"spec": {"username": _ME}}}, Effect.ALLOW),
        (_review("get", _CSRS, "x"), {"csr": {"spec": {"username": "other"}}}, Effect.DENY),
        (_review("get", _CSRS, "x"), {}, Effect.ERROR),
        (_review("list", _CSRS), {}, Effect.DENY),
        (_review("create", _CSRS, subresource="approval"), {}, Effect.DENY),
        (_review("create", "events", namespace="any"), {}, Effect.ALLOW),
        (_review("patch", "events.events.k8s.io", namespace="any"), {}, Effect.ALLOW),
        (_review("get", "events", "x"), {}, Effect.DENY),
        (_review("update", "events", "x"), {}, Effect.DENY),
        (_review("get", "configmaps", "x"), {}, Effect.DENY),
        (_review("get", ""), {}, Effect.DENY),
    ],
)
def test_requests_that_need_no_node(review: Review, facts: dict[str, Any], effect: Effect) -> None:
    """Contract 4.8, Appendix C (authorizer): CSRs, events, and everything that is not in the table."""
    assert _effect(review, **facts) is effect


@pytest.mark.parametrize(
    ("verb", "name", "namespace", "effect"),
    [
        ("create", "", "kube-system", Effect.ALLOW),
        ("create", "", "default", Effect.DENY),
        ("get", "gardener-node-agent-m1", "kube-system", Effect.ALLOW),
        ("list", "gardener-node-agent-m1", "kube-system", Effect.ALLOW),
        ("watch", "osc-a", "kube-system", Effect.ALLOW),
        ("update", "gardener-node-agent-m1", "kube-system", Effect.ALLOW),
        ("update", "gardener-node-agent-m2", "kube-system", Effect.DENY),
        ("get", "gardener-node-agent-m1", "kube-node-lease", Effect.DENY),
        ("list", "", "kube-system", Effect.DENY),
        ("patch", "gardener-node-agent-m1", "kube-system", Effect.DENY),
        ("delete", "gardener-node-agent-m1", "kube-system", Effect.DENY),
    ],
)
def test_leases(verb: str, name: str, namespace: str, effect: Effect) -> None:
    """Contract 4.8, Appendix C (authorizer): Leases: two names in kube-system, no patch, no delete; without the Node nothing."""
    review = _review(verb, _LEASES, name, namespace=namespace)
    assert _effect(review, node=_NODE) is effect
    assert _effect(review) is Effect.DENY


@pytest.mark.parametrize(
    ("verb", "name", "subresource", "without_node", "with_node"),
    [
        ("list", "", "", Effect.ALLOW, Effect.ALLOW),
        ("watch", "", "status", Effect.ALLOW, Effect.ALLOW),
        ("get", "m1", "", Effect.DENY, Effect.ALLOW),
        ("patch", "m1", "", Effect.DENY, Effect.ALLOW),
        ("patch", "m1", "status", Effect.DENY, Effect.ALLOW),
        ("update", "m1", "status", Effect.DENY, Effect.ALLOW),
        ("get", "m2", "", Effect.DENY, Effect.DENY),
        ("patch", "m1", "proxy", Effect.DENY, Effect.DENY),
        ("create", "m1", "", Effect.DENY, Effect.DENY),
        ("delete", "m1", "", Effect.DENY, Effect.DENY),
    ],
)
def test_nodes(verb: str, name: str, subresource: str, without_node: Effect, with_node: Effect) -> None:
    """Contract 4.8, Appendix C (authorizer): Nodes: list and watch always, the rest for the own Node only."""
    review = _review(verb, "nodes", name, subresource=subresource)
    assert (_effect(review), _effect(review, node=_NODE)) == (without_node, with_node)


@pytest.mark.parametrize(
    ("review", "pod", "effect"),
    [
        (_review("list", "pods", fields={"spec.nodeName": "m1"}), None, Effect.ALLOW),
        (_review("watch", "pods", fields={"spec.nodeName": "m2"}), None, Effect.DENY),
        (_review("list", "pods"), None, Effect.DENY),
        (_review("get", "pods", "p"), {"spec": {"nodeName": "m1"}}, Effect.ALLOW),
        (_review("delete", "pods", "p"), {"spec": {"nodeName": "m1"}}, Effect.ALLOW),
        (_review("delete", "pods", "p"), {"spec": {"nodeName": "m2"}}, Effect.DENY),
        (_review("get", "pods", "p"), None, Effect.ERROR),
        (_review("create", "pods", "p", subresource="eviction"), {"spec": {"nodeName": "m1"}}, Effect.DENY),
        (_review("deletecollection", "pods"), None, Effect.DENY),
    ],
)
def test_pods(review: Review, pod: dict[str, Any] | None, effect: Effect) -> None:
    """Contract 4.8, Appendix C (authorizer): Pods: with the field selector, or one that is on the own Node; a missing one is an error, and without Node nothing."""
    assert _effect(review, node=_NODE, pod=pod) is effect
    assert _effect(review, pod=pod) is Effect.DENY


_POOLS = (
    PoolSecret("osc-a", (("ref-all", None), ("ref-h1", "h1"), ("ref-h2", "h2"))),
    PoolSecret("osc-b", (("ref-b", None),)),
)


def test_secrets_without_a_node_are_those_of_all_pools() -> None:
    """Contract 4.8, Appendix C (authorizer): while no Node exists, every OSC Secret and whatever those refer to can be read."""
    names = readable_secrets(Facts(pool_secrets=_POOLS))
    assert {"osc-a", "osc-b", "ref-all", "ref-h1", "ref-h2", "ref-b", "gardener-valitail"} <= names


def test_secrets_with_a_node_are_those_of_its_pool_and_host() -> None:
    """Contract 4.8, Appendix C (authorizer): with a Node, only the OSC Secret that its label names, and what it refers to for this host."""
    names = readable_secrets(Facts(node=_NODE, pool_secrets=_POOLS))
    assert {"osc-a", "ref-all", "ref-h1"} <= names
    assert not names & {"osc-b", "ref-b", "ref-h2"}


def test_secrets_of_a_node_without_the_label_are_the_constant_ones() -> None:
    """Contract 4.8, Appendix C (authorizer): the empty name is never readable, whatever labels are missing."""
    names = readable_secrets(Facts(node={"metadata": {}}, pool_secrets=_POOLS))
    assert "" not in names
    assert "osc-a" not in names


@pytest.mark.parametrize(
    ("verb", "name", "namespace", "effect"),
    [
        ("get", "osc-a", "kube-system", Effect.ALLOW),
        ("list", "osc-a", "kube-system", Effect.ALLOW),
        ("watch", "gardener-opentelemetry-collector", "kube-system", Effect.ALLOW),
        ("get", "osc-b", "kube-system", Effect.DENY),
        ("get", "osc-a", "default", Effect.DENY),
        ("list", "", "kube-system", Effect.DENY),
        ("patch", "osc-a", "kube-system", Effect.DENY),
        ("create", "osc-a", "kube-system", Effect.DENY),
        ("delete", "osc-a", "kube-system", Effect.DENY),
    ],
)
def test_secrets(verb: str, name: str, namespace: str, effect: Effect) -> None:
    """Contract 4.8, Appendix C (authorizer): Secrets: reading by name, in kube-system."""
    assert _effect(_review(verb, "secrets", name, namespace=namespace), node=_NODE, pool_secrets=_POOLS) is effect


def test_review_reads_both_versions_and_field_selectors() -> None:
    """v1 has groups, v1beta1 has group; a requirement with one value is an equality, with several it is dropped."""
    requirements = [
        {"key": "spec.nodeName", "operator": "In", "values": ["m1"]},
        {"key": "other", "operator": "In", "values": ["a", "b"]},
    ]
    attributes = {
        "verb": "list",
        "resource": "leases",
        "group": "coordination.k8s.io",
        "fieldSelector": {"requirements": requirements},
    }
    for key in ("groups", "group"):
        review = Review.of({"spec": {"user": _ME, key: list(_GROUPS), "resourceAttributes": attributes}})
        assert review.resource == _LEASES
        assert review.groups == _GROUPS
        assert review.fields == {"spec.nodeName": "m1"}
    raw = {"spec": {"user": _ME, "resourceAttributes": {"fieldSelector": {"rawSelector": "a=b,c==d,e!=f"}}}}
    assert Review.of(raw).fields == {"a": "b", "c": "d"}


def test_answer_has_the_shape_that_the_api_server_expects() -> None:
    """The answer echoes version and kind; a denial says so, an error is neither allowed nor denied."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    denied = answer(review, decide(_review("get", "configmaps"), Facts()))
    assert denied["apiVersion"] == "authorization.k8s.io/v1"
    assert (denied["status"]["allowed"], denied["status"]["denied"]) == (False, True)
    failed = answer(review, decide(_review("get", _CSRS, "x"), Facts()))["status"]
    assert failed["evaluationError"].startswith("404 ")
    assert "denied" not in failed
    assert answer(review, decide(_review("list", "nodes"), Facts()))["status"]["allowed"] is True


def test_references_are_read_from_spec_and_status() -> None:
    """Names come from the data key osc.yaml alone; a Secret with something else in it refers to nothing."""
    document = {
        "spec": {
            "files": [{"path": "/a", "hostName": "h1", "content": {"secretRef": {"name": "one", "dataKey": "k"}}}]
        },
        "status": {"extensionFiles": [{"path": "/b", "content": {"secretRef": {"name": "two", "dataKey": "k"}}}]},
    }

    def secret(text: str) -> dict[str, Any]:
        return {"data": {"osc.yaml": base64.b64encode(text.encode()).decode()}}

    assert references_of(secret(yaml.safe_dump(document))) == (("one", "h1"), ("two", None))
    assert references_of(secret("[")) == ()
    assert references_of(secret("text")) == ()
    assert references_of({}) == ()
