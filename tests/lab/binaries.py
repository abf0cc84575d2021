"""etcd and Kubernetes of one pinned version: found on this host, or built from their Go modules once.

Release archives are not used: where only Go's module proxy can be reached they cannot be downloaded, and Go's checksum
database verifies what the proxy gives, so no checksum has to be maintained here. The price is a build of about five
minutes on two cores, once per version and host; the result is cached.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.golang import find_go, run_go
from tests.lab.progress import Say, silent, ticking

KUBERNETES_VERSION = "v1.34.4"
ETCD_VERSION = "v3.6.16"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kubelet", "kube-scheduler")

GO_DIRECTIVE = "1.24.0"
# Every k8s.io module that the kubernetes repository replaces with its staging folder.
_STAGING = [
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
    "sample-cli-plugin",
    "sample-controller",
]


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the programs are."""

    etcd: Path
    apiserver: Path
    controller_manager: Path
    kubelet: Path
    scheduler: Path


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what is expensive to make again."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gardener-agents"


def cache_folder(
    environment: Mapping[str, str] = os.environ, *, of: str = "kubernetes", version: str = KUBERNETES_VERSION
) -> Path:
    """Return the folder of a version for this kind of host."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return cache_root(environment) / of / f"{version}-{sys.platform}-{machine}"


Build = Callable[[Path, Path, Say], None]


def find_binaries(
    *, say: Say = silent, environment: Mapping[str, str] = os.environ, build: Build | None = None
) -> Binaries:
    """Return the programs: KUBEBUILDER_ASSETS, then PATH (same minor version), then the cache, else built into it.

    Args:
        say: gets lines about what takes long.
        environment: where to look.
        build: makes all programs that are not there yet: gets a scratch folder, the folder to put them into, and `say`;
            None builds with Go.

    Raises:
        LabError: they are nowhere and cannot be built.
    """
    found: dict[str, Path] = {}
    for name in NAMES:
        place = _given(name, environment) or _on_path(name, environment)
        if place is not None:
            found[name] = place
    missing = [name for name in NAMES if name not in found]
    if missing:
        folder = cached(cache_folder(environment), missing, say, build or _build_all)
        found |= {name: folder / name for name in missing}
    return Binaries(*(found[name] for name in NAMES))


def _given(name: str, environment: Mapping[str, str]) -> Path | None:
    folder = environment.get("KUBEBUILDER_ASSETS")
    path = Path(folder or "/nonexistent") / name
    return path if path.is_file() and same_minor(name, _version_of(path)) else None


def _on_path(name: str, environment: Mapping[str, str]) -> Path | None:
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None or not same_minor(name, _version_of(Path(found))):
        return None
    return Path(found)


def _version_of(program: Path) -> str:
    done = subprocess.run([program, "--version"], check=False, capture_output=True, text=True, timeout=60)
    return done.stdout


def same_minor(name: str, printed: str) -> bool:
    """Whether what `--version` printed is of the pinned minor version."""
    wanted = ETCD_VERSION if name == "etcd" else KUBERNETES_VERSION
    match = re.search(r"v?(\d+\.\d+)\.\d+", printed)
    return match is not None and match.group(1) == ".".join(wanted.lstrip("v").split(".")[:2])


def cached(folder: Path, names: Sequence[str], say: Say, build: Build) -> Path:
    """Return the cache folder with at least these programs in it; one process builds, the others wait for it."""
    if _complete(folder, names):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _complete(folder, names):
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            built = Path(scratch) / "bin"
            built.mkdir()
            for name in names:
                if os.access(folder / name, os.X_OK):
                    os.link(folder / name, built / name)
            build(Path(scratch), built, say)
            shutil.rmtree(folder, ignore_errors=True)
            built.rename(folder)
    return folder


def _complete(folder: Path, names: Sequence[str]) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in names)


def _build_all(scratch: Path, out: Path, say: Say) -> None:
    go = find_go(scratch / "go", say)
    missing = [name for name in NAMES if not (out / name).exists()]
    say(f"built from Go modules, once: {', '.join(missing)}; all of them take about 5 minutes on 2 cores")
    if "etcd" in missing:
        _build_etcd(go, scratch / "etcd", out, say)
    kubernetes = scratch / "kubernetes"
    kubernetes.mkdir()
    packages = {name: f"k8s.io/kubernetes/cmd/{name}" for name in NAMES if name != "etcd"}
    (kubernetes / "go.mod").write_text(kubernetes_module_file(KUBERNETES_VERSION))
    (kubernetes / "tools.go").write_text(tools_file(packages.values()))
    with ticking("fetching Kubernetes' modules", say):
        build_with(go, kubernetes, "mod", "tidy")
    major, minor, _ = KUBERNETES_VERSION.lstrip("v").split(".")
    at = "k8s.io/component-base/version"
    flags = f"-s -w -X {at}.gitVersion={KUBERNETES_VERSION} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    for name in missing:
        if name in packages:
            with ticking(f"building {name} {KUBERNETES_VERSION}", say):
                build_with(go, kubernetes, "build", "-ldflags", flags, "-o", str(out / name), packages[name])


def _build_etcd(go: Path, folder: Path, out: Path, say: Say) -> None:
    folder.mkdir()
    (folder / "go.mod").write_text(
        f"module etcd-build\ngo {GO_DIRECTIVE}\nrequire go.etcd.io/etcd/server/v3 {ETCD_VERSION}\n"
    )
    (folder / "tools.go").write_text(tools_file(["go.etcd.io/etcd/server/v3"]))
    with ticking("fetching etcd's modules", say):
        build_with(go, folder, "mod", "tidy")
    with ticking(f"building etcd {ETCD_VERSION}", say):
        build_with(go, folder, "build", "-ldflags", "-s -w", "-o", str(out / "etcd"), "go.etcd.io/etcd/server/v3")


def kubernetes_module_file(version: str) -> str:
    """Return a go.mod that requires Kubernetes and replaces its staging modules by the published ones."""
    staging = "v0." + version.removeprefix("v1.")
    replaced = "".join(f"\tk8s.io/{name} => k8s.io/{name} {staging}\n" for name in _STAGING)
    head = f"module kubernetes-build\ngo {GO_DIRECTIVE}\nrequire k8s.io/kubernetes {version}\n"
    return f"{head}replace (\n{replaced})\n"


def tools_file(packages: Iterable[str]) -> str:
    """Return a Go file that makes these packages needed, so that `go mod tidy` keeps them."""
    imports = "".join(f'\t_ "{package}"\n' for package in packages)
    return f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n"


def build_with(go: Path, folder: Path, *arguments: str) -> None:
    """Run a Go command for a program of others; its go.mod is made on the way."""
    run_go(go, folder, *arguments, environment={"GOFLAGS": "-mod=mod"})
