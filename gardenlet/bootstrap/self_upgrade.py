"""The Gardenlet object by which this gardenlet will be upgraded: whoever installed it may have left one for us to create.

Source: gardener cmd/gardenlet/app/app.go (contract core 1.2 step 11).
"""

from typing import Any

from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.core.yamlio import YamlError, load_yaml
from agents.kube.client import Client
from agents.kube.errors import AlreadyExists, NotFound
from agents.kube.objects import Document
from agents.kube.resource import Resource
from gardenlet.apis.core_objects import CONFIG_MAPS

log = get_logger(__name__)

NAME, KEY = "gardenlet-selfupgrade-config", "gardenlet.yaml"
GROUP, VERSION, KIND = "seedmanagement.gardener.cloud", "v1alpha1", "Gardenlet"
GARDENLETS = Resource(GROUP, VERSION, "gardenlets", KIND, namespaced=True, model=Document)


class UnreadableGardenlet(RetriableError):
    """The ConfigMap does not hold a Gardenlet; it is left for somebody to look at."""


async def hand_over(seed: Client, garden: Client, namespace: str) -> bool:
    """Create the Gardenlet that a ConfigMap holds in the garden, and delete the ConfigMap; returns whether there was one.

    Args:
        seed: where the ConfigMap is.
        garden: where the object belongs.
        namespace: our own in the seed.

    Raises:
        UnreadableGardenlet: see above.
        ApiError: not done; safe to repeat.
    """
    try:
        found = await seed.get(CONFIG_MAPS, NAME, namespace=namespace)
    except NotFound:
        return False
    document = _decode(found.data.get(KEY, ""), where=f"{namespace}/{NAME}")
    metadata = document["metadata"]
    try:
        await garden.create(GARDENLETS, document, namespace=metadata.get("namespace") or "garden")
    except AlreadyExists:
        log.info("Gardenlet exists already", name=metadata["name"])
    try:
        await seed.delete(CONFIG_MAPS, NAME, namespace=namespace)
    except NotFound:
        log.debug("ConfigMap is gone already", configMap=f"{namespace}/{NAME}")
    log.info("Gardenlet for upgrades handed to the garden", name=metadata["name"])
    return True


def _decode(text: str, *, where: str) -> dict[str, Any]:
    try:
        document = load_yaml(text.encode())
    except YamlError as error:
        raise UnreadableGardenlet("Gardenlet for upgrades is no YAML", configMap=where, key=KEY) from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if (
        not isinstance(document, dict)
        or (document.get("apiVersion"), document.get("kind")) != (f"{GROUP}/{VERSION}", KIND)
        or not isinstance(metadata, dict)
        or not metadata.get("name")
    ):
        raise UnreadableGardenlet(f"no {GROUP}/{VERSION} {KIND} with a name", configMap=where, key=KEY)
    return document
