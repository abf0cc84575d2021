"""Keeps packages out of the process that a library takes without our needing them, or only because they are installed."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import cast

_TIME_ZONES = "/usr/share/zoneinfo:/usr/lib/zoneinfo:/usr/share/lib/zoneinfo:/etc/zoneinfo"
"""Where CPython looks if nobody said something else when it was built."""


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


def left_out(*names: str) -> dict[str, ModuleType]:
    """Make stand-ins, for `replaced`, whose names can be imported and inherited from, but not called."""
    modules = {name: _stand_in(name) for name in names}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    return modules


def _stand_in(name: str) -> ModuleType:
    module = ModuleType(name, doc="Stand-in, see agents/core/imports.py.")

    def resolve(attribute: str) -> type:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def refuse(*_args: object, **_kwargs: object) -> None:
            raise NotImplementedError(f"{name}.{attribute} is left out on purpose, see agents/core/imports.py")

        return type(attribute, (), {"__init__": refuse})

    module.__getattr__ = resolve  # type: ignore[method-assign]
    return module


def import_pydantic() -> None:
    """Import pydantic without what is installed around it; saves 1.2 MB, and looking through all of that.

    It asks every installed distribution whether it is a plugin. Its time zones ask how the interpreter was built for the folder
    they lie in.
    """
    if "pydantic" in sys.modules:
        return
    metadata, build = ModuleType("importlib.metadata"), ModuleType("sysconfig")
    metadata.__dict__["entry_points"] = lambda **_filter: ()
    build.__dict__["get_config_var"] = {"TZPATH": _TIME_ZONES}.get
    with replaced({"importlib.metadata": metadata, "sysconfig": build}):
        for name in ("pydantic.main", "pydantic.type_adapter", "pydantic.plugin._loader"):
            import_module(name)
