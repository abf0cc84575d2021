"""Names by which a garden knows its gardenlets: counterparts contract, 2."""

from hashlib import sha256

SEEDS_GROUP = "gardener.cloud:system:seeds"
USER_PREFIX = "gardener.cloud:system:seed:"
LEASE_NAMESPACE = "gardener-system-seed-lease"
_LABEL_PREFIX = "name.seed.gardener.cloud/"


def seed_of(user: str, groups: tuple[str, ...]) -> str | None:
    """Return the seed of a gardenlet; None for any other user."""
    if SEEDS_GROUP not in groups or not user.startswith(USER_PREFIX):
        return None
    return user.removeprefix(USER_PREFIX) or None


def label_of(seed: str) -> str:
    """Return the label that says that an object belongs to a seed."""
    return _LABEL_PREFIX + seed


def is_seed_label(key: str) -> bool:
    """Tell whether a label is one of those."""
    return key.startswith(_LABEL_PREFIX)


def bootstrap_token_id(seed: str) -> str:
    """Return the id of a bootstrap token for a seed."""
    return sha256(f"garden--{seed}".encode()).hexdigest()[:6]
