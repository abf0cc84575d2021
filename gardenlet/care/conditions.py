"""Arithmetic of conditions, and writing them without losing anybody's.

A failing check does not make a condition False at once where there is a threshold for its type: it is Progressing for so long first.
The time counts from `lastTransitionTime`, as in Gardener's code (its documentation says otherwise).

Source: gardener pkg/api/core/v1beta1/helper/condition.go, condition_builder.go (contract core 5.4 and 5.5, controllers 2.8).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from agents.kube.client import Client
from agents.kube.patch import same
from agents.kube.write import Outcome, Target, change_until_done
from gardenlet.apis.core import Condition, ConditionStatus, LastOperation, format_time, moment, within

INITIALIZED_REASON = "ConditionInitialized"
INITIALIZED_MESSAGE = "The condition has been initialized but its semantic check has not been performed yet."
CHECK_ERROR_REASON = "ConditionCheckError"

Thresholds = Mapping[str, timedelta]
"""By type of condition: how long it is Progressing before it is False."""


def init(condition_type: str, *, now: datetime) -> Condition:
    """Return a condition that nobody has looked at."""
    return Condition(
        type=condition_type,
        status=ConditionStatus.UNKNOWN,
        reason=INITIALIZED_REASON,
        message=INITIALIZED_MESSAGE,
        last_transition_time=format_time(now),
        last_update_time=format_time(now),
    )


def find(conditions: Iterable[Condition], condition_type: str) -> Condition | None:
    """Return the condition of a type, None if there is none."""
    return next((condition for condition in conditions if condition.type == condition_type), None)


def find_or_init(conditions: Iterable[Condition], condition_type: str, *, now: datetime) -> Condition:
    """Return the condition of a type, a new one if there is none."""
    return find(conditions, condition_type) or init(condition_type, now=now)


def updated(
    old: Condition, status: ConditionStatus, reason: str, message: str, *codes: str, now: datetime
) -> Condition:
    """Return a condition with another status, reason, message and codes; codes are never inherited.

    `lastTransitionTime` moves with the status, `lastUpdateTime` with any of the four; without a difference neither moves.
    """
    reason, message = reason or "Unspecified", message or "No message given."
    moved = status != old.status
    differs = moved or (reason, message, codes) != (old.reason, old.message, old.codes)
    fields: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "message": message,
        "codes": codes,
        "last_transition_time": format_time(now) if moved or not old.last_transition_time else old.last_transition_time,
        "last_update_time": format_time(now) if differs or not old.last_update_time else old.last_update_time,
    }
    return old.model_copy(update=fields)


def check_error(old: Condition, error: BaseException | str, *codes: str, now: datetime) -> Condition:
    """Return a condition whose check itself failed."""
    return updated(old, ConditionStatus.UNKNOWN, CHECK_ERROR_REASON, str(error) or "unknown", *codes, now=now)


def failed(
    old: Condition,
    reason: str,
    message: str,
    *codes: str,
    thresholds: Thresholds,
    last_operation: LastOperation | None = None,
    now: datetime,
) -> Condition:
    """Return a condition whose check says that something is not well: Progressing as long as its threshold allows, else False."""
    threshold = thresholds.get(old.type)
    status = ConditionStatus.FALSE
    if threshold is not None and _tolerated(old, reason, threshold, last_operation, now):
        status = ConditionStatus.PROGRESSING
    return updated(old, status, reason, message, *codes, now=now)


def _tolerated(
    old: Condition, reason: str, threshold: timedelta, last_operation: LastOperation | None, now: datetime
) -> bool:
    if old.status == ConditionStatus.TRUE:
        return True
    if old.status == ConditionStatus.PROGRESSING:
        since = moment(old.last_transition_time)
        return within(last_operation, threshold, now) or (since is not None and now - since <= threshold)
    if old.status == ConditionStatus.FALSE:
        return within(last_operation, threshold, now) or reason != old.reason
    return False


def merge(old: Sequence[Condition], *new: Condition) -> tuple[Condition, ...]:
    """Return the old conditions with the new ones in their places, and those of other types at the end."""
    return tuple({condition.type: condition for condition in (*old, *new)}.values())


def build(all_: Sequence[Condition], new: Iterable[Condition], *, managed: Collection[str]) -> tuple[Condition, ...]:
    """Return what is somebody else's, and of the managed types only what is new: one that is left out disappears."""
    return merge([condition for condition in all_ if condition.type not in managed], *new)


def need_update(old: Iterable[Condition], new: Iterable[Condition]) -> bool:
    """Return whether the conditions differ in anything."""
    return not same([item.document() for item in old], [item.document() for item in new])


def of(document: Mapping[str, Any], *, field: str = "conditions") -> tuple[Condition, ...]:
    """Return the conditions in an object's status."""
    return tuple(Condition.model_validate(item) for item in (document.get("status") or {}).get(field) or ())


Change = Callable[[tuple[Condition, ...]], Sequence[Condition]]
"""From the conditions as they are now to what they shall be; may be called more than once."""


async def write(
    client: Client, target: Target, change: Change, *, subresource: str | None = "status", field: str = "conditions"
) -> Outcome:
    """Change the conditions of an object as it is now, and nothing else of it.

    A JSON merge patch of the whole list with `resourceVersion`, again from a fresh read after a conflict: that works against an
    aggregated API server and against CRDs, which know no strategic merge patch, and loses no condition of anybody.

    Args:
        client: API server.
        target: the object.
        change: what to make of the conditions.
        subresource: None for kinds that have no `status` subresource.
        field: `constraints` are the same thing under another name.

    Raises:
        NotFound: there is no such object.
        Conflict: somebody was faster five times in a row.
    """

    def mutate(document: dict[str, Any]) -> None:
        old = of(document, field=field)
        new = tuple(change(old))
        if need_update(old, new):
            document["status"] = {**(document.get("status") or {}), field: [item.document() for item in new]}

    return (await change_until_done(client, target, mutate, subresource=subresource))[1]
