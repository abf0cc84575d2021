"""Loads the two classes of kubernetes_asyncio that we use, without its generated models.

Importing any part of the library imports 1,300 modules, 37 MiB, none of which we use: objects are read as projections
(`agents.kube.models`) and written as patches. So placeholder packages take the places of `kubernetes_asyncio`, `.client` and
`.client.models` first. Each has the real directory as its path, and resolves only the names that are asked for here. If the
real package is loaded already, it is used and nothing is replaced. What the two classes import for calls that we never make
(urllib3, dateutil, a pool of threads; 2.3 MB) has a stand-in while they are imported.

Goes away when the library imports lazily: tomplus/kubernetes_asyncio#293.
"""

import ssl
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from agents.core.errors import FatalError
from agents.core.imports import left_out, replaced

PACKAGE = "kubernetes_asyncio"

EXPORTS = {
    "ApiClient": "kubernetes_asyncio.client.api_client",
    "Configuration": "kubernetes_asyncio.client.configuration",
}

UNUSED = ("urllib3", "dateutil", "dateutil.parser", "multiprocessing", "multiprocessing.pool")


def load(name: str) -> Any:
    """Return a class of the library, `ApiClient` or `Configuration`.

    Raises:
        FatalError: the library is not installed.
    """
    if PACKAGE not in sys.modules:
        _install()
    with replaced(left_out(*UNUSED)):
        return getattr(import_module(EXPORTS[name]), name)


def import_aiohttp() -> None:
    """Import aiohttp without the system's certificate authorities, brotli, and the names of HTML's characters.

    It makes a default TLS context while it is imported, and that loads about 140 certificates: 40 ms and 1 MB for a
    context that nobody here may use, because every connection brings one of its own. The empty one trusts nobody. Brotli
    is another MB, for an encoding of answers that no API server sends. The 2,200 characters are half a MB, to read HTML
    with; its server only writes some.
    """
    if "aiohttp" in sys.modules:
        return
    original = ssl.create_default_context
    ssl.create_default_context = _empty_context
    try:
        with replaced({"brotli": None, "brotlicffi": None, **left_out("html.entities")}):
            import_module("html")
            import_module("aiohttp")
    finally:
        ssl.create_default_context = original


def _empty_context(*_args: object, **_kwargs: object) -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def placeholder(name: str, path: Path, exports: Mapping[str, str]) -> ModuleType:
    """Make a package that finds its real submodules but resolves only some names."""
    module = ModuleType(name, doc="Placeholder, see agents/kube/lean.py.")
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(path)]
    module.__spec__ = spec
    module.__path__ = [str(path)]

    def resolve(attribute: str) -> object:
        if attribute not in exports:
            raise AttributeError(f"{name}.{attribute} is left out on purpose, see agents/kube/lean.py")
        return getattr(import_module(exports[attribute]), attribute)

    module.__getattr__ = resolve  # type: ignore[method-assign]
    return module


def _install() -> None:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FatalError("kubernetes_asyncio is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name, path, exports in (
        (PACKAGE, root, {}),
        (f"{PACKAGE}.client", root / "client", EXPORTS),
        (f"{PACKAGE}.client.models", root / "client" / "models", {}),
    ):
        module = placeholder(name, path, exports)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
