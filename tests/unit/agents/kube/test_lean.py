"""The library is loaded without its generated models, and the real one still has what the placeholders promise."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agents.core.errors import FatalError
from agents.kube import lean

ROOT = Path(__file__).parents[4]


def fresh(code: str) -> object:
    """Run code in a new interpreter and return what it prints, as JSON."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return json.loads(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True))


def test_no_generated_module_is_loaded() -> None:
    """In a fresh process neither a model nor an API class of the library is loaded; the classes that we use work."""
    seen = fresh(
        "import json, sys\n"
        "from agents.kube import lean, transport, client, events\n"
        "api, configuration = lean.load('ApiClient'), lean.load('Configuration')\n"
        "names = [name for name in sys.modules if name.startswith('kubernetes_asyncio')]\n"
        "print(json.dumps([api.__name__, configuration(host='https://x').host, names]))\n"
    )
    assert isinstance(seen, list)
    assert seen[:2] == ["ApiClient", "https://x"]
    assert "kubernetes_asyncio.client.models" in seen[2]
    assert [
        name
        for name in seen[2]
        if name.startswith(("kubernetes_asyncio.client.models.", "kubernetes_asyncio.client.api."))
    ] == []
    assert len(seen[2]) < 10


def test_library_is_not_loaded_by_import_alone() -> None:
    """Importing our modules loads nothing of the library; only the first request does."""
    code = (
        "import json, sys\nimport agents.kube.client, agents.runtime.manager\n"
        "print(json.dumps([n for n in sys.modules if n.startswith('kubernetes_asyncio')]))"
    )
    assert fresh(code) == []


def test_placeholders_have_a_spec() -> None:
    """`find_spec` on a placeholder answers instead of raising, and the spec is a package's."""
    code = (
        "import json\nfrom importlib.util import find_spec\nfrom agents.kube import lean\nlean.load('Configuration')\n"
        "spec = find_spec('kubernetes_asyncio.client')\n"
        "print(json.dumps([spec.name, bool(spec.submodule_search_locations)]))"
    )
    assert fresh(code) == ["kubernetes_asyncio.client", True]


def test_real_package_still_has_the_names() -> None:
    """Each name that the placeholders resolve is exported by the real package from the same module."""
    spec = find_spec("kubernetes_asyncio")
    assert spec is not None
    assert spec.submodule_search_locations
    text = (Path(spec.submodule_search_locations[0]) / "client" / "__init__.py").read_text()
    for name, module in lean.EXPORTS.items():
        assert f"from {module} import {name}" in text


def test_real_package_is_left_alone() -> None:
    """If somebody has loaded the real package, nothing is replaced."""
    code = (
        "import json, sys, types\n"
        "real = types.ModuleType('kubernetes_asyncio'); sys.modules['kubernetes_asyncio'] = real\n"
        "from importlib.util import find_spec\n"
        "from agents.kube import lean\n"
        "try:\n    lean.load('ApiClient')\nexcept ModuleNotFoundError as error:\n    found = error.name\n"
        "print(json.dumps([sys.modules['kubernetes_asyncio'] is real, found]))"
    )
    assert fresh(code) == [True, "kubernetes_asyncio.client"]


def test_placeholder_resolves_only_what_is_exported() -> None:
    """A name that is left out says why; one that is exported comes from its module."""
    module = lean.placeholder("x", Path("/nowhere"), {"PurePath": "pathlib"})
    assert module.PurePath.__name__ == "PurePath"
    with pytest.raises(AttributeError, match=r"x\.Other is left out on purpose, see agents/kube/lean\.py"):
        _ = module.Other


def test_missing_library_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the error says so."""
    monkeypatch.delitem(sys.modules, "kubernetes_asyncio", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(FatalError, match="kubernetes_asyncio is not installed"):
        lean.load("ApiClient")


def test_aiohttp_is_imported_without_the_systems_authorities() -> None:
    """In a fresh process aiohttp's default context trusts nobody, and the ssl module is as before."""
    script = (
        "import agents.kube.transport, aiohttp.connector, ssl\n"
        "assert aiohttp.connector._SSL_CONTEXT_VERIFIED.get_ca_certs() == []\n"
        "assert aiohttp.connector._SSL_CONTEXT_VERIFIED.verify_mode is ssl.CERT_REQUIRED\n"
        "assert ssl.create_default_context.__module__ == 'ssl'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_nobody_calls_stays_out() -> None:
    """What colours logs, what decompresses answers, what the library needs for other calls: not loaded, still to be had."""
    code = (
        "import json, sys\nimport nodeagent.app, osc.codec\nfrom agents.kube import lean\n"
        "lean.load('ApiClient'), lean.load('Configuration')(host='https://x')\n"
        "names = ('rich', 'pygments', 'brotli', 'urllib3', 'dateutil', 'multiprocessing', 'html.entities', 'pyexpat',"
        "'cryptography.hazmat.primitives.serialization.ssh')\n"
        "loaded = [n for n in names if n in sys.modules]\n"
        "import brotli, rich, urllib3, multiprocessing.pool\n"
        "print(json.dumps([loaded, brotli.decompress(brotli.compress(b'x')).decode(), urllib3.util.make_headers.__name__]))"
    )
    assert fresh(code) == [[], "x", "make_headers"]


def test_a_stand_in_says_why_it_is_one() -> None:
    """A call that we never make says where to look."""
    code = (
        "import json\nfrom agents.kube import lean\nlean.load('ApiClient')\n"
        "from kubernetes_asyncio.client import api_client\n"
        "try:\n    api_client.parse('2026-01-01')\nexcept NotImplementedError as error:\n    print(json.dumps(str(error)))"
    )
    assert fresh(code) == "dateutil.parser.parse is left out on purpose, see agents/core/imports.py"
