"""Kinds of the seed that network policies depend on."""

from collections.abc import Mapping
from typing import Any

from agents.kube.objects import Document
from agents.kube.resource import Resource


class Cluster(Document):
    """What a shoot depends on, a copy for each: 40 KB and more, of which only the shoot's networks are kept."""

    whole = False

    @classmethod
    def kept(cls, sent: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the networking of the Shoot, where it has one, as it stands in the whole object."""
        shoot = _inner(_inner(sent, "spec"), "shoot")
        parts = {part: {"networking": _inner(_inner(shoot, part), "networking")} for part in ("spec", "status")}
        return {"spec": {"shoot": parts}}


def _inner(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object inside of another; nothing there, or something else, counts as empty."""
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, model=Document)
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints", namespaced=True, model=Document)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True, model=Document)
NETWORK_POLICIES = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", namespaced=True, model=Document
)
CLUSTERS: Resource[Document] = Resource(
    "extensions.gardener.cloud", "v1alpha1", "clusters", "Cluster", namespaced=False, model=Cluster
)
GARDENS = Resource("operator.gardener.cloud", "v1alpha1", "gardens", "Garden", namespaced=False, model=Document)
"""A cluster that has one is a garden, and gardener-operator looks after it."""
