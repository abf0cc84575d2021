"""Lease, token and certificate controllers when the API server misbehaves: they go on, and not too often."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    InvalidResponse,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from agents.kube.models import LEASES, NODES, SECRETS
from agents.runtime.cache import Cache
from agents.runtime.controller import Controller, Environment
from agents.runtime.metrics import Metrics
from agents.runtime.source import ChannelSource
from nodeagent.config import TokenController, TokenSync
from nodeagent.controllers import lease, token
from nodeagent.host.node_identity import NodeIdentity
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import SLEEP, OscAgent, b64, from_image, run_controller
from tests.support.tasks import running

NAME = "gardener-node-agent-worker-1"


class Heart:
    """The lease controller of one node on an API server in memory."""

    def __init__(self, clock: FakeClock) -> None:
        self.api, self.beats = FakeApi(), list[float]()
        self.clock = clock
        self.client = Client(transport=self.api, rng=Random(1))
        self.cache = Cache(client=self.client, clock=clock, rng=Random(1))
        self.nodes = self.cache.informer(NODES, label_selector="kubernetes.io/hostname=worker-1")
        self.identity = NodeIdentity(hostname="worker-1", nodes=self.nodes)
        self.identity.start()

    async def renewed(self) -> None:
        """Note a beat."""
        self.beats.append(asyncio.get_running_loop().time() - 1000)

    async def run(self, seconds: float) -> None:
        """Run the controller for some virtual seconds."""
        controller = lease.new_controller(
            client=self.client, nodes=self.nodes, identity=self.identity, clock=self.clock, renewed=self.renewed
        )
        async with running(self.cache.run):
            await run_controller(controller, seconds)


@pytest.fixture
def heart(clock: FakeClock) -> Heart:
    """A registered node."""
    found = Heart(clock)
    found.api.put(NODES, {"metadata": {"name": "worker-1", "labels": {"kubernetes.io/hostname": "worker-1"}}})
    return found


async def test_the_lease_is_renewed_every_10_s_with_one_put(heart: Heart) -> None:
    """Contract 7.1, 4.8: created once, then PUT every 10 s, never PATCH; the Lease itself is neither listed nor watched."""
    await heart.run(65)
    assert [round(beat) for beat in heart.beats] == [0, 10, 20, 30, 40, 50, 60]
    assert [call.method for call in heart.api.calls if "leases" in call.path] == ["GET", "POST", *["PUT"] * 6]
    stored = heart.api.read(LEASES, NAME, "kube-system")
    assert stored is not None
    assert stored["spec"].keys() == {"holderIdentity", "leaseDurationSeconds", "renewTime"}
    assert stored["metadata"]["ownerReferences"][0]["kind"] == "Node"


async def test_the_lease_outlives_what_the_node_label_says(heart: Heart) -> None:
    """Contract 1.5, 7.1: no Node, no Lease; without our host name in the label nothing is renewed."""
    heart.api.put(NODES, {"metadata": {"name": "worker-1", "labels": {"kubernetes.io/hostname": "other"}}})
    await heart.run(30)
    assert heart.beats == []


async def test_no_heartbeat_for_either_of_two_nodes_until_one_is_gone(heart: Heart) -> None:
    """Contract 1.4, 7.1: of two Nodes with our host name none gets a Lease of ours; when one is gone the other does."""
    heart.api.put(NODES, {"metadata": {"name": "stale", "labels": {"kubernetes.io/hostname": "worker-1"}}})

    async def later() -> None:
        await asyncio.sleep(30)
        assert (heart.beats, heart.api.stored(LEASES)) == ([], [])
        heart.api.remove(NODES, "stale")
        await asyncio.Event().wait()

    async with running(later):
        await heart.run(45)
    assert [round(beat) for beat in heart.beats] == [30, 40]


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("no", status=403),
        Unauthorized("no", status=401),
        ServerError("down", status=500),
        InvalidResponse("not json"),
        Unavailable("connection reset"),
        TooManyRequests("slow", status=429, after=timedelta(seconds=2)),
    ],
    ids=["403", "401", "500", "invalid", "reset", "429"],
)
async def test_heartbeats_resume_within_a_beat_of_the_end_of_a_fault(heart: Heart, error: ApiError) -> None:
    """Contract 7.1, 4.8: whatever the API server answers, the next renewal comes at most 10 s after it works again."""

    async def fault() -> None:
        await asyncio.sleep(15)
        heart.api.fail(error, path="/apis/coordination.k8s.io")
        await asyncio.sleep(120)
        before = len(heart.api.calls)
        await asyncio.sleep(60)
        assert len(heart.api.calls) - before <= 70, "a hot loop"
        heart.api.heal()
        await asyncio.Event().wait()

    async with running(fault):
        await heart.run(230)
    assert min(beat for beat in heart.beats if beat > 195) <= 206


@pytest.mark.parametrize("after", range(11))
async def test_a_server_that_was_away_gets_a_heartbeat_long_before_ten_seconds(heart: Heart, after: int) -> None:
    """Contract 7.1: whenever it returns; each attempt of before lasted until its connect deadline of 3 s."""

    async def fault() -> None:
        await asyncio.sleep(15)
        heart.api.latency = 3.0
        heart.api.fail(Unavailable("no route to host"))
        await asyncio.sleep(120 + after)
        heart.api.heal()
        heart.api.latency = 0.0
        await asyncio.Event().wait()

    async with running(fault):
        await heart.run(160)
    assert min(beat for beat in heart.beats if beat > 20) <= 135 + after + 7.5


@pytest.mark.parametrize("after", range(0, 40, 3))
async def test_an_agent_that_began_during_an_outage_has_a_heartbeat_within_ten_seconds(
    heart: Heart, after: int
) -> None:
    """Contract 7.1: it has never seen its Node, and each attempt to list it lasts until its connect deadline of 3 s."""
    heart.api.latency = 3.0
    heart.api.fail(Unavailable("no route to host"))

    async def fault() -> None:
        await asyncio.sleep(60 + after)
        heart.api.heal()
        heart.api.latency = 0.0
        await asyncio.Event().wait()

    async with running(fault):
        await heart.run(120)
    assert min(heart.beats) <= 60 + after + 6


async def test_attempts_without_an_answer_are_few(heart: Heart) -> None:
    """Contract 7.1: quick at first, then one every 4 s, each with a repetition on a fresh connection."""

    async def fault() -> None:
        await asyncio.sleep(15)
        heart.api.fail(Unavailable("connection refused"), path="/apis/coordination.k8s.io")
        await asyncio.Event().wait()

    async with running(fault):
        await heart.run(15 + 65)
        early = len(heart.api.requests("PUT"))
    assert 2 * 60 / 4 <= early <= 2 * 60 / 4 + 30


async def test_answers_that_take_nine_seconds_are_waited_for(heart: Heart) -> None:
    """Contract 7.1: a slow API server: every request takes 9 s; the longest gap between renewals stays below 25 s."""
    heart.api.latency = 9.0
    await heart.run(300)
    gaps = [later - earlier for earlier, later in pairwise(heart.beats)]
    assert len(gaps) > 10
    assert max(gaps) < 25


async def test_a_step_of_ten_minutes_does_not_delay_the_heartbeat(tmp_path: Path, host: FakeSystemd) -> None:
    """Contract 7.1: both controllers in one process, a file's image takes 600 s: no gap of 25 s; then the OSC is applied."""
    node = OscAgent(tmp_path, host)
    node.register_node()
    node.images.images["kubelet"] = {"/kubelet": b"program"}
    node.images.blocked = asyncio.Event()
    unit = {"name": "kubelet.service", "content": SLEEP, "filePaths": ["/opt/bin/kubelet"]}
    beats: list[float] = []

    async def renewed() -> None:
        beats.append(node.clock.monotonic())

    heartbeat = lease.new_controller(
        client=node.client, nodes=node.nodes, identity=node.identity, clock=node.clock, renewed=renewed
    )
    environment = Environment(clock=node.clock, rng=Random(1), metrics=Metrics())
    async with node.controlling(), running(lambda: heartbeat.run(environment)):
        await asyncio.sleep(30)
        checksum = node.publish(files=[from_image("/opt/bin/kubelet", "kubelet", "/kubelet")], units=[unit])
        await asyncio.sleep(600)
        assert node.applied() != checksum
        assert node.images.pulls
        node.images.blocked.set()
        await asyncio.sleep(30)
        assert (node.applied(), node.read("/opt/bin/kubelet")) == (checksum, "program")
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    assert len(gaps) > 60
    assert max(gaps) < 25


async def test_a_400_does_not_end_the_heartbeat(heart: Heart) -> None:
    """Contract 7.1: one 400, from a load balancer for example, is not the end of all renewals."""

    async def fault() -> None:
        await asyncio.sleep(15)
        heart.api.fail(BadRequest("malformed", status=400), times=1, path="/apis/coordination.k8s.io")
        await asyncio.Event().wait()

    async with running(fault):
        await heart.run(120)
    assert max(heart.beats) > 60


async def test_retry_after_does_not_let_the_lease_expire(heart: Heart) -> None:
    """Contract 7.1: a proxy that answers once with Retry-After of minutes costs one beat, not a Lease of 40 s."""

    async def fault() -> None:
        await asyncio.sleep(15)
        error = ServerError("down", status=503, after=timedelta(minutes=5))
        heart.api.fail(error, times=1, path="/apis/coordination.k8s.io")
        await asyncio.Event().wait()

    async with running(fault):
        await heart.run(120)
    assert max(heart.beats) > 100


def new_token(api: FakeApi, *paths: Path, period: timedelta = timedelta(hours=12)) -> Controller:
    """Return a token controller for one Secret."""
    syncs = tuple(TokenSync(secret_name="source", path=str(path)) for path in paths)
    config = TokenController(sync_configs=syncs, sync_period=period)
    return token.new_controller(client=Client(transport=api, rng=Random(1)), config=config, resync=ChannelSource())


async def test_a_token_that_is_missing_is_asked_for_once_a_minute(tmp_path: Path) -> None:
    """Contract 7.3: the back-off of a token is at most a minute, so it is there at most a minute after its Secret."""
    api = FakeApi()

    async def later() -> None:
        await asyncio.sleep(3600)
        before = len(api.calls)
        await asyncio.sleep(600)
        assert 9 <= len(api.calls) - before <= 11
        api.put(SECRETS, {"metadata": {"name": "source", "namespace": "kube-system"}, "data": {"token": b64("t")}})
        await asyncio.Event().wait()

    async with running(later):
        await run_controller(new_token(api, tmp_path / "token"), 4265)
    assert (tmp_path / "token").read_text() == "t"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o640


async def test_retry_after_is_held_against_a_minute_for_tokens(tmp_path: Path) -> None:
    """Contract 7.3: the longest wait for a token is a minute, also where a server asks for more."""
    api = FakeApi()
    api.put(SECRETS, {"metadata": {"name": "source", "namespace": "kube-system"}, "data": {"token": b64("t")}})
    api.fail(TooManyRequests("slow", status=429, after=timedelta(minutes=5)), times=1)
    await run_controller(new_token(api, tmp_path / "token"), 65)
    assert (tmp_path / "token").exists()


async def test_a_400_does_not_end_the_sync_of_a_token(tmp_path: Path) -> None:
    """Contract 7.3: after one 400 the token is still synced."""
    api = FakeApi()
    api.put(SECRETS, {"metadata": {"name": "source", "namespace": "kube-system"}, "data": {"token": b64("t")}})
    api.fail(BadRequest("malformed", status=400), times=1)
    await run_controller(new_token(api, tmp_path / "token"), 3600 * 24)
    assert (tmp_path / "token").exists()


async def test_tokens_are_synced_at_start_and_each_period(tmp_path: Path) -> None:
    """Contract 7.3: read at start and every sync period, to each path of the Secret, without a watch."""
    api = FakeApi()
    api.put(SECRETS, {"metadata": {"name": "source", "namespace": "kube-system"}, "data": {"token": b64("t")}})
    paths = (tmp_path / "a", tmp_path / "b")
    await run_controller(new_token(api, *paths, period=timedelta(minutes=10)), 25 * 60)
    assert [path.read_text() for path in paths] == ["t", "t"]
    assert [call.method for call in api.calls] == ["GET", "GET", "GET"]
    assert not api.requests("GET", watch=True)
