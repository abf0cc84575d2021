"""Speaking CRI: real gRPC over a unix socket, with a container runtime in this process."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.host.cri import CriPodSandboxes, CriRefused, CriUnavailable, PodSandbox
from tests.support.fake_cri import FakeCri


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeCri]:
    """A container runtime; it is started by the test."""
    fake = FakeCri(tmp_path)
    yield fake
    await fake.stop()


@pytest.fixture
async def pods(runtime: FakeCri) -> AsyncIterator[CriPodSandboxes]:
    """The client."""
    async with CriPodSandboxes(socket=runtime.socket) as client:
        yield client


async def test_sandboxes_are_listed_stopped_and_removed(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """Contract 8.4: ids and names are read past the fields that do not matter; ids of any length are sent."""
    long = "b" * 200
    runtime.sandboxes = {"a" * 64: True, long: True}
    await runtime.start()
    found = await pods.list()
    assert found == [
        PodSandbox("a" * 64, f"kube-system/pod-{'a' * 64}"),
        PodSandbox(long, f"kube-system/pod-{long}"),
    ]
    for sandbox in found:
        await pods.stop(sandbox)
        await pods.remove(sandbox)
    assert await pods.list() == []
    assert runtime.calls[1:5] == [("stop", "a" * 64), ("remove", "a" * 64), ("stop", long), ("remove", long)]


async def test_w41_nobody_listens_is_known_after_two_seconds(pods: CriPodSandboxes) -> None:
    """Contract 8.4, 9 W41: a socket that is missing is tried again for 2 s, not longer."""
    before = asyncio.get_running_loop().time()
    with pytest.raises(CriUnavailable, match="no container runtime") as caught:
        await pods.list()
    assert 2 <= asyncio.get_running_loop().time() - before < 2.3
    assert "No such file or directory" in str(caught.value)


async def test_a_runtime_that_is_just_starting_is_waited_for(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """Contract 8.4: within the two seconds a runtime that comes up is found."""
    async with asyncio.TaskGroup() as group:
        listing = group.create_task(pods.list())
        await asyncio.sleep(1)
        await runtime.start()
    assert listing.result() == []


async def test_w41_a_runtime_that_never_answers_ends_with_the_deadline(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """Contract 8.4, 9 W41: each call has a deadline of its own."""
    runtime.silent = {"list", "stop"}
    await runtime.start()
    before = asyncio.get_running_loop().time()
    with pytest.raises(CriUnavailable):
        await pods.list()
    assert 9.9 <= asyncio.get_running_loop().time() - before <= 11
    with pytest.raises(CriUnavailable):
        await pods.stop(PodSandbox("a"))
    assert asyncio.get_running_loop().time() - before <= 42


async def test_an_error_of_the_runtime_is_told_with_its_text(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """Contract 8.4: what the runtime says is in the error; it is another class than no answer at all."""
    runtime.refuse = {"a": 1}
    await runtime.start()
    with pytest.raises(CriRefused, match="failed to destroy network"):
        await pods.stop(PodSandbox("a"))


async def test_a_containerd_without_cri_is_no_container_runtime(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """Contract 9 W41: with the CRI plugin disabled there can be no Pods; that is no failure of a Pod."""
    runtime.unimplemented = True
    await runtime.start()
    with pytest.raises(CriUnavailable, match="UNIMPLEMENTED"):
        await pods.list()


async def test_something_unreadable_is_an_error(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """A message that is cut off is not taken for an empty list."""
    runtime.garbage = True
    await runtime.start()
    with pytest.raises(CriRefused, match="unreadable"):
        await pods.list()


async def test_a_runtime_that_goes_away_in_the_middle(runtime: FakeCri, pods: CriPodSandboxes) -> None:
    """Contract 9 W41: a connection that breaks is no answer."""
    runtime.silent = {"list"}
    await runtime.start()
    async with asyncio.TaskGroup() as group:
        listing = group.create_task(_error_of(pods))
        await asyncio.sleep(1)
        await runtime.stop()
    assert isinstance(listing.result(), CriUnavailable)


async def _error_of(pods: CriPodSandboxes) -> Exception | None:
    try:
        await pods.list()
    except (CriUnavailable, CriRefused) as error:
        return error
    return None


def test_the_agent_itself_does_not_load_grpc() -> None:
    """Memory of the agent is not spent on a library that only `reset` needs."""
    script = "import sys, nodeagent.app; sys.exit('grpclib' in sys.modules or 'h2' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[4], timeout=60)
