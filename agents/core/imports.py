"""Keeps packages out of the process that a library takes without our needing them, or only because they are installed."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import cast


@contextmanager
def replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let every import in the block find these modules instead of the real ones, or nothing at all where None is given.

    After the block the real ones are found again. What is loaded already is left as it is.
    """
    loaded = cast("dict[str, ModuleType | None]", sys.modules)  # None is the import system's word for "not to be found"
    ours = {name: module for name, module in modules.items() if name not in loaded}
    loaded.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del loaded[name]
