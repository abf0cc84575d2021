"""What a process tells about itself under Go's paths, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from agents.runtime.metrics import Metrics
from agents.runtime.profiling import profiling_routes
from agents.runtime.server import metrics_server
from tests.support.tasks import running


@asynccontextmanager
async def asking(*, enabled: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve metrics, with profiles or without; yields a session on that server."""
    routes = profiling_routes() if enabled else []
    server = metrics_server(bind_address="127.0.0.1", port=0, metrics=Metrics(), more=routes)
    async with server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session


async def wait_here_for_ever() -> None:
    """Be a task that can be found."""
    await asyncio.Event().wait()


async def test_stacks_of_tasks_and_threads() -> None:
    """Contract core 1.6: the index shows threads, trace shows tasks by name; `/debug/pprof` leads there."""
    async with asking(enabled=True) as session, running(wait_here_for_ever):
        async with session.get("/debug/pprof") as answer:
            assert answer.url.path == "/debug/pprof/"
            assert "thread MainThread:" in await answer.text()
        async with session.get("/debug/pprof/trace") as answer:
            text = await answer.text()
        assert "wait_here_for_ever" in text
        assert "await asyncio.Event().wait()" in text
        async with session.get("/debug/pprof/symbol") as answer:
            assert await answer.text() == "num_symbols: 0\n"


async def test_a_profile_is_folded_stacks() -> None:
    """Contract core 1.6: for so many seconds, the main thread's stacks among them; a second one at the same time is refused."""
    async with asking(enabled=True) as session:

        async def ask(seconds: str) -> tuple[int, str]:
            async with session.get(f"/debug/pprof/profile?seconds={seconds}") as answer:
                return answer.status, await answer.text()

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask("0.5")) for _ in range(2)]
    answers = dict(task.result() for task in asked)
    assert set(answers) == {200, 409}
    lines = answers[200].splitlines()
    main = [line for line in lines if line.startswith(("__main__.", "runpy."))]
    assert main
    assert all(int(line.rsplit(" ", 1)[1]) > 0 for line in lines)


@pytest.mark.parametrize("seconds", ["0", "-1", "301", "x", "nan"])
async def test_a_wrong_length_is_refused(seconds: str) -> None:
    """Contract core 1.6: one clear answer, and nothing is begun."""
    async with asking(enabled=True) as session, session.get(f"/debug/pprof/profile?seconds={seconds}") as answer:
        assert answer.status == 400
        assert seconds in await answer.text()


async def test_nothing_is_told_unless_enabled() -> None:
    """Contract core 1.6, 1.6: without `enableProfiling` there are no such paths."""
    async with asking(enabled=False) as session:
        for path in ("/debug/pprof", "/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/trace"):
            async with session.get(path) as answer:
                assert answer.status == 404
