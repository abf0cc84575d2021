"""Registering the Seed, and keeping it as it is configured.

Annotations are added and never removed; labels are ours, but for those that the garden keeps itself; the spec is the configured one. Nothing is
sent where nothing differs, and what the garden fills in is not taken away again: of the spec, only what is configured is compared, and
what was configured before.

Source: gardener cmd/gardenlet/app/app.go, registerSeed (contract core 5.2).
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import Forbidden, NotFound
from agents.kube.write import Outcome, Target, deploy
from gardenlet.apis.core_objects import NAMESPACES
from gardenlet.apis.seed import SEEDS
from gardenlet.config import SeedTemplate

log = get_logger(__name__)

ROLE = "gardener.cloud/role"
CONFIGURED = "agents.gardener.cloud/configured-spec"
"""Annotation: which fields of the spec we set last, so that one that is no longer configured is taken away."""
_OF_THE_GARDEN = ("name.seed.gardener.cloud/",)
_LABELS_OF_THE_GARDEN = frozenset({"seed.gardener.cloud/provider", "seed.gardener.cloud/region"})


class NamespaceMissing(RetriableError):
    """The garden has not made the Seed's namespace yet."""


class SeedRefused(RetriableError):
    """The garden does not take the Seed; most often it has no ControllerRegistration for it yet."""


async def register(garden: Client, template: SeedTemplate) -> Outcome:
    """Create the Seed, or make it what is configured.

    Raises:
        SeedRefused: with the garden's reason, and what a Seed needs there (retriable).
        ApiError: not written.
    """
    target = Target(SEEDS, template.metadata.name)

    def mutate(seed: dict[str, Any]) -> None:
        metadata = seed["metadata"]
        metadata["labels"] = _labels(metadata.get("labels") or {}, template.metadata.labels)
        before = _configured(metadata.get("annotations") or {})
        annotations = {**(metadata.get("annotations") or {}), **template.metadata.annotations}
        metadata["annotations"] = {**annotations, CONFIGURED: json.dumps(_shape(template.spec), sort_keys=True)}
        seed["spec"] = _spec(seed.get("spec") or {}, template.spec, before)

    try:
        _, outcome = await deploy(garden, target, mutate)
    except Forbidden as error:
        raise SeedRefused(
            "garden refuses the Seed; it needs a ControllerRegistration for each of the Seed's extension types",
            seed=template.metadata.name,
            types=", ".join(_extension_types(template.spec)) or "none",
            reason=str(error),
        ) from error
    if outcome is not Outcome.UNCHANGED:
        log.info("Seed registered", seed=template.metadata.name, outcome=outcome.value)
    return outcome


def _extension_types(spec: Mapping[str, Any]) -> list[str]:
    """Return what of a Seed needs an extension, as `kind/type`; gardener plugin/pkg/global/extensionvalidation."""
    provider = (spec.get("provider") or {}).get("type")
    dns = ((spec.get("dns") or {}).get("provider") or {}).get("type")
    backup = (spec.get("backup") or {}).get("provider")
    kinds = (("ControlPlane", provider), ("BackupBucket", backup), ("DNSRecord", dns))
    return [f"{kind}/{value}" for kind, value in kinds if value]


async def check_namespace(garden: Client, seed_name: str) -> None:
    """See that the garden has made the Seed's namespace.

    Raises:
        NamespaceMissing: not yet (retriable).
        ApiError: the garden does not answer.
    """
    try:
        await garden.get(NAMESPACES, f"seed-{seed_name}")
    except (NotFound, Forbidden) as error:
        raise NamespaceMissing("garden has not made the Seed's namespace yet", namespace=f"seed-{seed_name}") from error


def _labels(found: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    kept = {
        key: value for key, value in found.items() if key.startswith(_OF_THE_GARDEN) or key in _LABELS_OF_THE_GARDEN
    }
    wanted = {key: value for key, value in configured.items() if not key.startswith(_OF_THE_GARDEN)}
    return {**wanted, **kept, ROLE: "seed"}


def _spec(found: Mapping[str, Any], configured: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is found with what is configured in it, and without what was configured before and is not any more."""
    spec = _overlaid(found, configured, before)
    defaults = (found.get("dns") or {}).get("defaults")
    if defaults and not (configured.get("dns") or {}).get("defaults"):
        spec["dns"] = {**(spec.get("dns") or {}), "defaults": defaults}
    return spec


def _overlaid(found: Mapping[str, Any], configured: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    spec = deepcopy(dict(found))
    for key in before:
        if key not in configured:
            spec.pop(key, None)
    for key, value in configured.items():
        here = spec.get(key)
        if isinstance(value, Mapping) and isinstance(here, Mapping):
            earlier = before.get(key)
            spec[key] = _overlaid(here, value, earlier if isinstance(earlier, Mapping) else {})
        else:
            spec[key] = deepcopy(value)
    return spec


def _shape(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of fields, and no values: lists and plain values are leaves."""
    return {key: _shape(inner) if isinstance(inner, Mapping) else None for key, inner in value.items()}


def _configured(annotations: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = json.loads(annotations.get(CONFIGURED, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
