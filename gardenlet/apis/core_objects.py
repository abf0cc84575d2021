"""Core kinds of Kubernetes that gardenlet reads or writes and the node agent does not."""

from pydantic import Field

from agents.kube.objects import Document, KubeObject, ReadOnly, Text, empty_mapping
from agents.kube.resource import Resource


class ConfigMap(KubeObject):
    """Named texts."""

    data: ReadOnly[Text] = Field(default_factory=empty_mapping)


CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, model=ConfigMap)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, model=KubeObject)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True, model=Document)
SERVICES = Resource("", "v1", "services", "Service", namespaced=True, model=Document)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, model=Document
)
