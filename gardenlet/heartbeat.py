"""The seed's heartbeat: a Lease in the garden, renewed as long as the seed's API server is well, and what it means for `/healthz`.

One slot after another, each `leaseResyncSeconds` long: the seed is probed, the Lease is renewed. A step that fails is tried once more,
on fresh connections, within the same slot; only then is the process unhealthy, and it is healthy again with the first good beat. A step
that hangs takes half a slot, and a whole one as long as there was no good beat: to connect to a distant garden and to renew can take
longer than half a slot, where to renew alone does not. Nothing else feeds the gate, and nothing else uses these connections.

The Lease is written with one PATCH: no reading, and no creating that is answered by a conflict. Its time is the garden's if our clock
differs, as the garden decides by it whether we live. The condition `GardenletReady` follows in a task of its own: what happens to it
changes neither the rhythm nor the health. Whether somebody else beats for the same Seed is seen by `lease_conflict`.

Source: gardener pkg/gardenlet/controller/lease, pkg/healthz/periodic.go (contract core 6).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, NoReturn

from prometheus_client import Counter, Gauge, Histogram

from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import AlreadyExists, Forbidden, NotFound
from agents.kube.models import LEASES, format_micro_time
from agents.kube.patch import merge
from agents.kube.write import Target
from agents.runtime.cache import Informer
from agents.runtime.health import PeriodicHealth
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request
from agents.runtime.tasks import run_forever
from gardenlet.apis.core import Condition, ConditionStatus
from gardenlet.apis.seed import SEEDS, Seed
from gardenlet.care import conditions
from gardenlet.lease_conflict import LeaseConflict

log = get_logger(__name__)

NAMESPACE = "gardener-system-seed-lease"
CONDITION = "GardenletReady"
REASON = "GardenletReady"
MESSAGE = "Gardenlet is posting ready status."
JITTER = 0.1
ATTEMPTS = 2
"""In one slot."""
CONDITION_DEADLINE_SECONDS = 10.0


class HeartbeatMetrics:
    """What the heartbeat shows."""

    def __init__(self, metrics: Metrics) -> None:
        self.total = Counter("gardenlet_heartbeat", "Heartbeats by result.", ("result",), registry=metrics.registry)
        self.duration = Histogram(
            "gardenlet_heartbeat_duration_seconds",
            "Duration of heartbeats, a repetition included.",
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0),
            registry=metrics.registry,
        )
        self.last_success = Gauge(
            "gardenlet_heartbeat_last_success_timestamp_seconds",
            "When the Lease was renewed last.",
            registry=metrics.registry,
        )
        for result in ("success", "error"):
            self.total.labels(result)


class _StepFailed(Exception):
    """A step of a beat went wrong; `side` is garden or seed."""

    def __init__(self, side: str, problem: str) -> None:
        super().__init__(f"{side}: {problem}")
        self.side = side


class Heartbeat:
    """Beats for one Seed.

    Args:
        name: of the Seed.
        seeds: informer that has it.
        garden: client for the Lease, used by nobody else.
        seed: client of the seed's API server, used by nobody else.
        writer: client for the condition.
        gate: what `/healthz` asks.
        clock: the garden's time.
        rng: spreads the beats of a fleet.
        period: of a slot, in seconds.
        conflict: told the time of each renewal.
        metrics: what is shown.
    """

    def __init__(
        self,
        *,
        name: str,
        seeds: Informer[Seed],
        garden: Client,
        seed: Client,
        writer: Client,
        gate: PeriodicHealth,
        clock: Clock,
        rng: Random,
        period: float,
        conflict: LeaseConflict,
        metrics: HeartbeatMetrics,
    ) -> None:
        self._name = name
        self._seeds = seeds
        self._clients = {"garden": garden, "seed": seed}
        self._writer = writer
        self._gate = gate
        self._clock = clock
        self._rng = rng
        self._period = period
        self._conflict = conflict
        self._metrics = metrics
        self._beaten = asyncio.Event()
        self._failing_since: float | None = None
        self._connected = False
        self._missing = False

    async def run(self) -> None:
        """Beat until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(run_forever("heartbeat", self._beat_forever))
            group.create_task(run_forever("condition GardenletReady", self._keep_condition))

    async def _beat_forever(self) -> NoReturn:
        await self._seeds.wait_synced()
        while True:
            started = self._clock.monotonic()
            seed = self._seed()
            if seed is not None:
                await self._slot(seed)
            length = self._period * (1 + JITTER * self._rng.random())
            await asyncio.sleep(max(0.0, length - (self._clock.monotonic() - started)))

    def _seed(self) -> Seed | None:
        return self._seeds.get(Request("", self._name))

    async def _slot(self, seed: Seed) -> None:
        """Do what a beat consists of, what fails once more."""
        left: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("seed", self._probe),
            ("garden", lambda: self._renew(seed)),
        ]
        started = self._clock.monotonic()
        problem = ""
        seconds = self._period / ATTEMPTS if self._connected else self._period
        for _ in range(ATTEMPTS):
            try:
                await self._attempt(left, seconds)
            except _StepFailed as error:
                problem = str(error)
                await self._clients[error.side].reset_connections()
                seconds = started + self._period - self._clock.monotonic()
                if seconds <= 0:
                    break
            else:
                self._succeeded(started)
                return
        self._failed(problem, started)

    async def _attempt(self, left: list[tuple[str, Callable[[], Awaitable[None]]]], seconds: float) -> None:
        """Take one step after another off the list, within so many seconds."""
        side = ""
        try:
            async with asyncio.timeout(seconds):
                while left:
                    side, step = left[0]
                    await step()
                    left.pop(0)
        except TimeoutError as error:
            raise _StepFailed(side, "no answer in time") from error
        except AgentError as error:
            raise _StepFailed(side, str(error)) from error

    async def _probe(self) -> None:
        """Ask the seed's API server whether it is well; anything but 200 is an error."""
        await self._clients["seed"].get_raw("/healthz", deadline=self._period)

    async def _renew(self, seed: Seed) -> None:
        client, body = self._clients["garden"], self._lease(seed)
        try:
            if not self._missing:
                await client.patch(LEASES, self._name, merge(body), namespace=NAMESPACE, deadline=self._period)
                return
        except NotFound:
            # Remembered, so that a repetition in this slot goes on here.
            self._missing = True
        except Forbidden:
            # Gardens of older releases let gardenlets only PUT (contract core 0, D8).
            await self._replace(client, body)
            return
        try:
            await client.create(LEASES, body, namespace=NAMESPACE, deadline=self._period)
        except AlreadyExists:
            self._missing = False
            raise
        self._missing = False

    async def _replace(self, client: Client, body: Mapping[str, Any]) -> None:
        found = await client.get(LEASES, self._name, namespace=NAMESPACE, deadline=self._period)
        metadata = {**body["metadata"], "resourceVersion": found.metadata.resource_version}
        await client.replace(
            LEASES, self._name, {**body, "metadata": metadata}, namespace=NAMESPACE, deadline=self._period
        )

    def _lease(self, seed: Seed) -> dict[str, Any]:
        owner = {
            "apiVersion": SEEDS.api_version,
            "kind": SEEDS.kind,
            "name": self._name,
            "uid": seed.metadata.uid,
        }
        now = self._clock.now()
        self._conflict.renewing(now)
        return {
            "metadata": {"name": self._name, "namespace": NAMESPACE, "ownerReferences": [owner]},
            "spec": {
                "holderIdentity": self._name,
                "leaseDurationSeconds": max(1, round(self._period)),
                "renewTime": format_micro_time(now),
            },
        }

    def _succeeded(self, started: float) -> None:
        now = self._clock.monotonic()
        if self._failing_since is not None:
            log.info("Heartbeat works again", afterSeconds=round(now - self._failing_since, 1))
            self._failing_since = None
        self._connected = True
        self._gate.beat()
        self._beaten.set()
        self._metrics.total.labels("success").inc()
        self._metrics.duration.observe(now - started)
        self._metrics.last_success.set(self._clock.now().timestamp())

    def _failed(self, problem: str, started: float) -> None:
        now = self._clock.monotonic()
        self._connected = False
        if self._failing_since is None:
            self._failing_since = now
            log.error("Heartbeat failed", problem=problem, retrySeconds=self._period)
        since = round(now - self._failing_since)
        self._gate.fail(f"{problem}; failing for {since} s, tried again every {self._period:g} s")
        self._metrics.total.labels("error").inc()
        self._metrics.duration.observe(now - started)

    async def _keep_condition(self) -> NoReturn:
        """Write the condition after a beat where it says something else."""
        while True:
            await self._beaten.wait()
            self._beaten.clear()
            seed = self._seed()
            if seed is None or _is_ready(seed):
                continue
            try:
                async with asyncio.timeout(CONDITION_DEADLINE_SECONDS):
                    await conditions.write(self._writer, Target(SEEDS, self._name), self._ready)
            except (AgentError, TimeoutError) as error:
                log.error("Condition not written", condition=CONDITION, error=error)

    def _ready(self, found: tuple[Condition, ...]) -> tuple[Condition, ...]:
        now = self._clock.now()
        old = conditions.find_or_init(found, CONDITION, now=now)
        return conditions.merge(found, conditions.updated(old, ConditionStatus.TRUE, REASON, MESSAGE, now=now))


def _is_ready(seed: Seed) -> bool:
    found = conditions.find(seed.status.conditions, CONDITION)
    return found is not None and (found.status, found.reason, found.message) == (ConditionStatus.TRUE, REASON, MESSAGE)
