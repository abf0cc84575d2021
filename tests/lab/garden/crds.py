"""Gardener's kinds as CustomResourceDefinitions with open schemas: counterparts contract, 17.3."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CORE, SEED_MANAGEMENT = "core.gardener.cloud", "seedmanagement.gardener.cloud"
OPERATIONS, SECURITY = "operations.gardener.cloud", "security.gardener.cloud"


_UNAPPROVED = {"api-approved.kubernetes.io": "unapproved, for a test"}
"""Without it no kind of a group of Kubernetes' own can be defined."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind.

    Attributes:
        group: API group.
        version: the one version that is served.
        kind: its name.
        plural: in paths.
        namespaced: whether its objects are in namespaces.
        selectable: fields for field selectors, as paths without the leading dot.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = False
    selectable: Sequence[str] = ()

    @property
    def collection(self) -> str:
        """Path of all objects."""
        return f"/apis/{self.group}/{self.version}/{self.plural}"

    def definition(self) -> dict[str, Any]:
        """Return the CustomResourceDefinition."""
        version = {
            "name": self.version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": _schema(self.selectable)},
            "subresources": {"status": {}},
        }
        if self.selectable:
            version["selectableFields"] = [{"jsonPath": f".{path}"} for path in self.selectable]
        singular = self.kind.lower()
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{self.group}", "annotations": _UNAPPROVED},
            "spec": {
                "group": self.group,
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "names": {
                    "kind": self.kind,
                    "plural": self.plural,
                    "singular": singular,
                    "listKind": f"{self.kind}List",
                },
                "versions": [version],
            },
        }


def _schema(selectable: Sequence[str]) -> dict[str, Any]:
    """Return a schema that keeps everything, knows conditions as a list by type, and the fields that are selected by."""
    conditions = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"type": "string"}},
            "x-kubernetes-preserve-unknown-fields": True,
        },
    }
    open_object: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec: dict[str, Any] = {**open_object, "properties": {}}
    status: dict[str, Any] = {**open_object, "properties": {"conditions": conditions}}
    for path in selectable:
        first, *rest = path.split(".")
        here = {"spec": spec, "status": status}[first]
        for name in rest[:-1]:
            here = here["properties"].setdefault(name, {**open_object, "properties": {}})
        here["properties"][rest[-1]] = {"type": "string"}
    return {**open_object, "properties": {"spec": spec, "status": status}}


SEEDS = Kind(CORE, "v1beta1", "Seed", "seeds")
SHOOTS = Kind(CORE, "v1beta1", "Shoot", "shoots", namespaced=True, selectable=("spec.seedName", "status.seedName"))
MANAGED_SEEDS = Kind(SEED_MANAGEMENT, "v1alpha1", "ManagedSeed", "managedseeds", namespaced=True)
BACKUP_ENTRIES = Kind(CORE, "v1beta1", "BackupEntry", "backupentries", namespaced=True, selectable=("spec.seedName",))

GARDEN = (
    SEEDS,
    SHOOTS,
    MANAGED_SEEDS,
    BACKUP_ENTRIES,
    Kind(CORE, "v1beta1", "BackupBucket", "backupbuckets", selectable=("spec.seedName",)),
    Kind(CORE, "v1beta1", "CloudProfile", "cloudprofiles"),
    Kind(CORE, "v1beta1", "NamespacedCloudProfile", "namespacedcloudprofiles", namespaced=True),
    Kind(
        CORE,
        "v1beta1",
        "ControllerInstallation",
        "controllerinstallations",
        selectable=("spec.seedRef.name", "spec.registrationRef.name"),
    ),
    Kind(CORE, "v1beta1", "ControllerRegistration", "controllerregistrations"),
    Kind(CORE, "v1", "ControllerDeployment", "controllerdeployments"),
    Kind(CORE, "v1beta1", "ExposureClass", "exposureclasses"),
    Kind(CORE, "v1beta1", "InternalSecret", "internalsecrets", namespaced=True),
    Kind(CORE, "v1beta1", "Project", "projects", selectable=("spec.namespace",)),
    Kind(CORE, "v1beta1", "Quota", "quotas", namespaced=True),
    Kind(CORE, "v1beta1", "SecretBinding", "secretbindings", namespaced=True),
    Kind(CORE, "v1beta1", "ShootState", "shootstates", namespaced=True),
    Kind(SEED_MANAGEMENT, "v1alpha1", "Gardenlet", "gardenlets", namespaced=True),
    Kind(
        OPERATIONS,
        "v1alpha1",
        "Bastion",
        "bastions",
        namespaced=True,
        selectable=("spec.seedName", "spec.shootRef.name"),
    ),
)
"""What Gardener's API server serves, as far as agents use it."""

AGGREGATED = (
    Kind(SECURITY, "v1alpha1", "CredentialsBinding", "credentialsbindings", namespaced=True),
    Kind(SECURITY, "v1alpha1", "WorkloadIdentity", "workloadidentities", namespaced=True),
)
"""What it serves, too, and no CRD can: `aggregation` does."""

SEED = (
    Kind("resources.gardener.cloud", "v1alpha1", "ManagedResource", "managedresources", namespaced=True),
    Kind("extensions.gardener.cloud", "v1alpha1", "Cluster", "clusters"),
    Kind("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers", namespaced=True),
    Kind("monitoring.coreos.com", "v1", "Prometheus", "prometheuses", namespaced=True),
)
"""What a seed serves; `operator.gardener.cloud` is left out, since such a seed would be a garden."""
