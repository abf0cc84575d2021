"""Updates of a machine in place: only when the machine was drained, step by step, each within a time of its own.

Nothing here waits long: what is not ready yet is looked at again, so that an update may take its minutes while every other
part of the agent goes on (W19). What must be remembered over a restart of this process, but not over a reboot, is in `/run`:
a machine that came back with its old operating system is told from an agent that was merely started again.

Source: gardener pkg/nodeagent/controller/operatingsystemconfig/reconciler.go (contract 6.13, 6.2 steps 12, 21 and 24).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, ValidationError

from agents.core import files, process
from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError, TerminalError
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.core.versions import matches
from agents.core.yamlio import dump_json
from agents.kube.client import Client, Selector
from agents.kube.errors import NotFound
from agents.kube.models import NODES, PODS, Node, Pod, find_condition
from agents.kube.patch import merge
from nodeagent.controllers.operatingsystemconfig.kubelet_credentials import KubeletCredentials
from nodeagent.host.os_release import read_version
from osc.diff import Entry, EntryKind
from osc.inplace import KUBELET_PARTS, InPlaceChanges, authorities_rotation
from osc.journal import Journal
from osc.types import OperatingSystemConfig

log = get_logger(__name__)

CONDITION = "InPlaceUpdate"
READY_FOR_UPDATE = "ReadyForUpdate"
RESULT_LABEL = "node.machine.sapcloud.io/update-result"
REASON_ANNOTATION = "node.machine.sapcloud.io/update-failed-reason"
UPDATING_ANNOTATION = "node-agent.gardener.cloud/updating-operating-system-version"
SUCCESSFUL, FAILED = "successful", "failed"

KUBELET_PATIENCE = timedelta(minutes=5)
KUBELET_POLL = timedelta(seconds=5)
NETWORK_RETRY = timedelta(seconds=30)
NETWORK_PATIENCE = timedelta(minutes=5)
NETWORK_REST = timedelta(minutes=10)
"""After all attempts failed because of the network."""
BUDGET = timedelta(minutes=10)
"""Longest run of the operating system's update command."""
_MOST_EVENT = 900
_NETWORK_PROBLEMS = "network problems"
_MOST_REASON_BYTES = 4096
_MOST_OUTPUT_BYTES = 3840
"""Of what the update printed last; the rest is for what stands before it."""
_STATE_MODE = 0o600


class UpdateFailed(RetriableError):
    """A part of the update failed; the Node says so."""


class UpdateGivenUp(TerminalError):
    """The operating system's update failed for good: another OSC helps, or a person who takes the attempted version off the Node."""


class WaitingForReboot(TerminalError):
    """The operating system was updated; the machine has to start with it."""


class RolledBack(TerminalError):
    """The machine came back with its old operating system; a person has to decide on another attempt."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is to happen next: nothing, or to look again after a while."""

    look_again: timedelta | None = None
    waiting_for: str = ""


class _Attempt(BaseModel):
    """The update of the operating system that this boot of the machine has seen."""

    version: str = ""
    succeeded: bool = False
    failing_since: float | None = None
    failed: str = ""
    """Why, once it has failed for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an update in place needs of the machine and of other parts of the agent."""

    kubelet_healthy: Callable[[], Awaitable[None]]
    """Raises with the cause if it is not."""
    restart_kubelet: Callable[[], Awaitable[None]]
    renew_certificate: Callable[[], Awaitable[None]]
    resync_tokens: Callable[[], None]
    kubelet_credentials: KubeletCredentials
    os_release: Path
    state: Path
    failed: Callable[[str], None]
    """Told why an update has failed, beside the Node's annotation."""


class InPlaceUpdate:
    """Carries out updates in place.

    Args:
        client: API server.
        journal: what is left.
        clock: for patience.
        host: the machine.
    """

    def __init__(self, *, client: Client, journal: Journal, clock: Clock, host: Host) -> None:
        self._client = client
        self._journal = journal
        self._clock = clock
        self._host = host
        self._kubelet_since: float | None = None

    @property
    def waits_for_kubelet(self) -> bool:
        """Whether a kubelet that was changed is given its time to become healthy."""
        return self._kubelet_since is not None

    def rest(self) -> None:
        """Note that no update is under way: nobody waits for the kubelet."""
        self._kubelet_since = None

    async def operating_system_version(self) -> str:
        """Return the version of the running operating system.

        Raises:
            AgentError: it cannot be told.
        """
        return await asyncio.to_thread(read_version, self._host.os_release)

    async def settle(self, config: OperatingSystemConfig, changes: InPlaceChanges) -> InPlaceChanges:
        """Return what is left once a new operating system that runs by now is counted as done."""
        wanted = config.spec.in_place_updates
        if not changes.operating_system or wanted is None:
            return changes
        if not matches(await self.operating_system_version(), wanted.operating_system_version):
            return changes
        await self._finish("operating_system")
        return changes.without(("operating_system",))

    async def kubelet(self, node: Node, changes: InPlaceChanges) -> Progress:
        """Wait for a kubelet that got another version or configuration."""
        if not changes.kubelet:
            return Progress()
        return await self._wait_for_kubelet(node, KUBELET_PARTS)

    async def finish(self, config: OperatingSystemConfig, node: Node, changes: InPlaceChanges) -> Progress:
        """Take the steps that follow after files and units: operating system, credentials, pods, result.

        Raises:
            RolledBack, UpdateGivenUp, WaitingForReboot: only new input or a reboot helps.
            UpdateFailed: the Node was told.
        """
        if config.spec.in_place_updates is None:
            self.rest()
            return Progress()
        if changes.operating_system:
            progress = await self._update_operating_system(config, node)
            if progress.look_again is not None:
                return progress
        if changes.service_account_key:
            self._host.resync_tokens()
            await self._finish("service_account_key")
        if changes.own_certificate_authorities:
            await self._host.renew_certificate()
            await self._finish("own_certificate_authorities")
            log.info("Client certificate renewed for the rotation of certificate authorities")
        if changes.kubelet_certificate_authorities:
            progress = await self._rotate_kubelet(node, authorities_rotation(config))
            if progress.look_again is not None:
                return progress
        if not is_under_way(node):
            self.rest()
            return Progress()
        # Whatever was changed: an update that leaves a kubelet that does not work has not succeeded.
        progress = await self._wait_for_kubelet(node, ())
        if progress.look_again is None:
            await self._conclude(node)
        return progress

    async def _update_operating_system(self, config: OperatingSystemConfig, node: Node) -> Progress:
        wanted = config.spec.in_place_updates
        version = wanted.operating_system_version if wanted else ""
        attempt = await asyncio.to_thread(self._load_attempt)
        attempted = node.metadata.annotations.get(UPDATING_ANNOTATION, "")
        still_said = bool(attempted) and matches(attempted, version)
        if attempt.version != version:
            if still_said:
                await self._say_rolled_back(node, version)
            attempt = _Attempt(version=version)
        elif attempt.failed:
            if still_said:
                await self._say_given_up(node, attempt)
            attempt = _Attempt(version=version)
        if not attempt.succeeded:
            update = config.status.in_place_updates
            command = update.os_update if update is not None else None
            if command is None or not command.command:
                await self._fail(node, "operating system update: the OSC names no command for it")
                raise UpdateGivenUp("operating system config names no command for the update")
            # Before the Node says so: what the Node says and this boot does not know of counts as rolled back.
            await run_to_end(self._save_attempt, attempt)
            await self._patch(node, annotations={UPDATING_ANNOTATION: version})
            problem = await self._run([command.command, *command.args])
            if problem:
                return await self._retry(node, attempt, problem)
            await run_to_end(self._save_attempt, _Attempt(version=version, succeeded=True))
        current = await self.operating_system_version()
        if not matches(current, version):
            raise WaitingForReboot(
                "operating system was updated, waiting for the machine's restart", current=current, desired=version
            )
        await self._finish("operating_system")
        return Progress()

    async def _say_rolled_back(self, node: Node, version: str) -> None:
        """Mark the update as failed, unless that was said, and wait for new input in any case.

        Raises:
            RolledBack: always.
        """
        known = node.metadata.annotations.get(REASON_ANNOTATION)
        if known is not None:
            raise RolledBack("update of the operating system has failed", reason=known[:500])
        current = await self.operating_system_version()
        reason = f"operating system is {current} after its update to {version}: the update was rolled back or failed"
        await self._fail(node, reason)
        raise RolledBack("machine came back with its old operating system", current=current, desired=version)

    async def _say_given_up(self, node: Node, attempt: _Attempt) -> None:
        """Wait for new input; a Node that could not be told then is told now.

        Raises:
            UpdateGivenUp: always, but for a Node that cannot be told.
            UpdateFailed: the Node could not be told.
        """
        if REASON_ANNOTATION not in node.metadata.annotations:
            await self._fail(node, attempt.failed)
        raise UpdateGivenUp("update of the operating system failed", problem=attempt.failed[-500:])

    async def _run(self, argv: list[str]) -> str:
        """Run the update; returns why it failed, empty if it did not."""
        log.info("Updating the operating system", command=argv[0])
        try:
            done = await process.run(argv, deadline=BUDGET, check=False)
        except process.ProcessError as error:
            return str(error)
        if done.exit_code == 0:
            return ""
        output = b"\n".join(part.strip() for part in (done.stdout, done.stderr) if part.strip())
        return f"{done.ending}: {output[-_MOST_OUTPUT_BYTES:].decode(errors='replace')}"

    async def _retry(self, node: Node, attempt: _Attempt, problem: str) -> Progress:
        """Try again in a while if the network is to blame, for five minutes; anything else is final."""
        now = self._clock.monotonic()
        network = _NETWORK_PROBLEMS in problem.lower()
        # A moment that is still to come was noted before a reboot.
        since = now if attempt.failing_since is None else min(attempt.failing_since, now)
        if network and now - since < NETWORK_PATIENCE.total_seconds():
            kept = attempt.model_copy(update={"failing_since": since})
            await run_to_end(self._save_attempt, kept)
            log.error("Update of the operating system failed, trying again", problem=problem[-500:])
            return Progress(NETWORK_RETRY, "update of the operating system: network problems")
        reason = f"operating system update: {problem}"
        given_up = attempt.model_copy(update={"failing_since": None, "failed": "" if network else reason})
        await run_to_end(self._save_attempt, given_up)
        await self._fail(node, reason)
        if network:
            return Progress(NETWORK_REST, "update of the operating system: network problems")
        raise UpdateGivenUp("update of the operating system failed", problem=problem[-500:])

    async def _rotate_kubelet(self, node: Node, rotation: str) -> Progress:
        """Let the kubelet bootstrap itself anew; what it had is restored if it does not become healthy (W30)."""
        credentials = self._host.kubelet_credentials
        if await run_to_end(credentials.set_aside, rotation):
            self._kubelet_since = None
        if self._kubelet_since is None:
            await self._host.restart_kubelet()
        progress = await self._wait_for_kubelet(
            node, ("kubelet_certificate_authorities",), ready=credentials.renewed, give_up=self._restore_kubelet
        )
        if progress.look_again is None:
            await run_to_end(credentials.discard)
        return progress

    async def _restore_kubelet(self) -> None:
        if await run_to_end(self._host.kubelet_credentials.restore):
            log.error("Kubelet got its old credentials back")
            await self._host.restart_kubelet()

    async def _wait_for_kubelet(
        self,
        node: Node,
        parts: tuple[str, ...],
        *,
        ready: Callable[[], bool] = lambda: True,
        give_up: Callable[[], Awaitable[None]] | None = None,
    ) -> Progress:
        """Look at the kubelet once; done if it is healthy, else to be called again for five minutes."""
        now = self._clock.monotonic()
        if self._kubelet_since is None:
            self._kubelet_since = now
        try:
            await self._host.kubelet_healthy()
            problem = "" if await asyncio.to_thread(ready) else "it has no new client certificate yet"
        except AgentError as error:
            problem = str(error)
        if not problem:
            self._kubelet_since = None
            await self._finish(*parts)
            return Progress()
        if now - self._kubelet_since < KUBELET_PATIENCE.total_seconds():
            return Progress(KUBELET_POLL, f"kubelet: {problem}")
        self._kubelet_since = None
        if give_up is not None:
            await give_up()
        await self._fail(node, f"kubelet is not healthy after the update: {problem}")
        raise UpdateFailed("kubelet is not healthy after the update", problem=problem)

    async def _conclude(self, node: Node) -> None:
        """Delete the node's pods, so that all of them start anew, and say that the update succeeded."""
        await run_to_end(self._host.kubelet_credentials.tidy)
        await self._delete_pods(node)
        gone: Mapping[str, str | None] = {REASON_ANNOTATION: None, UPDATING_ANNOTATION: None}
        await self._patch(node, annotations=gone, labels={RESULT_LABEL: SUCCESSFUL})
        await run_to_end(files.remove, self._host.state)
        log.info("Update in place succeeded", node=node.metadata.name)

    async def _delete_pods(self, node: Node) -> None:
        selector = Selector(field=f"spec.nodeName={node.metadata.name}")
        pods = (await self._client.list(PODS, selector=selector)).items
        async with asyncio.TaskGroup() as group:
            deletions = [group.create_task(self._delete_pod(pod)) for pod in pods]
        for deletion in deletions:
            if (error := deletion.result()) is not None:
                raise error
        log.info("Pods of the node deleted", pods=len(pods))

    async def _delete_pod(self, pod: Pod) -> AgentError | None:
        metadata = pod.metadata
        try:
            await self._client.delete(PODS, metadata.name, namespace=metadata.namespace, uid=metadata.uid or None)
        except NotFound:
            return None
        except AgentError as error:
            return error
        return None

    async def _fail(self, node: Node, reason: str) -> None:
        """Say on the Node that the update failed, in at most 4 KiB.

        Raises:
            UpdateFailed: the Node could not be told; the error has both reasons (W36).
        """
        short = reason.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
        self._host.failed(_beginning_and_end(short))
        try:
            await self._patch(node, annotations={REASON_ANNOTATION: short}, labels={RESULT_LABEL: FAILED})
        except AgentError as error:
            raise UpdateFailed(
                "update failed, and the node could not be told", problem=reason[:500], cause=str(error)
            ) from error

    async def _patch(
        self, node: Node, *, annotations: Mapping[str, str | None], labels: Mapping[str, str] | None = None
    ) -> None:
        metadata = {"annotations": dict(annotations), **({"labels": dict(labels)} if labels else {})}
        await self._client.patch(NODES, node.metadata.name, merge({"metadata": metadata}))

    async def _finish(self, *parts: str) -> None:
        if not parts:
            return
        await run_to_end(self._journal.finish, *(Entry(EntryKind.IN_PLACE, part) for part in parts))

    def _load_attempt(self) -> _Attempt:
        try:
            content = files.read_optional(self._host.state)
            return _Attempt.model_validate_json(content) if content else _Attempt()
        except (AgentError, ValidationError) as error:
            log.error("State of the operating system's update unreadable", path=str(self._host.state), error=error)
            return _Attempt()

    def _save_attempt(self, attempt: _Attempt) -> None:
        files.write_atomic(self._host.state, dump_json(attempt.model_dump()), mode=_STATE_MODE, sync=False)


def _beginning_and_end(text: str) -> str:
    """Return what fits into an event: how it ended, and what was printed last."""
    return text if len(text) <= _MOST_EVENT else f"{text[:100]} ... {text[-(_MOST_EVENT - 105) :]}"


def is_ready_for_update(node: Node | None) -> bool:
    """Tell whether machine-controller-manager has drained the node; the condition's status does not count."""
    condition = None if node is None else find_condition(node.status.conditions, CONDITION)
    return condition is not None and condition.reason == READY_FOR_UPDATE


def may_begin(node: Node) -> bool:
    """Tell whether an update may go on: the node was drained, or an attempt failed and is repeated without that."""
    return is_ready_for_update(node) or node.metadata.labels.get(RESULT_LABEL) == FAILED


def is_under_way(node: Node) -> bool:
    """Tell whether an update was let begin, or has failed, and is not said to have succeeded."""
    result = node.metadata.labels.get(RESULT_LABEL)
    return (is_ready_for_update(node) and result != SUCCESSFUL) or result == FAILED


def became_ready(old: Node | None, new: Node | None, /) -> bool:
    """Accept a Node that appears ready for an update, or becomes so."""
    return is_ready_for_update(new) and not is_ready_for_update(old)
