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
    _compare(own, version)
    log.info("Version fits the garden's", gardenlet=own, garden=version)
    return version


def _compare(own: str, garden: str) -> None:
    try:
        ours, theirs = Version.parse(own).complete, Version.parse(garden).complete
    except InvalidVersion as error:
        raise VersionSkew("a version is not readable", gardenlet=own, garden=garden) from error
    if ours > theirs:
        raise VersionSkew(
            "gardenlet must not be newer than the garden; update the garden first", gardenlet=own, garden=garden
        )
    if (ours[0], ours[1] + MOST_MINORS) < theirs[:2]:
        raise VersionSkew(
            "gardenlet is too old for the garden: at most two minor releases; update gardenlet",
            gardenlet=own,
            garden=garden,
        )
