"""Runs in a machine: calls the image extractor as its standard input says, and prints what it answered as JSON."""

import asyncio
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

from agents.core import logging
from agents.core.errors import AgentError
from nodeagent.host.ctr import Ctr, CtrSettings
from nodeagent.host.image_extractor import CtrImageExtractor, Extraction
from nodeagent.paths import Paths


async def _main(job: dict[str, Any]) -> dict[str, Any]:
    extractor = CtrImageExtractor(
        paths=Paths(),
        ctr=Ctr(CtrSettings.from_environment(os.environ)),
        pull_deadline=timedelta(seconds=job["pullSeconds"]),
    )
    if job["clean"]:
        await extractor.clean()
    answers: dict[str, Any] = {}
    started = time.monotonic()

    async def extract(image: str, wanted: list[dict[str, Any]]) -> None:
        found = await extractor.extract(image, [Extraction(**one) for one in wanted])
        for target, answer in found.items():
            answers[target] = str(answer) if isinstance(answer, AgentError) else answer

    async with asyncio.timeout(job["cancelAfter"]), asyncio.TaskGroup() as group:
        for image, wanted in job["images"]:
            group.create_task(extract(image, wanted))
    return {"answers": answers, "seconds": time.monotonic() - started}


def main() -> None:
    """Read the job, do it, print the answer; a cancellation on purpose answers `null`."""
    logging.configure("debug", "text")
    try:
        answer: dict[str, Any] | None = asyncio.run(_main(json.load(sys.stdin)))
    except TimeoutError:
        answer = None
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
