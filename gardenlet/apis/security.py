"""Kinds of the group security.gardener.cloud that gardenlet uses. Source: gardener pkg/apis/security/v1alpha1."""

from agents.kube.objects import Document
from agents.kube.resource import Resource

GROUP = "security.gardener.cloud"
WORKLOAD_IDENTITIES = Resource(
    GROUP, "v1alpha1", "workloadidentities", "WorkloadIdentity", namespaced=True, model=Document
)
