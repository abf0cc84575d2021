"""The tools a lab uses, those on PATH first; on Debian, what is missing is installed after saying so and asking.

Installing must not change what the host runs: nothing is removed, nothing recommended is pulled in, and a policy file
keeps every new service from being started.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.progress import Say, ticking

_POLICY = Path("/usr/sbin/policy-rc.d")
_PUT_ASIDE = Path("/usr/sbin/policy-rc.d.gardener-lab")
_OUR_POLICY = "#!/bin/sh\n# Temporary: the lab is installing packages.\nexit 101\n"
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
CNI_PLUGINS = ("ptp", "host-local", "loopback")


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing that must be there.

    Attributes:
        name: what a person calls it.
        package: Debian package that brings it.
        find: returns where it is, None if it is missing.
    """

    name: str
    package: str
    find: Callable[[], Path | None]


def program(name: str) -> Path | None:
    """Return where a program is, looking on PATH and in the folders for administrators' programs."""
    found = shutil.which(name) or shutil.which(name, path=_SEARCH_PATH)
    return Path(found) if found else None


def static_busybox() -> Path | None:
    """Return a busybox that runs without any library: the pause image holds nothing else."""
    for candidate in (program("busybox"), Path("/usr/bin/busybox"), Path("/bin/busybox"), program("busybox-static")):
        if candidate is not None and candidate.exists() and is_static(candidate):
            return candidate
    return None


def is_static(path: Path) -> bool:
    """Whether an ELF file names no program interpreter (program header of type 3)."""
    data = path.read_bytes()[:4096]
    if data[:4] != b"\x7fELF" or data[4] != 2:
        return False
    start = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    kinds = [int.from_bytes(data[start + i * size : start + i * size + 4], "little") for i in range(count)]
    return 3 not in kinds


def cni_folder() -> Path | None:
    """Return the folder with the CNI plugins that machines use."""
    for folder in map(Path, _CNI_FOLDERS):
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def systemd_program() -> Path | None:
    """Return systemd's own program; it need not be what this host booted with."""
    for path in (Path("/usr/lib/systemd/systemd"), Path("/lib/systemd/systemd")):
        if path.exists():
            return path
    return None


def _tool(name: str, package: str) -> Tool:
    return Tool(name, package, lambda: program(name))


TOOLS: tuple[Tool, ...] = (
    Tool("systemd", "systemd", systemd_program),
    _tool("systemctl", "systemd"),
    _tool("dbus-daemon", "dbus"),
    _tool("containerd", "containerd"),
    _tool("ctr", "containerd"),
    _tool("docker-registry", "docker-registry"),
    _tool("runc", "runc"),
    Tool("CNI plugins", "containernetworking-plugins", cni_folder),
    Tool("static busybox", "busybox-static", static_busybox),
    _tool("umoci", "umoci"),
    _tool("skopeo", "skopeo"),
    _tool("ip", "iproute2"),
    _tool("nft", "nftables"),
    _tool("strace", "strace"),
    _tool("nsenter", "util-linux"),
    _tool("unshare", "util-linux"),
    _tool("setpriv", "util-linux"),
    _tool("pivot_root", "util-linux"),
    _tool("losetup", "mount"),
    _tool("mount", "mount"),
    _tool("mkfs.ext4", "e2fsprogs"),
    _tool("sysctl", "procps"),
    _tool("ps", "procps"),
    _tool("curl", "curl"),
)


def missing_tools(tools: Iterable[Tool] = TOOLS) -> list[Tool]:
    """Return what is not on this host."""
    return [tool for tool in tools if tool.find() is None]


def ask_person(question: str) -> bool:
    """Ask whoever sits in front of this; nobody there means no."""
    return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def ensure_tools(
    *,
    say: Say,
    environment: Mapping[str, str] = os.environ,
    tools: Iterable[Tool] = TOOLS,
    ask: Callable[[str], bool] = ask_person,
) -> None:
    """Make sure that all tools are there; installs Debian packages if need be.

    Args:
        say: gets what is missing and what will be installed.
        environment: YES or CI: install without asking.
        tools: what is needed.
        ask: asks for consent.

    Raises:
        LabError: something is missing and may or can not be installed.
    """
    tools = tuple(tools)
    missing = missing_tools(tools)
    if not missing:
        return
    names = ", ".join(tool.name for tool in missing)
    packages = sorted({tool.package for tool in missing})
    if program("apt-get") is None:
        raise LabError(f"missing: {names}; install them (on Debian: apt-get install {' '.join(packages)})")
    say(f"missing: {names}")
    say(f"to be installed, without starting any service: {' '.join(packages)}")
    if not (environment.get("YES") or environment.get("CI") or ask("Install these packages?")):
        raise LabError(
            f"missing: {names}; set YES=1 or run: apt-get install --no-install-recommends {' '.join(packages)}"
        )
    _install(packages, say)
    still = missing_tools(tools)
    if still:
        raise LabError(f"still missing after the installation: {', '.join(tool.name for tool in still)}")


def _install(packages: list[str], say: Say) -> None:
    with services_stay_off(), ticking("installing Debian packages", say):
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", "--no-remove", *packages)


def _apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", "-q", *arguments], env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"apt-get {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-800:]}")


@contextlib.contextmanager
def services_stay_off(policy: Path = _POLICY, put_aside: Path = _PUT_ASIDE) -> Iterator[None]:
    """Have Debian's service policy answer "not allowed" for a while; what was there comes back afterwards.

    What a killed run of ours left behind is recognised: its policy is not taken for the host's own.
    """
    if policy.exists() and policy.read_bytes() != _OUR_POLICY.encode():
        policy.rename(put_aside)
    policy.write_text(_OUR_POLICY)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
        if put_aside.exists():
            put_aside.rename(policy)
