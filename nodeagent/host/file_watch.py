"""Tells within a second which managed files somebody touched, as far as watching them is cheap.

Directories are watched and not files, because files are replaced. A directory in which others are busy is given up: what
happens there is noticed at the next full look. The kernel's queue may overflow, and then only that look helps; nothing here
is ever needed for correctness.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

from asyncinotify import Event, Inotify, Mask, Watch

from agents.core.logging import get_logger
from agents.runtime.reconcile import Request
from agents.runtime.workqueue import WorkQueue

log = get_logger(__name__)

SETTLE = timedelta(milliseconds=500)
"""An editor writes more than once."""
MOST_DIRECTORIES = 64
NOISE = 256
"""So many events about other files within a minute, and a directory is no longer watched."""
_NOISE_SECONDS = 60.0
_NEVER = frozenset({"/", "/tmp", "/var/tmp", "/run", "/var/log", "/dev/shm"})  # noqa: S108 - directories that are not watched
_MASK = (
    Mask.CLOSE_WRITE
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.DELETE
    | Mask.CREATE
    | Mask.ATTRIB
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
    | Mask.EXCL_UNLINK
)
_GONE = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED


class FileWatch:
    """Watches the directories of managed files, and queues one key when one of them is touched.

    A source of a controller: `start` and `stop` as those of `agents.runtime.source`.

    Args:
        request: what is queued.
        touched: told the path on the machine.
        root: where the machine's file system starts.
    """

    def __init__(self, *, request: Request, touched: Callable[[str], None], root: Path) -> None:
        self._request = request
        self._touched = touched
        self._root = root
        self._queue: WorkQueue[Request] | None = None
        self._inotify: Inotify | None = None
        self._watches: dict[str, Watch] = {}
        self._places: dict[str, tuple[int, int] | None] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._noise: Counter[str] = Counter()
        self._noise_since = 0.0
        self._noisy: set[str] = set()

    def start(self, queue: WorkQueue[Request]) -> None:
        """Begin to listen; without inotify on this machine nothing is heard."""
        self._queue = queue
        try:
            self._inotify = Inotify(sync_timeout=0)
        except OSError as error:
            log.error("Files are not watched, drift is noticed at the sync period", error=str(error))
            return
        asyncio.get_running_loop().add_reader(self._inotify.fd, self._read)
        self._update()

    async def wait_ready(self) -> None:
        """Return at once: there is nothing to wait for."""

    def stop(self) -> None:
        """Stop listening."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
        self._inotify, self._queue = None, None
        self._watches.clear()
        self._places.clear()

    def watch(self, paths: Iterable[str]) -> None:
        """Watch these files from now on, and no others; a system call for each directory, a few where something changed."""
        names: dict[str, set[str]] = defaultdict(set)
        for path in paths:
            directory, _, name = path.rpartition("/")
            names[directory or "/"].add(name)
        wanted = {key: frozenset(value) for key, value in names.items() if key not in _NEVER | self._noisy}
        self._names = dict(sorted(wanted.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_DIRECTORIES])
        self._update()

    @property
    def directories(self) -> frozenset[str]:
        """Directories that are watched now."""
        return frozenset(self._watches)

    def _update(self) -> None:
        if self._inotify is None:
            return
        for directory in list(self._watches):
            if directory not in self._names or self._place(directory) != self._places[directory]:
                self._give_up(directory)
        for directory in self._names.keys() - self._watches.keys():
            try:
                self._watches[directory] = self._inotify.add_watch(self._at(directory), _MASK)
                self._places[directory] = self._place(directory)
            except OSError as error:
                log.debug("Directory not watched", path=directory, error=str(error))

    def _give_up(self, directory: str) -> None:
        watch = self._watches.pop(directory)
        del self._places[directory]
        try:
            if self._inotify is not None:
                self._inotify.rm_watch(watch)
        except OSError:
            log.debug("Watch was gone already", path=directory)

    def _read(self) -> None:
        if self._inotify is None:
            return
        for event in self._inotify:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.watch is None:
            return
        directory = f"/{event.watch.path.relative_to(self._root)}"
        if event.mask & _GONE:
            if self._watches.get(directory) is event.watch:
                # Watched again when whoever is queued now asks for it: by then it is back, if it is ours to bring.
                self._give_up(directory)
                self._suspect(directory, self._names.get(directory, ()))
        elif event.name is None:
            return
        elif (name := str(event.name)) in self._names.get(directory, ()):
            self._suspect(directory, [name])
        elif directory in self._watches:
            self._count_noise(directory)

    def _suspect(self, directory: str, names: Iterable[str]) -> None:
        for name in names:
            self._touched(f"{directory}/{name}")
        if self._queue is not None:
            self._queue.add_after(self._request, SETTLE)

    def _count_noise(self, directory: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._noise_since > _NOISE_SECONDS:
            self._noise.clear()
            self._noise_since = now
        self._noise[directory] += 1
        if self._noise[directory] >= NOISE:
            log.info("Others are busy in a directory, it is no longer watched", path=directory)
            self._noisy.add(directory)
            self._give_up(directory)

    def _place(self, directory: str) -> tuple[int, int] | None:
        """Return what tells one directory from another that comes to its place."""
        try:
            found = self._at(directory).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _at(self, directory: str) -> Path:
        return self._root / directory.lstrip("/")
