"""Life cycle of extension objects, in virtual time on an API server in memory, with an extension that does what a test says."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agents.core.errors import RetriableError
from agents.flow.retry import RetryTimeout
from agents.kube.client import Client
from agents.kube.errors import Forbidden, NotFound
from agents.kube.write import Target
from gardenlet.apis import extensions
from gardenlet.apis.extensions import INFRASTRUCTURES, WORKERS, ExtensionObject
from gardenlet.operation import extension
from gardenlet.operation.errors import codes_of
from gardenlet.operation.extension import WAIT, WaitTimes
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running

TARGET = Target(INFRASTRUCTURES, "shoot", "cp")
SECOND = timedelta(seconds=1)
TIMES = WaitTimes(interval=5 * SECOND, severe=30 * SECOND, timeout=180 * SECOND)
DONE = {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": "2026-01-01T00:00:20Z"}


def change(api: FakeApi, status: dict[str, Any] | None = None, **annotations: str | None) -> None:
    """Be the extension: write the status, and set or remove annotations."""
    stored = api.read(INFRASTRUCTURES, "shoot", "cp")
    assert stored is not None
    known = {
        **stored["metadata"].get("annotations", {}),
        **{f"gardener.cloud/{key}": v for key, v in annotations.items()},
    }
    metadata = {**stored["metadata"], "annotations": {key: value for key, value in known.items() if value is not None}}
    old = stored.get("status", {})
    api.put(INFRASTRUCTURES, {**stored, "metadata": metadata, "status": old if status is None else {**old, **status}})


async def deploy(client: Client, clock: FakeClock, operation: str | None = "reconcile", **spec: Any) -> ExtensionObject:
    """Deploy the object."""
    return await extension.deploy_object(client, TARGET, {"type": "aws", **spec}, clock=clock, operation=operation)


async def wait(client: Client, **options: Any) -> ExtensionObject:
    """Wait for the object."""
    return await extension.wait_until_ready(client, TARGET, times=TIMES, **options)


def since_start() -> float:
    """Return virtual seconds since the start of the test."""
    return asyncio.get_running_loop().time() - 1000


async def test_deploy_replaces_the_spec_and_asks(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.1: operation and timestamp annotations, and the complete spec; what others wrote stays."""
    await deploy(client, clock, region="x", providerConfig={"a": 1, "b": 2})
    change(api, {"providerStatus": {"vpc": "1"}}, operation=None, other="kept")
    await asyncio.sleep(1.5)
    written = await deploy(client, clock, providerConfig={"a": 1})
    stored = api.read(INFRASTRUCTURES, "shoot", "cp")
    assert stored is not None
    assert stored["spec"] == {"type": "aws", "providerConfig": {"a": 1}}
    assert stored["status"] == {"providerStatus": {"vpc": "1"}}
    assert stored["metadata"]["annotations"] == {
        "gardener.cloud/operation": "reconcile",
        "gardener.cloud/timestamp": "2026-01-01T00:00:01.5Z",
        "gardener.cloud/other": "kept",
    }
    assert written.metadata.annotations["gardener.cloud/timestamp"] == "2026-01-01T00:00:01.5Z"


async def test_deploy_without_an_operation_only_merges_the_spec(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.6: an Infrastructure that need not be reconciled gets its spec and no annotation."""
    await deploy(client, clock, operation=None)
    stored = api.read(INFRASTRUCTURES, "shoot", "cp")
    assert stored is not None
    assert "annotations" not in stored["metadata"]


@pytest.mark.parametrize(
    ("last", "timestamp", "unsettled"),
    [
        (None, "2026-01-01T00:00:00Z", False),
        (None, "torn", False),
        ({**DONE, "state": "Error"}, None, True),
        ({**DONE, "state": "Processing"}, None, True),
        (DONE, None, False),
        (DONE, "2026-01-01T00:00:20.9Z", False),
        (DONE, "2026-01-01T00:00:21Z", True),
        (DONE, "torn", True),
        ({**DONE, "lastUpdateTime": None}, "2026-01-01T00:00:00Z", True),
    ],
)
def test_unsettled(last: dict[str, Any] | None, timestamp: str | None, unsettled: bool) -> None:
    """Contract controllers 2.6: last operation not Succeeded, or timestamp invalid or newer; a missing operation is neither."""
    annotations = {} if timestamp is None else {"gardener.cloud/timestamp": timestamp}
    document = {"metadata": {"annotations": annotations}, "status": {"lastOperation": last}}
    assert extension.is_unsettled(ExtensionObject.model_validate(document)) is unsettled


async def test_asking_only_where_it_is_needed(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.6: an Infrastructure is annotated only if its last run failed; a first create is not."""

    async def deploy_if_needed() -> bool:
        item = await extension.deploy_object(
            client, TARGET, {"type": "aws"}, clock=clock, operation="reconcile", ask=extension.is_unsettled
        )
        return "gardener.cloud/operation" in item.metadata.annotations

    assert not await deploy_if_needed()
    change(api, {"lastOperation": DONE})
    assert not await deploy_if_needed()
    change(api, {"lastOperation": {**DONE, "state": "Error"}})
    assert await deploy_if_needed()


def ready(**changes: Any) -> ExtensionObject:
    """Return an object that is ready, but for some changes."""
    annotations = {"gardener.cloud/timestamp": "2026-01-01T00:00:20.75Z", **changes.pop("annotations", {})}
    document = {
        "metadata": {"generation": 3, "annotations": {key: v for key, v in annotations.items() if v is not None}},
        "status": {"observedGeneration": 3, "lastOperation": DONE, **changes},
    }
    return ExtensionObject.model_validate(document)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (ready(), None),
        (ready(annotations={"gardener.cloud/timestamp": None}), None),
        (
            ready(lastError={"description": "no quota", "codes": ["ERR_X"]}, observedGeneration=1),
            "error during reconciliation: no quota",
        ),
        (ready(observedGeneration=2, lastOperation=None), "observed generation outdated (2/3)"),
        (
            ready(annotations={"gardener.cloud/operation": "reconcile"}, lastOperation=None),
            'gardener operation "reconcile" is not yet picked up by controller',
        ),
        (ready(lastOperation=None), "extension did not record a last operation yet"),
        (ready(lastOperation={**DONE, "state": "Processing"}), "extension state is not succeeded but Processing"),
        (
            ready(annotations={"gardener.cloud/timestamp": "yesterday"}),
            "cannot parse gardener.cloud/timestamp annotation",
        ),
        (
            ready(annotations={"gardener.cloud/timestamp": "2026-01-01T00:00:21.000000001Z"}),
            "extension is not reconciled yet - reconciliation requested at 2026-01-01T00:00:21Z, last update time is: 2026-01-01T00:00:20Z",
        ),
        (
            ExtensionObject.model_validate({"metadata": {}, "status": None}),
            "extension did not record a last operation yet",
        ),
    ],
)
def test_ready_check(item: ExtensionObject, reason: str | None) -> None:
    """Contract controllers 2.5.2: the first rule that is not met wins; the timestamp is cut to seconds."""
    found = extension.check_ready(item)
    assert (None if found is None else str(found)) == reason
    if item.status.last_error is not None:
        assert found is not None
        assert codes_of(found) == ("ERR_X",)


async def play(*steps: tuple[float, Callable[[], None]]) -> None:
    """Do things at certain times, and then nothing."""
    for moment, act in steps:
        await asyncio.sleep(moment - since_start())
        act()
    await asyncio.Event().wait()


async def test_wait_until_ready(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.3: polled every interval until ready; the object comes back as it was then."""
    written = await deploy(client, clock)
    steps = (
        (7, lambda: change(api, {"lastOperation": {**DONE, "state": "Processing"}}, operation=None)),
        (21, lambda: change(api, {"lastOperation": DONE, "providerStatus": {"vpc": "1"}})),
    )
    async with running(lambda: play(*steps)):
        found = await wait(client, written=written)
    assert since_start() == 25
    assert found.content["status"]["providerStatus"] == {"vpc": "1"}


async def test_only_the_answer_to_what_was_written_counts(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.3: an object without exactly our timestamp is not what we wrote, however ready it looks."""
    await deploy(client, clock)
    change(api, {"lastOperation": DONE}, operation=None)
    await asyncio.sleep(0.25)
    written = await deploy(client, clock)
    change(api, operation=None, timestamp="2026-01-01T00:00:00Z")
    with pytest.raises(extension.WaitFailed) as caught:
        await wait(client, written=written)
    assert str(caught.value) == (
        "Error while waiting for Infrastructure cp/shoot to become ready: "
        "annotation gardener.cloud/timestamp is 2026-01-01T00:00:00Z instead of 2026-01-01T00:00:00.25Z"
    )


async def test_reported_error_is_severe_after_the_threshold(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.3: lastError is tolerated for severeThreshold/interval attempts, then ends the wait, with codes."""
    written = await deploy(client, clock)
    change(api, {"lastError": {"description": "denied", "codes": ["ERR_INFRA_UNAUTHORIZED"]}}, operation=None)
    with pytest.raises(extension.WaitFailed) as caught:
        await wait(client, written=written)
    assert since_start() == 30
    assert str(caught.value) == (
        "Error while waiting for Infrastructure cp/shoot to become ready: error during reconciliation: denied"
    )
    assert codes_of(caught.value) == ("ERR_INFRA_UNAUTHORIZED",)


async def test_not_yet_is_waited_for_until_the_timeout(client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.3: what is not an error of the extension is tried until the timeout; the last reason is told."""
    written = await deploy(client, clock)
    with pytest.raises(extension.WaitFailed, match='gardener operation "reconcile" is not yet picked up'):
        await wait(client, written=written)
    assert since_start() == 180


async def test_object_that_is_missing_or_cannot_be_read(api: FakeApi, client: Client) -> None:
    """Contract controllers 2.5.3: NotFound is tried again, any other error of the API server ends the wait."""
    with pytest.raises(extension.WaitFailed, match="object not found"):
        await wait(client)
    assert since_start() == 180
    api.fail(Forbidden("no", status=403))
    with pytest.raises(extension.WaitFailed):
        await wait(client)
    assert since_start() == 180


async def test_post_ready_is_part_of_being_ready(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.3: the post-ready function is tried with the object under the same rules."""
    written = await deploy(client, clock)
    change(api, {"lastOperation": DONE}, operation=None)
    failures = 3

    async def post(item: ExtensionObject) -> None:
        nonlocal failures
        assert item.metadata.name == "shoot"
        if failures:
            failures -= 1
            raise RetriableError("not stored")

    await wait(client, written=written, post_ready=post)
    assert since_start() == 15
    failures = 1000
    with pytest.raises(extension.WaitFailed, match="become ready: not stored"):
        await wait(client, written=written, post_ready=post)


async def test_delete(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.4: confirmed by annotation with a timestamp, then deleted; what is gone is fine."""
    await deploy(client, clock)
    await extension.delete_object(client, TARGET, clock=clock)
    patch, delete = api.calls[-2:]
    assert (patch.method, delete.method) == ("PATCH", "DELETE")
    assert b'"confirmation.gardener.cloud/deletion":"true"' in (patch.body or b"")
    assert b'"gardener.cloud/timestamp":"2026-01-01T00:00:00Z"' in (patch.body or b"")
    await extension.delete_object(client, TARGET, clock=clock)
    await extension.wait_until_deleted(client, TARGET, interval=SECOND, timeout=SECOND)


async def test_deletion_that_does_not_end(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.4: an error of the extension never ends the wait early; it is the cause in the end."""
    await deploy(client, clock)
    with pytest.raises(extension.WaitFailed) as silent:
        await extension.wait_until_deleted(client, TARGET, interval=5 * SECOND, timeout=60 * SECOND)
    assert "Infrastructure cp/shoot is still present" in str(silent.value)
    change(api, {"lastError": {"description": "in use", "codes": ["ERR_INFRA_DEPENDENCIES"]}})
    with pytest.raises(extension.WaitFailed) as caught:
        await extension.wait_until_deleted(client, TARGET, interval=5 * SECOND, timeout=60 * SECOND)
    assert since_start() == 120
    assert str(caught.value) == "Failed to delete Infrastructure cp/shoot: in use"
    assert codes_of(caught.value) == ("ERR_INFRA_DEPENDENCIES",)
    api.fail(Forbidden("no", status=403))
    with pytest.raises(extension.WaitFailed):
        await extension.wait_until_deleted(client, TARGET, interval=5 * SECOND, timeout=60 * SECOND)
    assert since_start() == 120


async def test_migrate(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.5: annotated, then waited for until it is gone or (Migrate, Succeeded); no severe threshold."""

    async def wait_migrated() -> None:
        await extension.wait_until_migrated(client, TARGET, interval=5 * SECOND, timeout=60 * SECOND)

    await extension.migrate_object(client, TARGET, clock=clock)
    await wait_migrated()
    await deploy(client, clock)
    await extension.migrate_object(client, TARGET, clock=clock)
    stored = api.read(INFRASTRUCTURES, "shoot", "cp")
    assert stored is not None
    assert stored["metadata"]["annotations"]["gardener.cloud/operation"] == "migrate"
    change(api, {"lastError": {"description": "x"}, "lastOperation": {"type": "Migrate", "state": "Error"}})
    with pytest.raises(
        RetryTimeout, match="error while waiting for Infrastructure cp/shoot to be successfully migrated"
    ):
        await wait_migrated()
    change(api, {"lastOperation": {"type": "Migrate", "state": "Succeeded"}})
    await wait_migrated()
    api.fail(Forbidden("no", status=403))
    with pytest.raises(Forbidden):
        await wait_migrated()


async def test_all_of_a_kind(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.7: something is done to all objects of a kind in a namespace in parallel, with a filter."""
    for name, namespace in (("a", "cp"), ("b", "cp"), ("c", "other")):
        api.put(INFRASTRUCTURES, {"metadata": {"name": name, "namespace": namespace}, "spec": {"type": name}})
    seen: list[tuple[float, str]] = []

    async def act(target: Target) -> None:
        await asyncio.sleep(1)
        seen.append((since_start(), f"{target.namespace}/{target.name}"))

    await extension.for_all(client, INFRASTRUCTURES, "cp", act)
    assert sorted(seen) == [(1, "cp/a"), (1, "cp/b")]
    seen.clear()
    await extension.for_all(client, INFRASTRUCTURES, "cp", act, where=lambda item: item.spec.type == "b")
    assert seen == [(2, "cp/b")]
    await extension.for_all(
        client, INFRASTRUCTURES, "cp", lambda target: extension.delete_object(client, target, clock=clock)
    )
    assert [item["metadata"]["name"] for item in api.stored(INFRASTRUCTURES)] == ["c"]


async def test_kind_that_is_not_known_has_no_objects(api: FakeApi, client: Client) -> None:
    """Contract controllers 2.5.7: a missing CRD counts as an empty list."""
    api.fail(NotFound("the server could not find the requested resource", status=404))

    async def act(_target: Target) -> None:
        raise AssertionError

    await extension.for_all(client, WORKERS, "cp", act)


def test_default_wait_times() -> None:
    """Contract controllers 2.5: interval, severe threshold and timeout of each kind."""
    table = {
        kind: tuple(int(value.total_seconds()) for value in (times.interval, times.severe, times.timeout))
        for kind, times in WAIT.items()
    }
    assert table == {
        "Infrastructure": (10, 180, 600),
        "Network": (5, 30, 180),
        "ControlPlane": (5, 30, 180),
        "OperatingSystemConfig": (5, 30, 180),
        "ContainerRuntime": (5, 30, 180),
        "Extension": (5, 30, 180),
        "Worker": (5, 30, 600),
        "BackupEntry": (5, 30, 600),
        "DNSRecord": (5, 15, 120),
    }
    assert WaitTimes(5 * SECOND, 600 * SECOND, 600 * SECOND) == extension.WAIT_CORE_BACKUP


def test_where_the_kinds_live() -> None:
    """Contract controllers 2.17: the kinds, their plural names, and which of them are cluster-scoped."""
    assert [(kind.kind, kind.plural, kind.namespaced) for kind in extensions.KINDS] == [
        ("BackupBucket", "backupbuckets", False),
        ("BackupEntry", "backupentries", False),
        ("Bastion", "bastions", True),
        ("ContainerRuntime", "containerruntimes", True),
        ("ControlPlane", "controlplanes", True),
        ("DNSRecord", "dnsrecords", True),
        ("Extension", "extensions", True),
        ("Infrastructure", "infrastructures", True),
        ("Network", "networks", True),
        ("OperatingSystemConfig", "operatingsystemconfigs", True),
        ("Worker", "workers", True),
    ]
