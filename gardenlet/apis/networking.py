"""Kinds of the seed that network policies depend on, read whole."""

from agents.kube.objects import Document
from agents.kube.resource import Resource

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, model=Document)
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints", namespaced=True, model=Document)
NETWORK_POLICIES = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", namespaced=True, model=Document
)
CLUSTERS = Resource("extensions.gardener.cloud", "v1alpha1", "clusters", "Cluster", namespaced=False, model=Document)
GARDENS = Resource("operator.gardener.cloud", "v1alpha1", "gardens", "Garden", namespaced=False, model=Document)
"""A cluster that has one is a garden, and gardener-operator looks after it."""
