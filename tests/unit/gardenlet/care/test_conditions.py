"""Arithmetic of conditions, and writing them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.kube.client import Client
from agents.kube.objects import Document
from agents.kube.resource import Resource
from agents.kube.write import Outcome, Target
from gardenlet.apis.core import Condition, ConditionStatus, LastOperation
from gardenlet.care import conditions
from tests.support.fake_api import FakeApi

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SEEDS = Resource("core.gardener.cloud", "v1beta1", "seeds", "Seed", namespaced=False, model=Document)
TRUE, FALSE, UNKNOWN, PROGRESSING = (
    ConditionStatus.TRUE,
    ConditionStatus.FALSE,
    ConditionStatus.UNKNOWN,
    ConditionStatus.PROGRESSING,
)
MINUTE = {"T": timedelta(minutes=1)}


def ago(seconds: int) -> str:
    """Return a time of an object, some seconds ago."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(status: ConditionStatus, seconds: int = 600, reason: str = "R", **fields: object) -> Condition:
    """Return a condition that changed its status some seconds ago."""
    return Condition(
        type="T",
        status=status,
        reason=reason,
        message="M",
        last_transition_time=ago(seconds),
        last_update_time=ago(seconds),
        **fields,
    )


def test_new_condition() -> None:
    """Contract controllers 2.8, core 5.5: Unknown, `ConditionInitialized`, both timestamps now."""
    found = conditions.find_or_init([], "T", now=NOW)
    assert found.document() == {
        "type": "T",
        "status": "Unknown",
        "reason": "ConditionInitialized",
        "message": "The condition has been initialized but its semantic check has not been performed yet.",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
        "lastUpdateTime": "2026-01-01T12:00:00Z",
    }
    assert conditions.find_or_init([condition(TRUE)], "T", now=NOW) == condition(TRUE)


@pytest.mark.parametrize(
    ("status", "reason", "message", "codes", "transition", "update"),
    [
        (TRUE, "R", "M", ("C",), 600, 600),
        (FALSE, "R", "M", ("C",), 0, 0),
        (TRUE, "X", "M", ("C",), 600, 0),
        (TRUE, "R", "X", ("C",), 600, 0),
        (TRUE, "R", "M", (), 600, 0),
        (TRUE, "R", "M", ("D",), 600, 0),
    ],
)
def test_which_time_moves(
    status: ConditionStatus, reason: str, message: str, codes: tuple[str, ...], transition: int, update: int
) -> None:
    """Contract controllers 2.8: lastTransitionTime with the status, lastUpdateTime with any of the four; codes are replaced."""
    new = conditions.updated(condition(TRUE, codes=("C",)), status, reason, message, *codes, now=NOW)
    assert (new.last_transition_time, new.last_update_time, new.codes) == (ago(transition), ago(update), codes)


def test_empty_reason_and_message() -> None:
    """Contract controllers 2.8: an empty reason is `Unspecified`, an empty message "No message given."."""
    new = conditions.updated(condition(TRUE), TRUE, "", "", now=NOW)
    assert (new.reason, new.message) == ("Unspecified", "No message given.")


def test_missing_times_are_filled_in() -> None:
    """Contract controllers 2.8: a condition without times gets them, also if nothing changes."""
    new = conditions.updated(Condition(type="T", status="True", reason="R", message="M"), TRUE, "R", "M", now=NOW)
    assert (new.last_transition_time, new.last_update_time) == (ago(0), ago(0))


def test_check_that_fails_itself() -> None:
    """Contract controllers 2.8, core 5.5: Unknown with `ConditionCheckError` and the error's text."""
    new = conditions.check_error(condition(TRUE), ValueError("boom"), now=NOW)
    assert (new.status, new.reason, new.message) == ("Unknown", "ConditionCheckError", "boom")
    assert conditions.check_error(condition(TRUE), "", now=NOW).message == "unknown"


@pytest.mark.parametrize(
    ("old", "threshold", "succeeded", "reason", "status"),
    [
        (condition(TRUE), False, None, "R", FALSE),
        (condition(TRUE), True, None, "R", PROGRESSING),
        (condition(PROGRESSING, 10), False, None, "R", FALSE),
        (condition(PROGRESSING, 60), True, None, "R", PROGRESSING),
        (condition(PROGRESSING, 61), True, None, "R", FALSE),
        (condition(PROGRESSING, 600), True, 60, "R", PROGRESSING),
        (condition(PROGRESSING, 600), True, 61, "R", FALSE),
        (condition(FALSE), False, 1, "X", FALSE),
        (condition(FALSE), True, None, "R", FALSE),
        (condition(FALSE), True, None, "X", PROGRESSING),
        (condition(FALSE), True, 60, "R", PROGRESSING),
        (condition(FALSE), True, 61, "R", FALSE),
        (condition(UNKNOWN), True, 1, "X", FALSE),
        (condition(UNKNOWN), False, None, "R", FALSE),
    ],
)
def test_threshold_rule(
    old: Condition, threshold: bool, succeeded: int | None, reason: str, status: ConditionStatus
) -> None:
    """Contract controllers 2.8, core 5.5: the threshold rule, row by row; the time counts from lastTransitionTime."""
    operation = None if succeeded is None else LastOperation(state="Succeeded", last_update_time=ago(succeeded))
    new = conditions.failed(
        old, reason, "M", "C", thresholds=MINUTE if threshold else {}, last_operation=operation, now=NOW
    )
    assert (new.status, new.reason, new.codes) == (status, reason, ("C",))


@pytest.mark.parametrize(("transition", "update", "status"), [(61, 1, FALSE), (10, 600, PROGRESSING)])
def test_threshold_counts_from_the_transition(transition: int, update: int, status: ConditionStatus) -> None:
    """Contract core 0, controllers 2.8: lastTransitionTime decides, whatever lastUpdateTime says (D5)."""
    old = condition(PROGRESSING).model_copy(
        update={"last_transition_time": ago(transition), "last_update_time": ago(update)}
    )
    assert conditions.failed(old, "R", "M", thresholds=MINUTE, now=NOW).status == status


def test_operation_that_did_not_succeed_protects_nothing() -> None:
    """Contract controllers 2.8: only an operation in state Succeeded keeps a condition Progressing."""
    operation = LastOperation(state="Error", last_update_time=ago(1))
    new = conditions.failed(condition(FALSE), "R", "M", thresholds=MINUTE, last_operation=operation, now=NOW)
    assert new.status == FALSE


def test_forced_progressing_keeps_its_threshold() -> None:
    """Contract core 5.4 (ours, W23): a status that is forced to Progressing moves lastTransitionTime, so the threshold counts anew."""
    forced = conditions.updated(condition(TRUE, 6000), PROGRESSING, "R", "M", now=NOW)
    later = NOW + timedelta(seconds=50)
    assert conditions.failed(forced, "R", "M", thresholds=MINUTE, now=later).status == PROGRESSING


def other(name: str) -> Condition:
    """Return a condition of another type."""
    return Condition(type=name, status="True")


def test_merge_and_build() -> None:
    """Contract controllers 2.8: merge keeps the order; a managed condition that is not among the new ones disappears."""
    a, b, c = other("A"), other("B"), other("C")
    changed = other("A").model_copy(update={"status": "False"})
    assert conditions.merge([a, b], changed, c) == (changed, b, c)
    assert conditions.build([a, b, c], [changed], managed={"A", "C"}) == (b, changed)


@given(old=st.lists(st.sampled_from("ABCD"), unique=True), new=st.lists(st.sampled_from("ABCDEF"), unique=True))
def test_merge_loses_nobody(old: list[str], new: list[str]) -> None:
    """Contract controllers 2.8: after a merge each type is there once, the old ones first and in their order."""
    merged = [item.type for item in conditions.merge([other(name) for name in old], *(other(name) for name in new))]
    assert merged[: len(old)] == old
    assert merged[len(old) :] == [name for name in new if name not in old]


def test_need_update_is_deep() -> None:
    """Contract controllers 2.8: any difference counts, in whichever field, and in their order; absent and empty are the same."""
    a, b = condition(TRUE), other("B")
    assert not conditions.need_update([a, b], [a, b])
    assert conditions.need_update([a, b], [b, a])
    assert conditions.need_update([a], [a.model_copy(update={"last_update_time": ago(0)})])
    read = Condition.model_validate({"type": "B", "status": "True", "codes": None})
    assert not conditions.need_update([read], [b.model_copy(update={"codes": ()})])


@pytest.fixture
def api() -> FakeApi:
    """An API server in memory with a Seed."""
    server = FakeApi()
    theirs = {"type": "ExtensionsReady", "status": "True", "observedGeneration": 7, "lastUpdateTime": None}
    server.put(
        SEEDS, {"metadata": {"name": "s"}, "spec": {"x": 1}, "status": {"conditions": [theirs], "other": "kept"}}
    )
    return server


@pytest.fixture
def client(api: FakeApi) -> Client:
    """A client of that API server."""
    return Client(transport=api, rng=Random(1))


def add(old: Sequence[Condition]) -> tuple[Condition, ...]:
    """Add our condition."""
    return conditions.merge(old, condition(TRUE))


async def test_write_is_a_guarded_merge_patch_of_the_list(api: FakeApi, client: Client) -> None:
    """Contract core 5.4 (ours): JSON merge patch of the whole list, on the status subresource, with the resourceVersion read."""
    read = await client.get(SEEDS, "s")
    assert await conditions.write(client, Target(SEEDS, "s"), add) is Outcome.CHANGED
    [call] = api.requests("PATCH")
    assert (call.path, call.content_type) == (
        "/apis/core.gardener.cloud/v1beta1/seeds/s/status",
        "application/merge-patch+json",
    )
    body = json.loads(call.body or b"")
    assert body["metadata"] == {"resourceVersion": read.metadata.resource_version}
    assert body["status"]["conditions"] == [
        {"type": "ExtensionsReady", "status": "True", "observedGeneration": 7},
        condition(TRUE).document(),
    ]
    assert body.keys() == {"metadata", "status"}
    stored = (await client.get(SEEDS, "s")).content
    assert (stored["spec"], stored["status"]["other"]) == ({"x": 1}, "kept")


async def test_write_of_what_is_there_is_no_request(api: FakeApi, client: Client) -> None:
    """Contract core 6: a condition is only patched when it is different."""
    await conditions.write(client, Target(SEEDS, "s"), add)
    assert await conditions.write(client, Target(SEEDS, "s"), add) is Outcome.UNCHANGED
    assert len(api.requests("PATCH")) == 1


async def test_write_loses_nobodys_condition(api: FakeApi, client: Client) -> None:
    """Contract core 5.4 (ours): a condition that somebody adds between our read and our patch survives: 409, read again, patch."""
    first = True

    def change(old: Sequence[Condition]) -> Sequence[Condition]:
        nonlocal first
        if first:
            first = False
            stored = api.read(SEEDS, "s")
            assert stored is not None
            theirs = [*stored["status"]["conditions"], {"type": "BackupBucketsReady", "status": "True"}]
            api.put(SEEDS, {**stored, "status": {**stored["status"], "conditions": theirs}})
        return add(old)

    await conditions.write(client, Target(SEEDS, "s"), change)
    stored = api.read(SEEDS, "s")
    assert stored is not None
    assert [item["type"] for item in stored["status"]["conditions"]] == ["ExtensionsReady", "BackupBucketsReady", "T"]


async def test_constraints_and_an_empty_status(api: FakeApi, client: Client) -> None:
    """An object without a status gets one; constraints are conditions under another name."""
    api.put(SEEDS, {"metadata": {"name": "new"}})
    await conditions.write(client, Target(SEEDS, "new"), add, field="constraints")
    stored = api.read(SEEDS, "new")
    assert stored is not None
    assert stored["status"] == {"constraints": [condition(TRUE).document()]}
