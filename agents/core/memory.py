"""Give memory back after a burst: an OSC of 500 KiB takes 20 MB while it is decoded, and the agent idles for hours after it."""

import ctypes
import gc
from pathlib import Path

_MADV_DONTNEED = 4


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
