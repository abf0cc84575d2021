"""Finding programs and bringing what is missing."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.binaries import (
    KUBERNETES_VERSION,
    NAMES,
    cache_folder,
    find_binaries,
    kubernetes_module_file,
    same_minor,
)
from tests.lab.capability import why_not
from tests.lab.errors import LabError
from tests.lab.golang import brings_newer_toolchains
from tests.lab.helm import HELM_VERSION, find_helm
from tests.lab.packages import Tool, ensure_tools, is_static, missing_tools, services_stay_off

_PRINTED = {
    "etcd": "etcd Version: 3.6.16",
    "kube-apiserver": "Kubernetes v1.34.4",
    "kube-controller-manager": "Kubernetes v1.34.4",
    "kubelet": "Kubernetes v1.34.4",
    "kube-scheduler": "Kubernetes v1.34.4",
}


def _programs(folder: Path, **printed: str) -> Path:
    folder.mkdir(parents=True)
    for name in NAMES:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{printed.get(name.replace('-', '_'), _PRINTED[name])}'\n")
        program.chmod(0o755)
    return folder


def test_programs_are_taken_from_assets_then_path_then_cache(tmp_path: Path) -> None:
    """KUBEBUILDER_ASSETS comes first, then PATH, then the cache; each only where the version fits."""
    assets, on_path = (
        _programs(tmp_path / "assets", kubelet="Kubernetes v1.33.0"),
        _programs(tmp_path / "path", etcd="etcd Version: 3.5.0"),
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{on_path}:/usr/bin:/bin"}
    cache = _programs(cache_folder(environment))
    found = find_binaries(environment={**environment, "KUBEBUILDER_ASSETS": str(assets)})
    assert found.apiserver == assets / "kube-apiserver"
    assert found.kubelet == on_path / "kubelet"
    found = find_binaries(environment=environment)
    assert found.etcd == cache / "etcd"
    assert found.controller_manager == on_path / "kube-controller-manager"


def test_concurrent_runs_build_once(tmp_path: Path) -> None:
    """Two runs at once: one builds, the other waits for it; the cache appears whole or not at all."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/nonexistent"}
    builds: list[Path] = []

    def build(_scratch: Path, out: Path, _say: object) -> None:
        assert not cache_folder(environment).exists()
        builds.append(out)
        out.rmdir()
        _programs(out)

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: find_binaries(environment=environment, build=build), range(4)))
    assert len(builds) == 1
    assert {binaries.kubelet for binaries in found} == {cache_folder(environment) / "kubelet"}


def test_what_is_in_the_cache_is_not_built_again(tmp_path: Path) -> None:
    """A program that became needed later is built alone: the others are there when the build begins, and stay what they were."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/nonexistent"}
    cache = _programs(cache_folder(environment))
    (cache / "kube-scheduler").unlink()
    before = (cache / "etcd").stat().st_ino

    def build(_scratch: Path, out: Path, _say: object) -> None:
        assert {path.name for path in out.iterdir()} == {*NAMES} - {"kube-scheduler"}
        (out / "kube-scheduler").touch(mode=0o755)

    assert find_binaries(environment=environment, build=build).scheduler == cache / "kube-scheduler"
    assert (cache / "etcd").stat().st_ino == before


def test_failed_build_leaves_no_cache(tmp_path: Path) -> None:
    """A build that ends early is as if it had never been; the next run builds again."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/nonexistent"}

    def build(_scratch: Path, out: Path, _say: object) -> None:
        (out / "etcd").touch()
        raise LabError("no network")

    with pytest.raises(LabError, match="no network"):
        find_binaries(environment=environment, build=build)
    assert [path.name for path in cache_folder(environment).parent.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("name", "printed", "same"),
    [
        ("kubelet", "Kubernetes v1.34.4", True),
        ("kubelet", "Kubernetes v1.34.9-eks", True),
        ("kubelet", "Kubernetes v1.35.0", False),
        ("kubelet", "", False),
        ("etcd", "etcd Version: 3.6.1\nGo Version: go1.24.0", True),
        ("etcd", "etcd Version: 3.5.9", False),
    ],
)
def test_minor_version_decides(name: str, printed: str, same: bool) -> None:
    """A program of another minor version is not used."""
    assert same_minor(name, printed) is same


@pytest.mark.parametrize(
    ("printed", "usable"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.21 linux/amd64", True),
        ("go version go1.19.8 linux/amd64", False),
        ("", False),
    ],
)
def test_old_go_is_not_used(printed: str, usable: bool) -> None:
    """Debian 12's own Go cannot read today's module files."""
    assert brings_newer_toolchains(printed) is usable


def test_module_file_replaces_all_staging_modules() -> None:
    """Kubernetes' own modules have no version of their own in its go.mod: each is replaced by the published one."""
    text = kubernetes_module_file(KUBERNETES_VERSION)
    assert "require k8s.io/kubernetes v1.34.4" in text
    assert "k8s.io/client-go => k8s.io/client-go v0.34.4" in text
    assert text.count("=>") == 31


def test_helm_of_another_version_is_not_used(tmp_path: Path) -> None:
    """Helm on PATH is used if it is of the pinned version, else one is built into the cache, once."""
    on_path = tmp_path / "path"
    on_path.mkdir()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{on_path}:/usr/bin:/bin"}
    builds: list[Path] = []

    def build(_scratch: Path, out: Path, _say: object) -> None:
        builds.append(out)
        _print(out / "helm", HELM_VERSION)

    def _print(program: Path, version: str) -> None:
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)

    _print(on_path / "helm", f"{HELM_VERSION}-rc.1")
    cached = find_helm(environment=environment, build=build)
    assert cached == cache_folder(environment, of="helm", version=HELM_VERSION) / "helm"
    assert find_helm(environment=environment, build=build) == cached
    assert len(builds) == 1
    _print(on_path / "helm", f"{HELM_VERSION}+g1234567")
    assert find_helm(environment=environment, build=build) == on_path / "helm"


def test_what_is_missing_is_found_by_looking() -> None:
    """A tool is missing exactly if its finder finds nothing."""
    there, missing = Tool("a", "pa", lambda: Path("/bin/sh")), Tool("b", "pb", lambda: None)
    assert missing_tools([there, missing]) == [missing]


def test_nothing_is_installed_without_consent() -> None:
    """Before anything else it is said what would be installed; without consent the answer is how to do it by hand."""
    said: list[str] = []
    with pytest.raises(LabError, match="apt-get install --no-install-recommends pb"):
        ensure_tools(say=said.append, environment={}, tools=[Tool("b", "pb", lambda: None)], ask=lambda _: False)
    assert said == ["missing: b", "to be installed, without starting any service: pb"]


def test_nothing_is_said_when_all_is_there() -> None:
    """A second run asks nothing and needs no network."""
    said: list[str] = []
    ensure_tools(say=said.append, environment={}, tools=[Tool("a", "pa", lambda: Path("/bin/sh"))], ask=lambda _: False)
    assert said == []


def test_service_policy_is_put_back(tmp_path: Path) -> None:
    """While packages are installed no service starts; afterwards the host's own policy, or none, is there again."""
    policy, aside = tmp_path / "policy-rc.d", tmp_path / "aside"
    with services_stay_off(policy, aside):
        assert "exit 101" in policy.read_text()
        assert stat.S_IMODE(policy.stat().st_mode) == 0o755
    assert not policy.exists()
    policy.write_text("the host's own")
    with pytest.raises(KeyboardInterrupt), services_stay_off(policy, aside):
        raise KeyboardInterrupt
    assert policy.read_text() == "the host's own"
    assert not aside.exists()


def test_policy_of_a_killed_run_is_not_taken_for_the_hosts(tmp_path: Path) -> None:
    """What a killed installation left is recognised: the host's own policy comes back with the next one."""
    policy, aside = tmp_path / "policy-rc.d", tmp_path / "aside"
    aside.write_text("the host's own")
    with services_stay_off(policy, tmp_path / "elsewhere"):
        left = policy.read_text()
    policy.write_text(left)
    with services_stay_off(policy, aside):
        pass
    assert policy.read_text() == "the host's own"


def test_static_program_is_told_from_a_dynamic_one(tmp_path: Path) -> None:
    """A script and a program that needs a loader are not static."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert not is_static(script)
    assert not is_static(Path("/bin/sh").resolve())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"platform": "darwin"}, "Linux"),
        ({"user": 1000}, "root"),
        ({"namespaces": False}, "namespaces"),
        ({"mounting": False}, "mount"),
        ({"overlay": False}, "overlayfs"),
    ],
)
def test_reason_why_there_is_no_lab(change: dict[str, object], word: str) -> None:
    """The first thing in the way is named; a host that has everything gets no reason."""
    good: dict[str, object] = {"platform": "linux", "user": 0, "namespaces": True, "mounting": True, "overlay": True}
    assert why_not(**good) is None  # type: ignore[arg-type]
    assert word in (why_not(**{**good, **change}) or "")  # type: ignore[arg-type]
