"""The seed of a run: another one each time, said so that a failure can be repeated."""

import os
import random


def chosen_seed() -> int:
    """Return the seed that `SEED` gives, else a new one; it is printed."""
    given = os.environ.get("SEED", "")
    seed = int(given) if given else random.SystemRandom().randrange(1_000_000)
    print(f"seed: {seed} (repeat with SEED={seed})")
    return seed
