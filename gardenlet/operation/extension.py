"""Life cycle of the objects that extension controllers work on: ask, wait until they have done it, and know why not.

The handshake is made of annotations. We set `gardener.cloud/operation` and a timestamp; the extension removes the operation when it
begins (`migrate` and `restore`: when it has succeeded) and writes `lastOperation`, `lastError` and `observedGeneration`. The timestamp that
we wrote tells a fresh answer from one that was there before.

Source: gardener pkg/extensions/customresources.go, pkg/utils/kubernetes/health/extensions.go (contract controllers 2.5).
"""

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agents.core.clock import Clock
from agents.core.errors import FatalError, RetriableError
from agents.flow.bodies import parallel
from agents.flow.graph import Body
from agents.flow.retry import OK, Outcome, RetryTimeout, minor, minor_or_severe, severe, until_timeout
from agents.kube.client import Client
from agents.kube.errors import ApiError, NotFound
from agents.kube.patch import merge
from agents.kube.resource import Resource
from agents.kube.write import Target, deploy
from gardenlet.apis.constants import (
    CONFIRM_DELETION,
    OPERATION,
    OPERATION_MIGRATE,
    TIMESTAMP,
)
from gardenlet.apis.core import OperationState, OperationType, format_nano, format_time, moment
from gardenlet.apis.extensions import ExtensionObject
from gardenlet.operation.errors import CodedError, is_retriable

ExtensionResource = Resource[ExtensionObject]
Check = Callable[[ExtensionObject], Exception | None]
"""Returns why an object is not ready, None if it is."""


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """How an object is waited for."""

    interval: timedelta
    severe: timedelta
    """How long errors that the extension reports are tolerated."""
    timeout: timedelta


def _times(interval: int, severe_seconds: int, timeout_minutes: int) -> WaitTimes:
    return WaitTimes(timedelta(seconds=interval), timedelta(seconds=severe_seconds), timedelta(minutes=timeout_minutes))


WAIT: Mapping[str, WaitTimes] = {
    "Infrastructure": _times(10, 180, 10),
    "Network": _times(5, 30, 3),
    "ControlPlane": _times(5, 30, 3),
    "OperatingSystemConfig": _times(5, 30, 3),
    "ContainerRuntime": _times(5, 30, 3),
    "Extension": _times(5, 30, 3),
    "Worker": _times(5, 30, 10),
    "BackupEntry": _times(5, 30, 10),
    "DNSRecord": _times(5, 15, 2),
}
"""Of extension objects, by kind; gardener pkg/component/extensions. An Extension's timeout may come from its ControllerRegistration."""

WAIT_CORE_BACKUP = _times(5, 600, 10)
"""Of BackupBucket and BackupEntry in the garden."""


class NotReadyYet(RetriableError):
    """The extension has not done what it was asked for, and reports no error either."""


class WaitFailed(RetriableError):
    """An object did not become what it was waited for to become; the last thing that was seen is the cause."""


def key(resource: Resource[Any], namespace: str | None, name: str) -> str:
    """Return an object's name as it stands in a status."""
    return f"{resource.kind} {namespace or ''}/{name}"


async def deploy_object(
    client: Client,
    target: Target,
    spec: Mapping[str, object],
    *,
    clock: Clock,
    operation: str | None,
    ask: Callable[[ExtensionObject], bool] = lambda _item: True,
    metadata: Callable[[dict[str, Any]], None] = lambda _metadata: None,
) -> ExtensionObject:
    """Write the complete spec of an extension object and ask for an operation.

    Args:
        client: API server.
        target: the object; its kind's model is `ExtensionObject`.
        spec: replaces what is there.
        clock: for the timestamp.
        operation: what to ask for; None writes the spec and asks for nothing.
        ask: whether to ask, given the object as it is before the write; one that is new has nothing but its name.
        metadata: further changes of `metadata`.

    Returns:
        The object as written: `wait_until_ready` needs it.
    """

    def mutate(document: dict[str, Any]) -> None:
        asks = operation is not None and ask(_parsed(document))
        document["spec"] = deepcopy(dict(spec))
        metadata(document["metadata"])
        if asks:
            _annotate(document["metadata"], {OPERATION: operation or "", TIMESTAMP: format_nano(clock.now())})

    written, _ = await deploy(client, target, mutate)
    return _parsed(written.content)


async def annotate(client: Client, target: Target, operation: str, *, clock: Clock) -> ExtensionObject:
    """Ask for an operation on an object that exists; return it as written.

    Raises:
        NotFound: there is no such object.
    """
    return await _patch_annotations(client, target, {OPERATION: operation, TIMESTAMP: format_nano(clock.now())})


def is_unsettled(item: ExtensionObject) -> bool:
    """Return whether an object's last operation has not succeeded, or is not the answer to what was asked for last.

    An object without a last operation is neither: its extension has not begun, and will without being asked.
    """
    operation = item.status.last_operation
    if operation is None:
        return False
    if operation.state != OperationState.SUCCEEDED:
        return True
    if TIMESTAMP not in item.metadata.annotations:
        return False
    asked, done = moment(item.metadata.annotations[TIMESTAMP]), moment(operation.last_update_time)
    return asked is None or done is None or asked.replace(microsecond=0) > done


def check_ready(item: ExtensionObject) -> Exception | None:
    """Return why an object is not ready, None if it is; the first rule that is not met counts."""
    status, annotations = item.status, item.metadata.annotations
    if (error := status.last_error) is not None:
        return CodedError(f"error during reconciliation: {error.description}", *error.codes)
    if status.observed_generation != item.metadata.generation:
        return NotReadyYet(f"observed generation outdated ({status.observed_generation}/{item.metadata.generation})")
    if OPERATION in annotations:
        return NotReadyYet(f'gardener operation "{annotations[OPERATION]}" is not yet picked up by controller')
    if (operation := status.last_operation) is None:
        return NotReadyYet("extension did not record a last operation yet")
    if operation.state != OperationState.SUCCEEDED:
        return NotReadyYet(f"extension state is not succeeded but {operation.state}")
    if TIMESTAMP not in annotations:
        return None
    if (asked := moment(annotations[TIMESTAMP])) is None:
        return NotReadyYet(f"cannot parse {TIMESTAMP} annotation")
    done = moment(operation.last_update_time)
    if done is None or asked.replace(microsecond=0) > done:
        return NotReadyYet(
            f"extension is not reconciled yet - reconciliation requested at {format_time(asked)}, "
            f"last update time is: {operation.last_update_time}"
        )
    return None


async def wait_until_ready(
    client: Client,
    target: Target,
    *,
    times: WaitTimes,
    written: ExtensionObject | None = None,
    check: Check = check_ready,
    post_ready: Callable[[ExtensionObject], Awaitable[None]] | None = None,
) -> ExtensionObject:
    """Look at an object again and again until it is ready.

    Args:
        client: API server.
        target: the object.
        times: how often, and how long.
        written: what was deployed; an object with another timestamp is not that one.
        check: when it is ready.
        post_ready: what else has to succeed; its errors count as those of the check.

    Returns:
        The object when it was ready.

    Raises:
        WaitFailed: it did not become ready in time, the extension reports an error for too long, or it cannot be read.
    """
    expected = None if written is None else written.metadata.annotations.get(TIMESTAMP)
    threshold = times.severe // times.interval
    observed: list[Exception] = []
    ready: list[ExtensionObject] = []
    attempts = 0

    async def attempt() -> Outcome:
        nonlocal attempts
        attempts += 1
        try:
            item = await client.get(_resource(target), target.name, namespace=target.namespace)
        except NotFound as error:
            return minor(error)
        except ApiError as error:
            return severe(error)
        reason = _stale(item, expected) or check(item) or await _failure(post_ready, item)
        if reason is None:
            ready.append(item)
            return OK
        observed[:] = [reason]
        return minor_or_severe(attempts, threshold, reason) if is_retriable(reason) else minor(reason)

    try:
        await until_timeout(times.interval, times.timeout, attempt)
    except (RetriableError, ApiError) as error:
        cause = observed[-1] if observed else error
        name = key(target.resource, target.namespace, target.name)
        raise WaitFailed(f"Error while waiting for {name} to become ready: {cause}") from cause
    return ready[0]


async def delete_object(client: Client, target: Target, *, clock: Clock) -> None:
    """Confirm the deletion of an object and delete it; one that is gone, or whose kind is, is fine."""
    confirmed = {CONFIRM_DELETION: "true", TIMESTAMP: format_nano(clock.now())}
    try:
        await _patch_annotations(client, target, confirmed)
        await client.delete(target.resource, target.name, namespace=target.namespace)
    except NotFound:
        return


async def wait_until_deleted(client: Client, target: Target, *, interval: timedelta, timeout: timedelta) -> None:
    """Wait until an object, or its kind, is gone.

    Raises:
        WaitFailed: it is still there, with the extension's last error, if any, as the cause; or it cannot be read.
    """
    name = key(target.resource, target.namespace, target.name)
    observed: list[Exception] = []

    async def attempt() -> Outcome:
        try:
            item = await client.get(_resource(target), target.name, namespace=target.namespace)
        except NotFound:
            return OK
        except ApiError as error:
            return severe(error)
        if (last := item.status.last_error) is not None:
            observed[:] = [CodedError(last.description, *last.codes)]
        seen = f", last observed error: {observed[-1]}" if observed else ""
        return minor(NotReadyYet(f"{name} is still present{seen}"))

    try:
        await until_timeout(interval, timeout, attempt)
    except (RetryTimeout, ApiError) as error:
        cause = observed[-1] if observed else error
        raise WaitFailed(f"Failed to delete {name}: {cause}") from cause


async def migrate_object(client: Client, target: Target, *, clock: Clock) -> None:
    """Ask for the migration of an object; one that is gone is fine."""
    try:
        await annotate(client, target, OPERATION_MIGRATE, clock=clock)
    except NotFound:
        return


async def wait_until_migrated(client: Client, target: Target, *, interval: timedelta, timeout: timedelta) -> None:
    """Wait until an object is gone, or its last operation is a migration that succeeded.

    Raises:
        RetryTimeout: it is neither.
        ApiError: it cannot be read.
    """

    async def attempt() -> Outcome:
        try:
            item = await client.get(_resource(target), target.name, namespace=target.namespace)
        except NotFound:
            return OK
        except ApiError as error:
            return severe(error)
        last = item.status.last_operation
        if last is not None and (last.type, last.state) == (OperationType.MIGRATE, OperationState.SUCCEEDED):
            return OK
        name = key(target.resource, target.namespace, target.name)
        return minor(NotReadyYet(f"error while waiting for {name} to be successfully migrated"))

    await until_timeout(interval, timeout, attempt)


async def for_all(
    client: Client,
    resource: ExtensionResource,
    namespace: str | None,
    act: Callable[[Target], Awaitable[None]],
    *,
    where: Callable[[ExtensionObject], bool] = lambda _item: True,
) -> None:
    """Do something to all objects of a kind side by side; a kind that the API server does not know has none.

    Raises:
        Several: it failed for more than one; the error itself if for one.
    """

    def body(item: ExtensionObject) -> Body:
        return lambda: act(_target(resource, item))

    items = await list_objects(client, resource, namespace)
    await parallel(*(body(item) for item in items if where(item)))()


async def list_objects(
    client: Client, resource: ExtensionResource, namespace: str | None
) -> tuple[ExtensionObject, ...]:
    """Return all objects of a kind as they are now; none if the API server does not know the kind."""
    try:
        return (await client.list(resource, namespace=namespace)).items
    except NotFound:
        return ()


def _target(resource: ExtensionResource, item: ExtensionObject) -> Target:
    return Target(resource, item.metadata.name, item.metadata.namespace or None)


def _resource(target: Target) -> ExtensionResource:
    return target.resource


def _parsed(content: Mapping[str, Any]) -> ExtensionObject:
    return ExtensionObject.model_validate(dict(content))


def _stale(item: ExtensionObject, expected: str | None) -> Exception | None:
    found = item.metadata.annotations.get(TIMESTAMP)
    if expected is None or found == expected:
        return None
    return NotReadyYet(f"annotation {TIMESTAMP} is {found or 'missing'} instead of {expected}")


async def _failure(
    post_ready: Callable[[ExtensionObject], Awaitable[None]] | None, item: ExtensionObject
) -> Exception | None:
    if post_ready is None:
        return None
    try:
        await post_ready(item)
    except FatalError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is why the object is not ready; it comes out in the end
        return error
    return None


async def _patch_annotations(client: Client, target: Target, annotations: Mapping[str, str]) -> ExtensionObject:
    body = merge({"metadata": {"annotations": dict(annotations)}})
    return await client.patch(_resource(target), target.name, body, namespace=target.namespace)


def _annotate(metadata: dict[str, Any], annotations: Mapping[str, str]) -> None:
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
