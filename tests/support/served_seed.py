"""What a gardenlet's controllers do in a seed, all of it once; whatever its rights are, this has to work with them."""

import base64

from tests.lab.api import wait_for
from tests.lab.garden.gardenlet import SEED_SECRETS, SEEDS, Gardenlet

PODS = "/api/v1/namespaces/garden/pods"
TOKENS = "serviceaccount.resources.gardener.cloud/"


def controllers_serve(process: Gardenlet) -> None:
    """Start a gardenlet and see a token, an evicted pod gone, network policies, an eviction requirement, a new certificate."""
    seed, name = process.garden.seed.admin, process.name
    seed.ensure("/api/v1/namespaces/garden/serviceaccounts", {"metadata": {"name": "default"}})
    container = {"name": "c", "image": "registry.invalid/image"}
    seed.create(PODS, {"metadata": {"name": name}, "spec": {"nodeName": "nowhere", "containers": [container]}})
    seed.patch(f"{PODS}/{name}/status", {"status": {"phase": "Failed", "reason": "Evicted"}})
    annotations = {f"{TOKENS}name": "extension-a", f"{TOKENS}token-expiration-duration": "1h"}
    labels = {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "garden"}
    seed.create(SEED_SECRETS, {"metadata": {"name": name, "labels": labels, "annotations": annotations}})
    # A lone API server publishes no endpoints of its own.
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 443, "protocol": "TCP"}]}
    seed.ensure("/api/v1/namespaces/default/endpoints", {"metadata": {"name": "kubernetes"}, "subsets": [subset]})
    process.start()

    def token() -> str:
        return str((seed.get(f"{SEED_SECRETS}/{name}").get("data") or {}).get("token", ""))

    given = base64.b64decode(wait_for(token, timeout=40, what="a token")).decode()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": given}}
    status = process.garden.api.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert status["user"]["username"] == f"system:serviceaccount:seed-{name}:extension-a"
    wait_for(lambda: seed.find(f"{PODS}/{name}") is None, timeout=20, what="the evicted pod to go")
    policies = "/apis/networking.k8s.io/v1/namespaces/garden/networkpolicies"
    wait_for(lambda: len(seed.list(policies)) == 6, timeout=20, what="six network policies")
    autoscalers = "/apis/autoscaling.k8s.io/v1/namespaces/garden/verticalpodautoscalers"
    managed = {"autoscaling.gardener.cloud/eviction-requirements": "managed-by-controller"}
    never = {"eviction-requirements.autoscaling.gardener.cloud/downscale-restriction": "never"}
    seed.create(
        autoscalers,
        {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": name, "labels": managed, "annotations": never},
            "spec": {},
        },
    )
    wait_for(
        lambda: seed.get(f"{autoscalers}/{name}")["spec"].get("updatePolicy"),
        timeout=20,
        what="an eviction requirement",
    )
    process.garden.api.patch(
        f"{SEEDS}/{name}", {"metadata": {"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}}
    )
    assert process.process.wait(timeout=30) == 0
    found = process.seed()
    assert found is not None
    assert "gardener.cloud/operation" not in (found["metadata"].get("annotations") or {})
    assert found["status"]["kubernetesVersion"].startswith("v1.")
    assert given not in process.log
