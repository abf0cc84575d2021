"""Counts system calls of a whole process, whatever thread makes them, and spoils the N-th one: it never happens, or fails.

`python tracer.py '{"pid": 1, "calls": ["fsync"], "when": 3, "error": "EIO", "path": ""}'`, as its own program: strace counts for each
thread by itself, and an agent has several that do the same work, so with it most calls would never be the N-th. Prints `ready` once it
watches, and `reached` when it has acted. Ends with the process, or when it is killed, which lets the process go on.

Children are left alone. x86-64 only, as is the table of numbers below.
"""

import ctypes
import errno
import json
import os
import platform
import signal
import sys
from pathlib import Path

NUMBERS = {
    "write": 1, "sendto": 44, "sendmsg": 46, "fsync": 74, "rename": 82, "mkdir": 83, "link": 86, "unlink": 87,
    "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "mkdirat": 258, "fchownat": 260,
    "unlinkat": 263, "renameat": 264, "linkat": 265, "fchmodat": 268, "renameat2": 316,
}  # fmt: skip

_GETREGS, _SETREGS, _SYSCALL = 12, 13, 24
_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208
_SYSGOOD, _TRACE_CLONE = 1, 8
_EVENT_STOP = 128
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_WALL = 0x40000000
_ENTERED = -errno.ENOSYS
"""What the kernel puts into rax before it looks at a call."""
_NO_CALL = 2**64 - 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Registers(ctypes.Structure):
    """`struct user_regs_struct`."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in [
            "r15",
            "r14",
            "r13",
            "r12",
            "rbp",
            "rbx",
            "r11",
            "r10",
            "r9",
            "r8",
            "rax",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        ]
    ]


class Tracer:
    """Watches one process."""

    def __init__(self, pid: int, calls: list[str], when: int, error: str, path: str) -> None:
        self._pid = pid
        self._numbers = {NUMBERS[name] for name in calls}
        self._when = when
        self._errno = getattr(errno, error) if error else 0
        self._path = path
        self._count = 0
        self._inside: dict[int, bool] = {}
        self._failing: set[int] = set()

    def run(self) -> None:
        """Watch until the process has ended."""
        self._attach()
        while self._inside:
            try:
                thread, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                self._stopped(thread, status)
            else:
                self._inside.pop(thread, None)

    def _attach(self) -> None:
        """Seize all threads, and have each stop once, so that from then on its calls are seen."""
        waiting: set[int] = set()
        while new := {int(entry.name) for entry in Path(f"/proc/{self._pid}/task").iterdir()} - self._inside.keys():
            for thread in new:
                self._inside[thread] = False
                if _ptrace(_SEIZE, thread, 0, _SYSGOOD | _TRACE_CLONE) and _ptrace(_INTERRUPT, thread):
                    waiting.add(thread)
        while waiting:
            thread, status = os.waitpid(-1, _WALL)
            waiting.discard(thread)
            if os.WIFSTOPPED(status):
                self._stopped(thread, status)
            else:
                self._inside.pop(thread, None)
        print("ready", flush=True)

    def _stopped(self, thread: int, status: int) -> None:
        """Look at a thread that has stopped, and let it go on."""
        number, event = os.WSTOPSIG(status), status >> 16
        if number == _SYSCALL_STOP:
            self._call(thread)
            _ptrace(_SYSCALL, thread)
        elif event == _EVENT_STOP:
            self._inside.setdefault(thread, False)
            stopped = number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
            _ptrace(_LISTEN if stopped else _SYSCALL, thread)
        else:
            _ptrace(_SYSCALL, thread, 0, 0 if event else number)

    def _call(self, thread: int) -> None:
        """Count a call that is about to be made; at its end, have it have failed if it was to."""
        registers = _Registers()
        if not _ptrace(_GETREGS, thread, 0, ctypes.addressof(registers)):
            return
        entering = ctypes.c_longlong(registers.rax).value == _ENTERED and not self._inside.get(thread)
        self._inside[thread] = entering
        if not entering:
            if thread in self._failing:
                self._failing.discard(thread)
                registers.rax = ctypes.c_ulonglong(-self._errno).value
                _ptrace(_SETREGS, thread, 0, ctypes.addressof(registers))
            return
        if registers.orig_rax not in self._numbers or not self._is_wanted(thread, registers.rdi):
            return
        self._count += 1
        if self._count != self._when:
            return
        print("reached", flush=True)
        if not self._errno:
            os.kill(self._pid, signal.SIGKILL)
            return
        self._failing.add(thread)
        registers.orig_rax = _NO_CALL
        _ptrace(_SETREGS, thread, 0, ctypes.addressof(registers))

    def _is_wanted(self, thread: int, descriptor: int) -> bool:
        if not self._path:
            return True
        try:
            return str(Path(f"/proc/{thread}/fd/{descriptor}").readlink()) == self._path
        except OSError:
            return False


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> bool:
    """Tell whether it worked: a thread that was killed meanwhile is told by `waitpid`."""
    return int(_libc.ptrace(request, thread, address, data)) != -1


def main() -> None:
    """Watch the process that the argument names."""
    if platform.machine() != "x86_64":
        sys.exit(f"{Path(__file__).name}: knows the numbers of x86-64 only")
    Tracer(**json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
