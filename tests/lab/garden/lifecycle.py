"""Rules of gardener-controller-manager's gardenlet-lifecycle for Seeds: counterparts contract, 5.2, steps 1 to 5."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

MONITOR_PERIOD = dt.timedelta(seconds=40)
CONDITION = "GardenletReady"


def is_fresh(lease: Mapping[str, Any] | None, now: dt.datetime) -> bool:
    """Tell whether a gardenlet's Lease was renewed in time; a missing one was not."""
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    return bool(renewed) and dt.datetime.fromisoformat(str(renewed)) + MONITOR_PERIOD > now


def offline_conditions(seed: Mapping[str, Any], now: dt.datetime) -> list[dict[str, Any]] | None:
    """Return the conditions of a Seed whose gardenlet is silent; None if they are so already, or if it is a new Seed."""
    conditions = [dict(one) for one in (seed.get("status") or {}).get("conditions") or []]
    if not conditions:
        return None
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    wanted = {
        "type": CONDITION,
        "status": "Unknown",
        "reason": "StatusUnknown",
        "message": "Gardenlet stopped posting status updates.",
        "lastUpdateTime": time,
        "lastTransitionTime": time,
    }
    for index, one in enumerate(conditions):
        if one["type"] == CONDITION:
            if one.get("status") == "Unknown" and one.get("reason") == wanted["reason"]:
                return None
            conditions[index] = wanted
            return conditions
    return [*conditions, wanted]
