"""System calls of our own file code, seen or spoilt by a test; other code in this process, systemd for one, keeps the real ones."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.core import aside, files, trees

OnCall = Callable[[str], None]
"""Told the name of a call before it is made; may raise instead."""

_OURS = (files, trees, aside)


def told(name: str, function: Callable[..., Any], on_call: OnCall) -> Callable[..., Any]:
    """Return a function that is told before each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        on_call(name)
        return function(*args, **kwargs)

    return call


@contextmanager
def system_calls(names: Sequence[str], on_call: OnCall) -> Iterator[None]:
    """Be told of each of these calls for a block."""
    changed = {name: told(name, getattr(os, name), on_call) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for module in _OURS:
            patch.setattr(module, "os", SimpleNamespace(**{**vars(os), **changed}))
        if "rename" in names:
            patch.setattr(Path, "rename", told("Path.rename", Path.rename, on_call))
        yield
