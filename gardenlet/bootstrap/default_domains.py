"""The default domains of a Seed whose configuration names none: the garden's, as the Seed's namespace has them.

Source: gardener cmd/gardenlet/app/app.go, pkg/utils/gardener/{garden,dns}.go (contract core 5.2).
"""

from collections.abc import Iterable
from typing import Any

from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client, Selector
from agents.kube.models import SECRETS, Secret
from agents.kube.write import Outcome, Target, deploy
from gardenlet.apis.seed import SEEDS
from gardenlet.config import SeedTemplate

log = get_logger(__name__)

ROLE = "gardener.cloud/role=default-domain"
PRIORITY = "dns.gardener.cloud/domain-default-priority"
PROVIDER, DOMAIN, ZONE = "dns.gardener.cloud/provider", "dns.gardener.cloud/domain", "dns.gardener.cloud/zone"


class IncompleteDefaultDomain(RetriableError):
    """A Secret of a default domain lacks an annotation; the garden's operator has to add it."""


async def fill_in(garden: Client, template: SeedTemplate) -> Outcome:
    """Write the garden's default domains into the Seed, unless the configuration has some.

    Raises:
        IncompleteDefaultDomain: a Secret does not say its provider or domain.
        ApiError: not read or written.
    """
    if (template.spec.get("dns") or {}).get("defaults"):
        return Outcome.UNCHANGED
    name = template.metadata.name
    found = await garden.list(SECRETS, namespace=f"seed-{name}", selector=Selector(label=ROLE))
    domains = default_domains(found.items)
    if not domains:
        return Outcome.UNCHANGED

    def mutate(seed: dict[str, Any]) -> None:
        spec = seed.setdefault("spec", {})
        spec["dns"] = {**(spec.get("dns") or {}), "defaults": domains}

    _, outcome = await deploy(garden, Target(SEEDS, name), mutate)
    if outcome is not Outcome.UNCHANGED:
        log.info("Default domains written", seed=name, domains=[domain["domain"] for domain in domains])
    return outcome


def default_domains(secrets: Iterable[Secret]) -> list[dict[str, Any]]:
    """Return the entries of `spec.dns.defaults`, the highest priority first.

    Raises:
        IncompleteDefaultDomain: see above.
    """
    ordered = sorted(secrets, key=lambda secret: secret.metadata.name)
    return [_entry(secret) for secret in sorted(ordered, key=_priority, reverse=True)]


def _priority(secret: Secret) -> int:
    try:
        return int(secret.metadata.annotations.get(PRIORITY, ""))
    except ValueError:
        return 0


def _entry(secret: Secret) -> dict[str, Any]:
    annotations, name = secret.metadata.annotations, secret.metadata.name
    for key in (PROVIDER, DOMAIN):
        if not annotations.get(key):
            raise IncompleteDefaultDomain("default domain lacks an annotation", secret=name, annotation=key)
    zone = {"zone": annotations[ZONE]} if annotations.get(ZONE) else {}
    reference = {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": name}
    return {"type": annotations[PROVIDER], "domain": annotations[DOMAIN], **zone, "credentialsRef": reference}
