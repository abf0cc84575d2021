"""Network policies of a seed: exact objects, stable bytes, and a controller that writes only what differs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.errors import ServerError
from agents.kube.objects import Document as WholeDocument
from agents.kube.resource import whole
from agents.kube.transport import Call
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from agents.runtime.source import ChannelSource
from gardenlet.apis.networking import CLUSTERS, ENDPOINT_SLICES, ENDPOINTS, NAMESPACES, NETWORK_POLICIES
from gardenlet.controllers.networkpolicy import api_server
from gardenlet.controllers.networkpolicy.controller import Informers, all_namespaces, new_controller
from gardenlet.controllers.networkpolicy.networks import Endpoint, SeedNetworks, parse, peers
from gardenlet.controllers.networkpolicy.policies import LOCAL_POLICIES, NAMES, POLICIES, Situation, selects
from gardenlet.controllers.networkpolicy.resolver import Resolver, target
from tests.support.clock import FakeClock
from tests.support.fake_api import Document, FakeApi
from tests.support.tasks import running

NETWORKS = {
    "pods": "10.0.0.0/16",
    "services": "10.1.0.0/16",
    "nodes": "10.2.0.0/16",
    "blockCIDRs": ["169.254.169.254/32"],
}
EVERYWHERE = {"garden", "shoot", "istio-system", "istio-ingress", "extension", "exposure"}
WHERE = {
    "deny-all": EVERYWHERE,
    "allow-to-runtime-apiserver": EVERYWHERE - {"exposure"},
    "allow-to-public-networks": {"garden", "shoot", "extension"},
    "allow-to-private-networks": {"garden", "shoot", "extension"},
    "allow-to-blocked-cidrs": {"garden", "shoot", "extension"},
    "allow-to-dns": EVERYWHERE,
}
LABELS = {
    "garden": {"kubernetes.io/metadata.name": "garden"},
    "exposure": {"handler.exposureclass.gardener.cloud/name": "x"},
    "other": {"gardener.cloud/role": "other"},
    **{role: {"gardener.cloud/role": role} for role in ("shoot", "istio-system", "istio-ingress", "extension")},
}


def spec(name: str, situation: Situation) -> Any:
    """Return what a policy says."""
    return next(policy.spec(situation) for policy in POLICIES if policy.name == name)


@pytest.mark.parametrize("name", sorted(WHERE))
def test_namespaces_of_each_policy(name: str) -> None:
    """Contract core 8: the table of namespaces, row by row."""
    policy = next(policy for policy in POLICIES if policy.name == name)
    found = {kind for kind, labels in LABELS.items() if any(selects(one, labels) for one in policy.namespaces)}
    assert found == WHERE[name]


def test_what_closes_comes_last() -> None:
    """Contract core 8, W30: nothing is cut off between two writes."""
    assert POLICIES[-1].name == "deny-all"
    assert len(NAMES) == len(POLICIES) == 6


def test_public_networks() -> None:
    """Contract core 8: all but private and blocked ones, by family."""
    blocks = spec("allow-to-public-networks", Situation(SeedNetworks.of(NETWORKS)))["egress"][0]["to"]
    private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]
    assert blocks == [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": [*private, "169.254.169.254/32"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10", "fc00::/7"]}},
    ]


def test_private_networks_of_a_shoot() -> None:
    """Contract core 8: private blocks without the seed's and the shoot's networks."""
    shoot = parse(["10.150.0.0/16", "172.16.0.0/18", "192.168.0.0/17"])
    rules = spec("allow-to-private-networks", Situation(SeedNetworks.of(NETWORKS), shoot))["egress"]
    assert rules == [
        {
            "to": [
                {
                    "ipBlock": {
                        "cidr": "10.0.0.0/8",
                        "except": ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "10.150.0.0/16"],
                    }
                },
                {"ipBlock": {"cidr": "172.16.0.0/12", "except": ["172.16.0.0/18"]}},
                {"ipBlock": {"cidr": "192.168.0.0/16", "except": ["192.168.0.0/17"]}},
                {"ipBlock": {"cidr": "100.64.0.0/10"}},
            ]
        },
        {"to": [{"ipBlock": {"cidr": "fe80::/10"}}, {"ipBlock": {"cidr": "fc00::/7"}}]},
    ]


def test_each_network_counts_by_its_own_family() -> None:
    """Contract core 8, W32: dual-stack seeds; a network as large as a block, or larger, takes the block away."""
    networks = SeedNetworks.of({"pods": ["10.0.0.0/8", "fd00:1::/48"], "services": ["100.64.0.0/13", "fd00:2::/112"]})
    v4, v6 = spec("allow-to-private-networks", Situation(networks))["egress"]
    assert v4["to"] == [
        {"ipBlock": {"cidr": "172.16.0.0/12"}},
        {"ipBlock": {"cidr": "192.168.0.0/16"}},
        {"ipBlock": {"cidr": "100.64.0.0/10", "except": ["100.64.0.0/13"]}},
    ]
    assert v6["to"][1] == {"ipBlock": {"cidr": "fc00::/7", "except": ["fd00:1::/48", "fd00:2::/112"]}}
    public = spec("allow-to-public-networks", Situation(SeedNetworks.of({"pods": "2001:db8::/48"})))["egress"][0]["to"]
    assert "2001:db8::/48" in public[1]["ipBlock"]["except"]


def test_blocked_networks() -> None:
    """Contract core 8: one rule each, an empty list where there are none."""
    assert spec("allow-to-blocked-cidrs", Situation(SeedNetworks.of(NETWORKS)))["egress"] == [
        {"to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}]}
    ]
    assert "egress" not in spec("allow-to-blocked-cidrs", Situation())


def test_dns() -> None:
    """Contract core 8: both kinds of pods, the node-local addresses, and the tenth address of each service network."""
    (rule,) = spec("allow-to-dns", Situation(SeedNetworks.of({"services": ["10.1.0.0/16", "fd00:2::/112"]})))["egress"]
    addresses = [peer["ipBlock"]["cidr"] for peer in rule["to"] if "ipBlock" in peer]
    assert addresses == ["169.254.20.10/32", "fd30:1319:f1e:230b::1/128", "10.1.0.10/32", "fd00:2::a/128"]
    assert [(port["protocol"], port["port"]) for port in rule["ports"]] == [
        ("UDP", 53),
        ("TCP", 53),
        ("UDP", 8053),
        ("TCP", 8053),
    ]


def test_ways_to_the_api_server() -> None:
    """Contract core 8, W34: a rule for each way, sorted; without any, the policy is left as it is."""
    ways = (Endpoint(("10.0.0.2", "10.0.0.1"), (("TCP", 6443),)), Endpoint(("fd00::1",)))
    rules = spec("allow-to-runtime-apiserver", Situation(endpoints=ways))["egress"]
    assert rules == [
        {
            "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}, {"ipBlock": {"cidr": "10.0.0.2/32"}}],
            "ports": [{"protocol": "TCP", "port": 6443}],
        },
        {"to": [{"ipBlock": {"cidr": "fd00::1/128"}}], "ports": [{"protocol": "TCP", "port": 443}]},
    ]
    assert spec("allow-to-runtime-apiserver", Situation()) is None


def test_exceptions_keep_their_order() -> None:
    """Contract core 8, W31: the order of the input, each once; what is no network excepts nothing."""
    assert parse(["10.2.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "nonsense"]) == parse(["10.2.0.0/16", "10.1.0.0/16"])
    (block,) = peers(parse(["10.0.0.0/8"]), parse(["10.2.0.0/16", "192.168.0.0/24", "10.1.0.0/16", "fd00::/64"]))
    assert block["ipBlock"]["except"] == ["10.2.0.0/16", "10.1.0.0/16"]


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "In", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Odd"}]}, False),
    ],
)
def test_selectors(selector: dict[str, Any], selected: bool) -> None:
    """Contract core 2.3: additional selectors are label selectors of the API."""
    assert selects(selector, {"a": "1"}) is selected


@pytest.mark.parametrize(
    ("server", "environment", "found"),
    [
        ("https://api.example.com", {}, ("api.example.com", 443)),
        ("https://api.example.com:6443/x", {}, ("api.example.com", 6443)),
        ("https://10.0.0.1:443", {}, None),
        ("https://[fd00::1]", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        ("10.0.0.1", {"KUBERNETES_SERVICE_HOST": "api", "KUBERNETES_SERVICE_PORT": "6443"}, ("api", 6443)),
    ],
)
def test_what_is_looked_up(server: str, environment: dict[str, str], found: tuple[str, int] | None) -> None:
    """Contract core 8: the host of the API server, else that of the environment, if it is a name."""
    assert target(server, environment) == found


class Guarded:
    """A seed whose namespaces get policies."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.client = Client(transport=self.api, rng=Random(1))
        self.addresses: tuple[str, ...] = ("192.0.2.1",)
        self.silent = False
        self.published = api_server.PLAIN
        self.namespace("garden", "garden")
        self.endpoints("10.0.0.1")

    def namespace(self, name: str, kind: str, phase: str = "Active") -> None:
        """Create a namespace."""
        self.api.put(NAMESPACES, {"metadata": {"name": name, "labels": LABELS[kind]}, "status": {"phase": phase}})

    def endpoints(self, *addresses: str) -> None:
        """Have the API server at these addresses."""
        subset = {"addresses": [{"ip": one} for one in addresses], "ports": [{"protocol": "TCP", "port": 443}]}
        self.api.put(ENDPOINTS, {"metadata": {"name": "kubernetes", "namespace": "default"}, "subsets": [subset]})

    def slice(self, name: str, *endpoints: dict[str, Any], family: str = "IPv4", service: str = "kubernetes") -> None:
        """Have an EndpointSlice."""
        metadata = {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}}
        ports = [{"name": "https", "protocol": "TCP", "port": 443}]
        body = {"addressType": family, "endpoints": list(endpoints), "ports": ports}
        self.api.put(ENDPOINT_SLICES, {"metadata": metadata, **body})

    def cluster(self, name: str, **networking: str) -> None:
        """Have a shoot with these networks."""
        shoot = {"spec": {"networking": networking}}
        self.api.put(CLUSTERS, {"metadata": {"name": name}, "spec": {"shoot": shoot}})

    async def _look(self, _host: str) -> tuple[str, ...]:
        if self.silent:
            return ()
        if not self.addresses:
            raise OSError("no such host")
        return self.addresses

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Run the controller."""
        cache = Cache(client=self.client, clock=FakeClock(), rng=Random(2))
        informers = Informers(
            namespaces=cache.informer(NAMESPACES),
            policies=cache.informer(LOCAL_POLICIES),
            api_server=api_server.observe(cache, self.published),
            clusters=cache.informer(CLUSTERS),
        )
        changed = ChannelSource()

        def tell() -> None:
            for request in all_namespaces(informers):
                changed.send(request)

        resolver = Resolver("api", 443, changed=tell, lookup=self._look)
        controller = new_controller(
            client=self.client,
            informers=informers,
            networks=SeedNetworks.of(NETWORKS),
            resolver=resolver,
            changed=changed,
            additional=[{"matchLabels": {"mine": "1"}}],
            workers=5,
        )
        environment = Environment(clock=FakeClock(), rng=Random(3), metrics=Metrics())
        async with running(cache.run, resolver.run, lambda: controller.run(environment)):
            await asyncio.sleep(5)
            yield

    def policies(self, namespace: str) -> dict[str, Document]:
        """Return the policies of a namespace."""
        found = self.api.stored(NETWORK_POLICIES)
        return {one["metadata"]["name"]: one for one in found if one["metadata"]["namespace"] == namespace}

    def requests(self) -> list[Call]:
        """Return the requests for policies that are no watches."""
        return [call for call in self.api.requests("GET") if "networkpolicies" in call.path]

    def writes(self) -> int:
        """Return the number of requests that change something."""
        return sum(call.method != "GET" for call in self.api.calls)


@pytest.fixture
async def guarded() -> Guarded:
    """A seed with a garden namespace."""
    return Guarded()


async def test_a_namespace_gets_its_policies_once(guarded: Guarded) -> None:
    """Contract core 8, 13.1.6: all of them; and in a hundred reconciles nothing more is written."""
    guarded.namespace("mine", "other")
    async with guarded.going():
        assert set(guarded.policies("garden")) == set(NAMES)
        assert guarded.policies("mine") == {}
        writes, requests = guarded.writes(), len(guarded.requests())
        for number in range(100):
            labels = {**LABELS["garden"], "number": str(number)}
            guarded.api.put(
                NAMESPACES, {"metadata": {"name": "garden", "labels": labels}, "status": {"phase": "Active"}}
            )
            await asyncio.sleep(1)
        assert guarded.writes() == writes
        assert len(guarded.requests()) == requests
    async with guarded.going():
        assert guarded.writes() == writes


async def test_labels_decide_and_may_change(guarded: Guarded) -> None:
    """Contract core 8: policies come with a label, and those that do not belong there any more go; foreign ones stay."""
    async with guarded.going():
        guarded.namespace("one", "extension")
        guarded.api.put(NETWORK_POLICIES, {"metadata": {"name": "foreign", "namespace": "one"}, "spec": {}})
        await asyncio.sleep(2)
        assert set(guarded.policies("one")) == {*NAMES, "foreign"}
        guarded.namespace("one", "istio-ingress")
        await asyncio.sleep(2)
        assert set(guarded.policies("one")) == {"deny-all", "allow-to-dns", "allow-to-runtime-apiserver", "foreign"}


async def test_what_somebody_changes_is_put_right(guarded: Guarded) -> None:
    """Contract core 8: changed or deleted policies of ours are written again."""
    async with guarded.going():
        before = guarded.policies("garden")
        guarded.api.put(
            NETWORK_POLICIES, {**before["deny-all"], "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
        )
        guarded.api.remove(NETWORK_POLICIES, "allow-to-dns", "garden")
        await asyncio.sleep(2)
        after = guarded.policies("garden")
        assert after["deny-all"]["spec"] == before["deny-all"]["spec"]
        assert after["allow-to-dns"]["spec"] == before["allow-to-dns"]["spec"]


async def test_a_shoots_networks(guarded: Guarded) -> None:
    """Contract core 8, W33: a Cluster that comes later, changes, or has no Shoot."""
    guarded.namespace("shoot--a--b", "shoot")
    async with guarded.going():
        assert set(guarded.policies("shoot--a--b")) == set(NAMES)
        guarded.cluster("shoot--a--b", pods="172.20.0.0/16")
        await asyncio.sleep(2)
        private = guarded.policies("shoot--a--b")["allow-to-private-networks"]["spec"]["egress"][0]["to"]
        assert {"ipBlock": {"cidr": "172.16.0.0/12", "except": ["172.20.0.0/16"]}} in private
        guarded.api.put(CLUSTERS, {"metadata": {"name": "shoot--a--b"}, "spec": {}})
        await asyncio.sleep(2)
        private = guarded.policies("shoot--a--b")["allow-to-private-networks"]["spec"]["egress"][0]["to"]
        assert {"ipBlock": {"cidr": "172.16.0.0/12"}} in private


async def test_endpoints_and_names(guarded: Guarded) -> None:
    """Contract core 8, W34: endpoints and what the name leads to; a name server that fails keeps the addresses before."""
    async with guarded.going():
        assert guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"][1]["to"] == [
            {"ipBlock": {"cidr": "192.0.2.1/32"}}
        ]
        guarded.addresses = ()
        guarded.endpoints("10.0.0.7")
        await asyncio.sleep(65)
        first, second = guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"]
        assert first["to"] == [{"ipBlock": {"cidr": "10.0.0.7/32"}}]
        assert second["to"] == [{"ipBlock": {"cidr": "192.0.2.1/32"}}]
        guarded.addresses = ("192.0.2.2",)
        await asyncio.sleep(35)
        assert guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"][1]["to"] == [
            {"ipBlock": {"cidr": "192.0.2.2/32"}}
        ]


async def test_endpoint_slices_say_the_same(guarded: Guarded) -> None:
    """Contract core 0, 8: the policy has the same bytes whether it comes from Endpoints or from a slice."""
    async with guarded.going():
        plain = guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]
    guarded.published = api_server.SLICES
    guarded.slice("kubernetes", {"addresses": ["10.0.0.1"], "conditions": {"ready": True}})
    async with guarded.going():
        assert guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"] == plain
        assert guarded.api.requests("PATCH") == []


async def test_endpoint_slices_of_several_families(guarded: Guarded) -> None:
    """Contract core 8: one rule for each slice that has something ready, by name; names and other Services are no addresses."""
    guarded.published = api_server.SLICES
    guarded.addresses = ()
    guarded.slice("kubernetes-6", {"addresses": ["fd00::1"]}, family="IPv6")
    guarded.slice(
        "kubernetes-4",
        {"addresses": ["10.0.0.9", "10.0.0.1"]},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": False}},
    )
    guarded.slice("kubernetes-name", {"addresses": ["api.example.com"]}, family="FQDN")
    guarded.slice("kubernetes-none", {"addresses": ["10.0.0.3"], "conditions": {"ready": False}})
    guarded.slice("other", {"addresses": ["10.9.9.9"]}, service="other")
    async with guarded.going():
        rules = guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"]
        assert [[peer["ipBlock"]["cidr"] for peer in rule["to"]] for rule in rules] == [
            ["10.0.0.1/32", "10.0.0.9/32"],
            ["fd00::1/128"],
        ]
        guarded.slice("kubernetes-6", {"addresses": ["fd00::2"]}, family="IPv6")
        await asyncio.sleep(2)
        rules = guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"]
        assert rules[1]["to"] == [{"ipBlock": {"cidr": "fd00::2/128"}}]


async def test_a_name_that_is_never_resolved_holds_up_nothing(guarded: Guarded) -> None:
    """Contract core 8, W34: the endpoints' rules are there all the same."""
    guarded.addresses = ()
    async with guarded.going():
        (rule,) = guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"]
        assert rule["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]


async def test_one_that_cannot_be_written_holds_up_no_other(guarded: Guarded) -> None:
    """Contract core 8, W30: five are there, and the sixth comes as soon as it can."""
    fault = guarded.api.fail(ServerError("no", status=500), method="POST", times=1)
    assert fault is not None
    async with guarded.going():
        await asyncio.sleep(5)
        assert set(guarded.policies("garden")) == set(NAMES)
        posts = [call for call in guarded.api.calls if call.method == "POST"]
        assert len(posts) == 7


async def test_one_that_never_can_be_written_holds_up_no_other(guarded: Guarded) -> None:
    """Contract core 8, W30: the first of them fails for ever, and the last one is put right all the same."""
    async with guarded.going():
        path = "/apis/networking.k8s.io/v1/namespaces/garden/networkpolicies/allow-to-runtime-apiserver"
        guarded.api.fail(ServerError("no", status=500), method="PATCH", path=path)
        guarded.endpoints("10.0.0.9")
        guarded.api.remove(NETWORK_POLICIES, "deny-all", "garden")
        await asyncio.sleep(60)
        assert "deny-all" in guarded.policies("garden")


async def test_an_empty_answer_is_no_answer(guarded: Guarded) -> None:
    """Contract core 8, W34: a name server that knows no addresses takes none away."""
    async with guarded.going():
        guarded.silent = True
        await asyncio.sleep(65)
        guarded.endpoints("10.0.0.8")
        await asyncio.sleep(2)
        assert len(guarded.policies("garden")["allow-to-runtime-apiserver"]["spec"]["egress"]) == 2


async def test_namespaces_that_end_or_are_gone(guarded: Guarded) -> None:
    """Contract core 8, W29: nothing is written there, and nothing is tried again and again."""
    guarded.namespace("ending", "shoot", phase="Terminating")
    async with guarded.going():
        assert guarded.policies("ending") == {}
        guarded.namespace("short", "other")
        await asyncio.sleep(1)
        guarded.api.remove(NAMESPACES, "short")
        calls = len(guarded.api.calls)
        await asyncio.sleep(100)
        assert sum(call.method != "GET" for call in guarded.api.calls[calls:]) == 0


def test_what_is_kept_of_clusters_and_policies() -> None:
    """Contract core 8, W33: of a Cluster only the shoot's networking, whatever else is in it, or is not; of others' policies nothing."""
    networking = {"pods": "10.1.0.0/16"}
    sent = {
        "metadata": {"name": "c"},
        "spec": {"cloudProfile": {"a": 1}, "shoot": {"spec": {"networking": networking}}},
    }
    kept = CLUSTERS.model.model_validate(sent)
    assert kept.content == {
        "spec": {"shoot": {"spec": {"networking": networking}, "status": {"networking": {}}}},
    }
    nothing: tuple[dict[str, Any], ...] = (
        {},
        {"spec": None},
        {"spec": {"shoot": None}},
        {"spec": {"shoot": {"spec": {"networking": "text"}}}},
    )
    for empty in nothing:
        found = CLUSTERS.model.model_validate({"metadata": {"name": "c"}, **empty})
        assert found.content["spec"]["shoot"]["spec"] == {"networking": {}}
    ours = LOCAL_POLICIES.model.model_validate({"metadata": {"name": "deny-all"}, "spec": {"podSelector": {}}})
    assert ours.content == {"spec": {"podSelector": {}}}
    assert LOCAL_POLICIES.model.model_validate({"metadata": {"name": "foreign"}, "spec": {"a": 1}}).content == {}
    assert whole(CLUSTERS).model is whole(LOCAL_POLICIES).model is WholeDocument
