"""Rows about a gardenlet with much to do: many shoots and Secrets behind a slow garden, many events, many policies."""

import asyncio
import datetime as dt
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.bench.figures import Figure
from tests.bench.gardenlet import landscape
from tests.bench.gardenlet.landscape import store
from tests.bench.gardenlet.life import answered
from tests.bench.gardenlet.seat import Seat, memory
from tests.bench.measure import let_pass
from tests.lab.api import Api, wait_for
from tests.lab.controlplane import ControlPlane
from tests.lab.errors import LabError
from tests.lab.garden.gardenlet import SEEDS
from tests.lab.progress import to_stderr
from tests.support.relay import relay

DELAY_SECONDS = 0.5
PERIOD_SECONDS = 2.0
EVENTS_PER_SECOND = 100
_MISSING = "verticalpodautoscalers.autoscaling.k8s.io"
_POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_QUIET_SECONDS = 10.0


def loaded(seat: Seat) -> Iterator[Figure]:
    """Measure start and memory in a landscape of that size, with answers of the garden half a second late and a kind missing."""
    one, sizes = seat.gardenlet, seat.sizes
    garden = one.garden
    begun = time.monotonic()
    _endpoints(garden.seed.admin)
    in_garden = store(garden.plane, landscape.shoots(one.name, sizes.shoots))
    in_garden += store(garden.plane, landscape.garden_secrets(sizes.secrets // 4))
    in_seed = sum(
        store(garden.seed, objects)
        for objects in (
            landscape.shoot_namespaces(sizes.shoots),
            landscape.seed_secrets(sizes.secrets - sizes.secrets // 4, sizes.shoots),
            landscape.clusters(sizes.shoots),
            landscape.foreign_policies(sizes.shoots),
            landscape.managed_resources(sizes.shoots),
        )
    )
    garden.seed.admin.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{_MISSING}")
    to_stderr(f"  {in_garden} objects in the garden, {in_seed} in the seed, in {time.monotonic() - begun:.0f} s")
    with late_answers(garden.plane) as server:
        one.server = server
        one.hand_token()
        seat.join()
        first_beat = seat.restart()
        one.until(200, "/readyz", timeout=120)
        ready = time.monotonic() - one.started
        note = (
            f"answers {DELAY_SECONDS:g} s late, {_MISSING.partition('.')[0]} not defined; first beat {first_beat:.1f} s"
        )
        yield Figure(f"ready with {sizes.shoots} shoots", ready, "s", "", 60, note)
        _wait_policies(garden.seed.admin, sizes.shoots)
        let_pass(sizes.idle)
        found = memory(one)
        note = f"VmRSS, {sizes.secrets} Secrets; anonymous {found['RssAnon']:.0f} MB"
        yield Figure(f"memory with {sizes.shoots} shoots", found["VmRSS"], "MB", "", 160, note)
        yield Figure("most there was", found["VmHWM"], "MB", "", 160, "VmHWM")
        yield Figure("health answers other than 200", _bad_answers(seat), "", "", 0, "in 10 s, once a second")
    whole = len(list(unselected(garden.seed)))
    yield Figure("lists and watches of all Secrets of the seed", whole, "", "", 0, "without a selector")


def _bad_answers(seat: Seat) -> int:
    bad = 0
    for _ in range(10):
        bad += seat.gardenlet.ask("/healthz")[0] != 200
        let_pass(1.0)
    return bad


def unselected(seed: ControlPlane) -> Iterator[str]:
    """Yield requests of the audit log that ask for all Secrets, or for all of a namespace."""
    for line in seed.audit_path.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if about.get("resource") != "secrets" or event["verb"] not in ("list", "watch") or "name" in about:
            continue
        if "Selector=" not in event["requestURI"]:
            yield event["requestURI"]


@contextmanager
def late_answers(plane: ControlPlane) -> Iterator[str]:
    """Have another way to an API server, on which its answers come late; yields its URL."""
    ready, found = threading.Event(), list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        over = asyncio.Event()
        async with relay("127.0.0.1", plane.port, delay=DELAY_SECONDS) as instance:
            found.append((instance.port, asyncio.get_running_loop(), over))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    if not ready.wait(10):
        raise LabError("the relay did not start")
    port, loop, over = found[0]
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


def lateness(seat: Seat) -> Iterator[Figure]:
    """Measure how much later than two seconds beats are while our informers see many events."""
    one, sizes = seat.gardenlet, seat.sizes
    seed, garden = one.garden.seed, one.garden.plane
    _endpoints(seed.admin)
    for objects in (landscape.shoot_namespaces(50), landscape.clusters(50), landscape.managed_resources(0)):
        store(seed, objects)
    store(seed, landscape.seed_secrets(landscape.REQUESTED, 0))
    seat.join()
    _wait_policies(seed.admin, 50)
    shoots, clusters = "/api/v1/namespaces/shoot--bench--{:04}", "/apis/extensions.gardener.cloud/v1alpha1/clusters/"
    streams = (
        Stream(seed, 40, lambda n: shoots.format(n % 50), "labels"),
        Stream(seed, 20, lambda n: f"{clusters}shoot--bench--{n % 50:04}", "labels"),
        Stream(seed, 20, lambda n: f"{_MANAGED}/resource-{n % 30}", "annotations"),
        Stream(seed, 10, lambda n: f"/api/v1/namespaces/garden/secrets/requested-{n % landscape.REQUESTED}", "labels"),
        Stream(garden, 10, lambda _: f"{SEEDS}/{one.name}", "annotations"),
    )
    over, since = threading.Event(), time.monotonic()
    threads = [threading.Thread(target=stream.run, args=(over,)) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        let_pass(sizes.seconds)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    rate = sum(stream.sent for stream in streams) / (time.monotonic() - since)
    late = sorted(interval - PERIOD_SECONDS for interval in seat.beats.intervals(since=since))
    if rate < EVENTS_PER_SECOND / 2 or len(late) < sizes.seconds / (2 * PERIOD_SECONDS):
        raise LabError(
            f"{rate:.0f} events per second, {len(late)} beats in {sizes.seconds:.0f} s: nothing was measured"
        )
    note = f"{len(late)} intervals of renewTime above 2 s, of which up to 0.2 s are its jitter; {rate:.0f} events/s"
    yield Figure("beat lateness, p99", late[int(0.99 * (len(late) - 1))], "s", "", 0.5, note)
    yield Figure("beat lateness, most", late[-1], "s")
    yield Figure("beats that failed", one.metrics()['gardenlet_heartbeat_total{result="error"}'], "", "", 0)


_MANAGED = "/apis/resources.gardener.cloud/v1alpha1/namespaces/garden/managedresources"


@dataclass(slots=True)
class Stream:
    """Patches one kind of objects, so many times a second, over a connection of its own.

    Attributes:
        plane: where they are.
        rate: events per second.
        path: of the object for a number.
        what: is patched: labels or annotations.
        sent: how many have been accepted.
    """

    plane: ControlPlane
    rate: float
    path: Callable[[int], str]
    what: str
    sent: int = 0

    def run(self, over: threading.Event) -> None:
        """Patch until it is over; a stream that cannot keep up sends as fast as it can."""
        api, due = Api(self.plane.server, self.plane.admin_credentials), time.monotonic()
        with api.one_connection():
            for number in itertools.count():
                due = max(due + 1 / self.rate, time.monotonic() - 1)
                if over.wait(max(0.0, due - time.monotonic())):
                    return
                try:
                    api.patch(self.path(number), {"metadata": {self.what: {"bench": str(number)}}})
                    self.sent += 1
                except (LabError, OSError, http.client.HTTPException) as error:
                    to_stderr(f"  not patched: {error}")
                    return


def policies(seat: Seat) -> Iterator[Figure]:
    """Measure how long the policies of many new namespaces take, and what is written where nothing has changed."""
    one, count = seat.gardenlet, seat.sizes.namespaces
    seed = one.garden.seed
    _endpoints(seed.admin)
    seat.join()
    one.end()
    store(seed, landscape.shoot_namespaces(count))
    one.start()
    _wait_policies(seed.admin, count)
    took = time.monotonic() - one.started
    kept = len(seed.admin.list(_POLICIES))
    yield Figure(f"policies of {count} shoot namespaces", took, "s", "", 60, f"after a restart; {kept} policies")
    one.end()
    before = dt.datetime.now(dt.UTC)
    one.start()
    wait_for(lambda: _reconciled(seat) >= count, timeout=120, what="all namespaces to be looked at")
    looked = time.monotonic() - one.started
    let_pass(_QUIET_SECONDS)
    asked = answered(one.garden.seed_requests(), before)
    written = sum(request.resource == "networkpolicies" and request.verb in _WRITES for request in asked)
    note = f"second restart; all namespaces looked at within {looked:.1f} s"
    yield Figure("policies written without a change", written, "", "", 0, note)


def _reconciled(seat: Seat) -> float:
    name = 'controller_runtime_reconcile_total{controller="networkpolicy",result="success"}'
    return seat.gardenlet.metrics().get(name, 0.0)


def _wait_policies(seed: Api, count: int) -> None:
    """Wait until every namespace of a shoot has the policy that is written last."""

    def complete() -> bool:
        found = seed.list(_POLICIES, fieldSelector="metadata.name=deny-all")
        return len([one for one in found if one["metadata"]["namespace"].startswith("shoot--")]) == count

    wait_for(complete, timeout=300, what=f"deny-all in {count} namespaces", interval=0.5)


def _endpoints(seed: Api) -> None:
    """Have endpoints of the seed's API server; a lone one publishes none of its own."""
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 443, "protocol": "TCP"}]}
    seed.ensure("/api/v1/namespaces/default/endpoints", {"metadata": {"name": "kubernetes"}, "subsets": [subset]})
