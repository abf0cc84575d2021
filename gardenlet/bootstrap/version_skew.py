"""Whether this gardenlet may work with this garden: not newer than it, and at most two minor releases older.

Source: gardener pkg/gardenlet/bootstrappers/verify_version.go, docs/deployment/version_skew_policy.md (contract core 1.4).
"""

from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.core.versions import InvalidVersion, Version
from agents.core.yamlio import YamlError, load_yaml
from agents.kube.client import Client
from agents.kube.errors import NotFound
from gardenlet.apis.core_objects import CONFIG_MAPS

log = get_logger(__name__)

NAMESPACE, NAME, KEY = "gardener-system-public", "gardener-info", "gardenerAPIServer"
MOST_MINORS = 2


class VersionSkew(RetriableError):
    """This gardenlet does not fit the garden; it waits, as a garden may be in the middle of its own update."""


async def check_version_skew(garden: Client, own: str) -> str:
    """Compare our version with the garden's, and return that.

    Raises:
        VersionSkew: they do not fit, or the garden does not say its version (retriable).
        ApiError: the garden does not answer, or refuses.
    """
    where = f"{NAMESPACE}/{NAME}"
    try:
        found = await garden.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
    except NotFound as error:
        raise VersionSkew("garden does not say its version", configMap=where) from error
    try:
        document = load_yaml(found.data.get(KEY, "").encode())
    except YamlError as error:
        raise VersionSkew("garden's version is not readable", configMap=where, key=KEY) from error
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(version, str):
        raise VersionSkew("garden does not say its version", configMap=where, key=KEY)
    if (problem := misfit(own, version, most_minors=MOST_MINORS)) is not None:
        raise VersionSkew(problem, gardenlet=own, garden=version)
    log.info("Version fits the garden's", gardenlet=own, garden=version)
    return version


def misfit(own: str, other: str, *, most_minors: int) -> str | None:
    """Return why a gardenlet does not fit what it works with: it may be older by some minor releases, and never newer; None if it fits."""
    try:
        ours, theirs = Version.parse(own).complete, Version.parse(other).complete
    except InvalidVersion:
        return "a version is not readable"
    if ours > theirs:
        return "gardenlet must not be newer; update the other one first"
    if (ours[0], ours[1] + most_minors) < theirs[:2]:
        return f"gardenlet is too old, by more than {most_minors} minor releases; update it"
    return None
