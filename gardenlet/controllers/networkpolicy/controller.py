"""Keeps the network policies of every namespace that a Seed's system components and shoots live in.

Each policy is for itself: one that cannot be written holds up no other. Nothing is sent where nothing differs. Source: gardener
pkg/controller/networkpolicy, pkg/gardenlet/controller/networkpolicy (contract core 8; W29 to W35).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.objects import Document
from agents.kube.patch import same
from agents.kube.write import Target, create_or_patch, deploy
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import ChannelSource, KindSource
from gardenlet.apis.networking import NETWORK_POLICIES
from gardenlet.controllers.networkpolicy.api_server import ApiServer
from gardenlet.controllers.networkpolicy.networks import Endpoint, Network, SeedNetworks, parse
from gardenlet.controllers.networkpolicy.policies import DESCRIPTION, NAMES, POLICIES, Policy, Situation, selects
from gardenlet.controllers.networkpolicy.resolver import Resolver

log = get_logger(__name__)

DEADLINE = timedelta(minutes=3)
SHOOT_PREFIX = "shoot-"
_NETWORKS = ("nodes", "pods", "services")


class PoliciesNotWritten(RetriableError):
    """Some policies of a namespace could not be written."""


@dataclass(frozen=True, slots=True)
class Informers:
    """Local copies of what the policies depend on, all in the seed."""

    namespaces: Informer[Document]
    policies: Informer[Document]
    api_server: ApiServer
    clusters: Informer[Document]


class NetworkPolicyReconciler:
    """Writes the policies of one namespace."""

    def __init__(
        self,
        *,
        client: Client,
        informers: Informers,
        networks: SeedNetworks,
        resolver: Resolver,
        additional: Sequence[Mapping[str, Any]],
    ) -> None:
        self._client = client
        self._informers = informers
        self._networks = networks
        self._resolver = resolver
        self._additional = tuple(additional)

    async def reconcile(self, request: Request) -> Result:
        """Write what is missing or different, delete what does not belong here."""
        namespace = self._informers.namespaces.get(request)
        if namespace is None or not _is_active(namespace):
            return Result()
        situation = Situation(self._networks, self._shoot(request.name), tuple(self._endpoints()))
        problems = []
        for policy in POLICIES:
            selectors = (*policy.namespaces, *self._additional)
            wanted = any(selects(selector, namespace.metadata.labels) for selector in selectors)
            try:
                await (self._ensure(policy, request.name, situation) if wanted else self._remove(policy, request.name))
            except AgentError as error:
                problems.append(f"{policy.name}: {error}")
        if problems:
            raise PoliciesNotWritten("network policies not written", namespace=request.name, problems=problems)
        return Result()

    async def _ensure(self, policy: Policy, namespace: str, situation: Situation) -> None:
        spec = policy.spec(situation)
        if spec is None:
            return
        found = self._informers.policies.get(Request(namespace, policy.name))
        if found is not None and _says(found, policy, spec):
            return

        def mutate(document: dict[str, Any]) -> None:
            annotations = document["metadata"].get("annotations") or {}
            document["metadata"]["annotations"] = {**annotations, DESCRIPTION: policy.description}
            document["spec"] = spec

        write = create_or_patch if found is None else deploy
        _, outcome = await write(self._client, Target(NETWORK_POLICIES, policy.name, namespace), mutate)
        log.info("Network policy written", namespace=namespace, policy=policy.name, outcome=outcome.value)

    async def _remove(self, policy: Policy, namespace: str) -> None:
        if self._informers.policies.get(Request(namespace, policy.name)) is None:
            return
        try:
            await self._client.delete(NETWORK_POLICIES, policy.name, namespace=namespace)
        except NotFound:
            return
        log.info("Network policy removed", namespace=namespace, policy=policy.name)

    def _endpoints(self) -> Iterator[Endpoint]:
        """Yield the ways to the seed's API server: what the seed publishes, then what its name leads to."""
        yield from self._informers.api_server.endpoints()
        if (named := self._resolver.endpoint) is not None:
            yield named

    def _shoot(self, namespace: str) -> tuple[Network, ...]:
        """Return the networks of the shoot whose control plane is in a namespace, sorted; none where there is no shoot."""
        if not namespace.startswith(SHOOT_PREFIX):
            return ()
        cluster = self._informers.clusters.get(Request("", namespace))
        shoot = ((cluster.content.get("spec") or {}).get("shoot") or {}) if cluster is not None else {}
        return tuple(sorted(parse(_networks_of(shoot)), key=lambda one: (one.version, one)))


def _networks_of(shoot: Mapping[str, Any]) -> Iterator[str]:
    """Yield the networks of a Shoot: what it asks for, and what it was given."""
    for part in ("spec", "status"):
        networking = (shoot.get(part) or {}).get("networking") or {}
        for name in _NETWORKS:
            value = networking.get(name) or ()
            yield from [value] if isinstance(value, str) else value


def _is_active(namespace: Document) -> bool:
    phase = (namespace.content.get("status") or {}).get("phase")
    return not namespace.metadata.deletion_timestamp and phase == "Active"


def _says(found: Document, policy: Policy, spec: Mapping[str, Any]) -> bool:
    return found.metadata.annotations.get(DESCRIPTION) == policy.description and same(found.content.get("spec"), spec)


def new_controller(
    *,
    client: Client,
    informers: Informers,
    networks: SeedNetworks,
    resolver: Resolver,
    changed: ChannelSource,
    additional: Sequence[Mapping[str, Any]],
    workers: int,
) -> Controller:
    """Build the controller.

    Args:
        client: the seed.
        informers: local copies.
        networks: of the seed, as configured.
        resolver: of the API server's name.
        changed: told by the resolver; see `all_namespaces`.
        additional: selectors of further namespaces.
        workers: how many namespaces at once.
    """

    def everywhere(_item: Document) -> Iterable[Request]:
        return all_namespaces(informers)

    def of_the_policy(item: Document) -> Iterable[Request]:
        return [Request("", item.metadata.namespace)]

    def of_the_cluster(item: Document) -> Iterable[Request]:
        return [Request("", item.metadata.name)]

    return Controller(
        name="networkpolicy",
        reconciler=NetworkPolicyReconciler(
            client=client, informers=informers, networks=networks, resolver=resolver, additional=additional
        ),
        sources=[
            KindSource(informers.namespaces, predicate=_appeared_or_relabelled),
            KindSource(informers.policies, predicate=_managed_and_changed, mapper=of_the_policy),
            KindSource(informers.api_server.informer, predicate=informers.api_server.changed, mapper=everywhere),
            KindSource(informers.clusters, predicate=_other_networks, mapper=of_the_cluster),
            changed,
        ],
        concurrency=max(1, workers),
        deadline=DEADLINE,
    )


def all_namespaces(informers: Informers) -> list[Request]:
    """Return a request for each namespace."""
    return [Request("", item.metadata.name) for item in informers.namespaces.list()]


def _appeared_or_relabelled(old: Document | None, new: Document | None, /) -> bool:
    if new is None:
        return False
    return old is None or old.metadata.labels != new.metadata.labels or _is_active(old) != _is_active(new)


def _managed_and_changed(old: Document | None, new: Document | None, /) -> bool:
    """Accept what somebody did to a policy of ours; what was there at the start is looked at with its namespace."""
    item = new or old
    if item is None or item.metadata.name not in NAMES or old is None:
        return False
    return (
        new is None
        or old.content.get("spec") != new.content.get("spec")
        or old.metadata.annotations != new.metadata.annotations
    )


def _other_networks(old: Document | None, new: Document | None, /) -> bool:
    before, after = (
        [] if item is None else sorted(_networks_of((item.content.get("spec") or {}).get("shoot") or {}))
        for item in (old, new)
    )
    return before != after
