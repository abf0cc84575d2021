"""Give memory back after a burst: an OSC of 500 KiB takes 20 MB while it is decoded, and the agent idles for hours after it."""

import asyncio
import ctypes
import gc
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from agents.core.logging import get_logger

log = get_logger(__name__)

QUIET = timedelta(seconds=2)
"""How long nobody may ask until memory is given back."""

LONGEST = timedelta(seconds=10)
"""How long that may be put off."""

_MADV_DONTNEED = 4


class MemoryRelease:
    """Gives memory back once there was quiet for a while after work that took much of it, and once more after a longer one.

    Not at once: nothing else runs while garbage is collected, and what is let go has to come back for the next piece of work. A change
    that followed another at once took 40 ms longer. Where there is never quiet, it is given back every ten seconds: garbage that stays
    for longer leaves a heap full of holes.
    """

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Note that work is done that took much memory."""
        self._asked.set()

    async def run(self) -> NoReturn:
        """Give memory back after quiet, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await self._asked.wait()
            latest = now() + LONGEST.total_seconds()
            while await self._asked_within(QUIET) and now() < latest:
                pass
            await _try_release()
            if not await self._asked_within(LONGEST):
                await _try_release()

    async def _asked_within(self, wait: timedelta) -> bool:
        self._asked.clear()
        try:
            async with asyncio.timeout(wait.total_seconds()):
                return await self._asked.wait()
        except TimeoutError:
            return False


async def _try_release() -> None:
    """Give memory back if that can be done: whoever runs this must not end where no thread can be started."""
    try:
        await asyncio.to_thread(release_memory)
    except Exception as error:  # noqa: BLE001 - nothing depends on it
        log.debug("Memory not given back", error=error)


def release_memory() -> None:
    """Collect garbage, return free pages to the system where the C library can (glibc), and let go of code; about 20 ms."""
    gc.collect()
    libc = ctypes.CDLL(None)
    trim = getattr(libc, "malloc_trim", None)
    if trim is not None:
        trim(0)
    _let_go_of_code(libc)


def _let_go_of_code(libc: ctypes.CDLL) -> None:
    """Take pages of programs and libraries out of this process: most were needed by the start only, 10 MB of an agent.

    What is needed again comes from the page cache, a moment later. Code only: pages that are never written.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return
    for line in maps.splitlines():
        addresses, permissions, _offset, _device, inode, *_ = line.split()
        if permissions == "r-xp" and inode != "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
