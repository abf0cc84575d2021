"""Helm of one pinned version: the one on PATH, or built from its Go module once, as `tests.lab.binaries` does and why."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.lab.binaries import GO_DIRECTIVE, Build, build_with, cache_folder, cached, tools_file
from tests.lab.commands import run
from tests.lab.golang import find_go
from tests.lab.progress import Say, silent, ticking

HELM_VERSION = "v3.22.0"
_MODULE = "helm.sh/helm/v3"
_PACKAGE = f"{_MODULE}/cmd/helm"


def find_helm(*, say: Say = silent, environment: Mapping[str, str] = os.environ, build: Build | None = None) -> Path:
    """Return Helm: from PATH if it is of the pinned version, then from the cache, else built into it.

    What `helm template` prints differs between versions, so golden files need this very one.

    Args:
        say: gets lines about what takes long.
        environment: where to look.
        build: makes it: gets a scratch folder, the folder to put it into, and `say`; None builds with Go.

    Raises:
        LabError: it is nowhere and cannot be built.
    """
    found = shutil.which("helm", path=environment.get("PATH"))
    if found is not None and is_pinned(run(found, "version", "--template", "{{ .Version }}")):
        return Path(found)
    folder = cache_folder(environment, of="helm", version=HELM_VERSION)
    return cached(folder, ["helm"], say, build or _build) / "helm"


def is_pinned(printed: str) -> bool:
    """Whether what Helm says about its version is the pinned one."""
    return re.match(rf"{re.escape(HELM_VERSION)}(?![\w.-])", printed.strip()) is not None


def _build(scratch: Path, out: Path, say: Say) -> None:
    go = find_go(scratch / "go", say)
    folder = scratch / "helm"
    folder.mkdir()
    (folder / "go.mod").write_text(f"module helm-build\ngo {GO_DIRECTIVE}\nrequire {_MODULE} {HELM_VERSION}\n")
    (folder / "tools.go").write_text(tools_file([_PACKAGE]))
    with ticking("fetching Helm's modules", say):
        build_with(go, folder, "mod", "tidy")
    flags = f"-s -w -X {_MODULE}/internal/version.version={HELM_VERSION}"
    with ticking(f"building Helm {HELM_VERSION}; once, about 3 minutes on 2 cores", say):
        build_with(go, folder, "build", "-trimpath", "-ldflags", flags, "-o", str(out / "helm"), _PACKAGE)
