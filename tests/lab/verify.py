"""Whether a machine is what an OSC says, found out from the outside: bytes, modes and unit states."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tests.lab.machine import Machine
from tests.lab.registry import published_digest

_UNIT_FOLDER = "/etc/systemd/system"
_DEFAULT_FILE_MODE = 0o600


def file_content(file: Mapping[str, Any]) -> bytes:
    """Return what an inline file of an OSC holds."""
    inline = file["content"]["inline"]
    data: str = inline.get("data", "")
    return base64.b64decode(data) if inline.get("encoding") in {"b64", "base64"} else data.encode()


def file_differences(machine: Machine, document: Mapping[str, Any]) -> list[str]:
    """Return one line per file of an OSC that is missing or has other bytes or another mode."""
    found = []
    for file in document["spec"].get("files") or []:
        path = file["path"]
        if not machine.exists(path):
            found.append(f"{path}: missing")
            continue
        reference = file["content"].get("imageRef")
        same = (
            machine.read(path) == file_content(file)
            if reference is None
            else hashlib.sha256(machine.read(path)).hexdigest() == _in_image(machine, reference)
        )
        if not same:
            found.append(f"{path}: other content")
        wanted = file.get("permissions") or _DEFAULT_FILE_MODE
        if machine.mode(path) != wanted:
            found.append(f"{path}: mode {machine.mode(path):o} instead of {wanted:o}")
    return found


def _in_image(machine: Machine, reference: Mapping[str, str]) -> str:
    return published_digest(machine.ledger, reference["image"], reference["filePathInImage"])


def unit_differences(machine: Machine, document: Mapping[str, Any]) -> list[str]:
    """Return one line per unit whose file, drop-ins or state are not as the OSC says."""
    found = []
    for unit in document["spec"].get("units") or []:
        name = unit["name"]
        if unit.get("content") is not None:
            found += _content(machine, f"{_UNIT_FOLDER}/{name}", unit["content"])
        for drop_in in unit.get("dropIns") or []:
            found += _content(machine, f"{_UNIT_FOLDER}/{name}.d/{drop_in['name']}", drop_in["content"])
        state = machine.unit(name)
        if state.get("NeedDaemonReload") == "yes":
            found.append(f"{name}: systemd has not read it again")
        wanted = "inactive" if unit.get("command") == "stop" else "active"
        if unit.get("command") and state["ActiveState"] != wanted:
            found.append(f"{name}: {state['ActiveState']} instead of {wanted}")
    return found


def _content(machine: Machine, path: str, wanted: str) -> list[str]:
    if not machine.exists(path):
        return [f"{path}: missing"]
    return [] if machine.read(path) == wanted.encode() else [f"{path}: other content"]


def differences(machine: Machine, document: Mapping[str, Any]) -> list[str]:
    """Return everything in which a machine is not what an OSC says."""
    return file_differences(machine, document) + unit_differences(machine, document)


def temporary_files(machine: Machine) -> list[str]:
    """Return temporary files of the agent that are lying around: `.<name>.tmp` in any folder, and anything in its `tmp/`."""
    script = (
        "find /etc /opt /var/lib/gardener-node-agent /var/lib/kubelet -xdev -name '.*.tmp' -type f 2>/dev/null; "
        "find /var/lib/gardener-node-agent/tmp -mindepth 1 2>/dev/null; true"
    )
    return machine.run(["sh", "-c", script]).stdout.split()


def image_leftovers(machine: Machine, *, namespace: str = "default", besides: str = "") -> list[str]:
    """Return what containerd has in a namespace; in `default` only what is left of images whose files were copied out.

    Args:
        machine: whose containerd is asked.
        namespace: of containerd.
        besides: reference, with digest, of an image that somebody else brought; it and what it consists of are not meant.
    """
    known = _consists_of(machine, namespace, besides) if besides else set()
    found = []
    for kind in ("images", "leases", "snapshots", "content"):
        names = [line.split()[0] for line in _ctr(machine, namespace, kind, "list").splitlines()[1:] if line.strip()]
        found += [f"{kind}: {name}" for name in names if name not in known]
    return found


def init_leftovers(machine: Machine) -> list[str]:
    """Return mounts, snapshots of views and leases that are named after folders of the init script, and the folders."""
    script = "cut -d' ' -f5 /proc/self/mountinfo; ctr snapshots list | cut -d' ' -f1; ctr leases list -q; ls -d /tmp/tmp.* 2>/dev/null"
    return [line for line in machine.run(["sh", "-c", script], check=False).stdout.split() if "/tmp/tmp." in line]


def _consists_of(machine: Machine, namespace: str, image: str) -> set[str]:
    """Return the names under which containerd has an image of one platform: reference, blobs, unpacked layers."""
    digest = image.rpartition("@")[2]
    manifest = json.loads(_ctr(machine, namespace, "content", "get", digest))
    config = json.loads(_ctr(machine, namespace, "content", "get", manifest["config"]["digest"]))
    chain = ""
    names = {image, digest, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}
    for layer in config["rootfs"]["diff_ids"]:
        chain = f"sha256:{hashlib.sha256(f'{chain} {layer}'.encode()).hexdigest()}" if chain else layer
        names.add(chain)
    return names


def _ctr(machine: Machine, namespace: str, *arguments: str) -> str:
    return machine.run(["ctr", "--namespace", namespace, *arguments]).stdout
