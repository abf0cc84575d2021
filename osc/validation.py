"""Everything that is wrong with an OSC, found before the first write.

Gardener validates at admission and its node agent trusts the result; here names and paths from the OSC become paths on
a disk, so they are checked again (contract 5.4 "OURS MUST", W7), together with what the agent needs for itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar
from urllib.parse import urlsplit

from agents.core.files import temporary_name
from agents.core.versions import InvalidVersion, Version
from osc.codec import MAX_FILE_BYTES, InvalidContent, decode_file_content
from osc.errors import Problem
from osc.merge import CONTAINERD, merge_units
from osc.types import (
    UNIT_DIRECTORY,
    File,
    FileContent,
    ImageRef,
    InPlaceUpdatesStatus,
    OperatingSystemConfig,
    Plugin,
    Registry,
    Unit,
)

STATE_DIRECTORY = "/var/lib/gardener-node-agent"
STATE_OF_AGENT = ("credentials/", "last-applied-osc.yaml", "last-computed-osc-changes.yaml", "originals/", "tmp/")
"""Below the state directory, what belongs to the agent alone; a slash at the end stands for a whole folder."""

_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4095
_SPECIAL_NAMES = (".", "..")
_INTEGERS = range(-(2**63), 2**63)
_T = TypeVar("_T")
_PLUGIN_OPERATIONS = (None, "", "add", "remove")
_CGROUP_DRIVERS = (None, "", "systemd", "cgroupfs")


def validate(
    config: OperatingSystemConfig,
    *,
    state_directory: str = STATE_DIRECTORY,
    own_state: Iterable[str] = (),
    unit_directory: str = UNIT_DIRECTORY,
) -> list[Problem]:
    """Return all problems; an empty list means that the OSC can be applied. Never raises.

    Args:
        config: what was decoded.
        state_directory: where the agent keeps its state; its config file and the cluster CA there are the OSC's.
        own_state: absolute paths of further state files of the agent; a slash at the end stands for a whole folder.
        unit_directory: where unit files and drop-ins are written.
    """
    reserved = [*(f"{state_directory}/{name}" for name in STATE_OF_AGENT), *own_state]
    files = [
        *_located("spec.files", config.spec.files),
        *_located("status.extensionFiles", config.status.extension_files),
    ]
    units = [
        *_located("spec.units", config.spec.units),
        *_located("status.extensionUnits", config.status.extension_units),
    ]
    return [
        *_check_runtime(config),
        *_check_in_place(config),
        *chain.from_iterable(_check_file(where, file, reserved) for where, file in files),
        *chain.from_iterable(_check_unit(where, unit) for where, unit in units),
        *_Collisions(files, units, unit_directory).problems(),
    ]


def _located(where: str, items: Sequence[_T]) -> list[tuple[str, _T]]:
    return [(f"{where}[{index}]", item) for index, item in enumerate(items)]


def _check_runtime(config: OperatingSystemConfig) -> Iterator[Problem]:
    cri = config.spec.cri_config
    if cri is None or cri.name != CONTAINERD or cri.containerd is None:
        return
    if cri.cgroup_driver not in _CGROUP_DRIVERS:
        yield Problem("spec.criConfig.cgroupDriver", "must be systemd or cgroupfs")
    where = "spec.criConfig.containerd"
    if not cri.containerd.sandbox_image:
        yield Problem(f"{where}.sandboxImage", "must not be empty")
    for index, plugin in enumerate(cri.containerd.plugins):
        yield from _check_plugin(f"{where}.plugins[{index}]", plugin)
    seen: dict[str, str] = {}
    for index, registry in enumerate(cri.containerd.registries):
        place = f"{where}.registries[{index}]"
        yield from _check_registry(place, registry)
        if registry.upstream in seen:
            yield Problem(f"{place}.upstream", f"is also the upstream of {seen[registry.upstream]}")
        seen.setdefault(registry.upstream, place)


def _check_plugin(where: str, plugin: Plugin) -> Iterator[Problem]:
    if plugin.op not in _PLUGIN_OPERATIONS:
        yield Problem(f"{where}.op", "must be add or remove")
    if not plugin.path or not all(plugin.path):
        yield Problem(f"{where}.path", "must not be empty, and none of its parts")
    if plugin.values is not None and plugin.removes:
        yield Problem(f"{where}.values", "must not be given for remove")
    if plugin.values is not None and not isinstance(plugin.values, Mapping):
        yield Problem(f"{where}.values", "must be an object")
    yield from _check_integers(f"{where}.values", plugin.values)


def _check_integers(where: str, value: object) -> Iterator[Problem]:
    """TOML guarantees 64 bits with a sign, and containerd refuses its whole file for more."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _check_integers(f"{where}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _check_integers(f"{where}[{index}]", item)
    elif isinstance(value, int) and value not in _INTEGERS:
        yield Problem(where, "must be an integer of 64 bits with a sign")


def _check_registry(where: str, registry: Registry) -> Iterator[Problem]:
    """The upstream becomes the name of a directory, the URLs become keys of a file (W7)."""
    yield from (Problem(f"{where}.upstream", message) for message in check_name(registry.upstream))
    if registry.server:
        yield from (Problem(f"{where}.server", message) for message in _check_url(registry.server))
    for index, host in enumerate(registry.hosts):
        yield from (Problem(f"{where}.hosts[{index}].url", message) for message in _check_url(host.url))


def _check_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        yield "is not a URL"
        return
    if parts.scheme not in ("http", "https") or not host:
        yield "must be an http or https URL with a host"
    if not url.isprintable() or " " in url:
        yield "contains blanks or control characters"


def _check_file(where: str, file: File, reserved: Sequence[str]) -> Iterator[Problem]:
    path_problems = list(check_path(file.path))
    yield from (Problem(f"{where}.path", message) for message in path_problems or _check_reserved(file.path, reserved))
    if file.host_name is not None and "\0" in file.host_name:
        yield Problem(f"{where}.hostName", "contains a NUL byte")
    yield from _check_content(f"{where}.content", file.content)


def check_path(path: str) -> Iterator[str]:
    """Yield what is wrong with the path of a file: it must be absolute, clean and short enough for a file system."""
    if not path.startswith("/"):
        yield "must be an absolute path"
        return
    parts = path.split("/")[1:]
    if any(part in ("", *_SPECIAL_NAMES) for part in parts):
        yield "must be a clean path: no empty parts, no '.', no '..', no slash at the end"
    if "\0" in path:
        yield "contains a NUL byte"
    if any(_size(part) > _LONGEST_NAME_BYTES for part in parts):
        yield f"has a part of more than {_LONGEST_NAME_BYTES} bytes"
    if _size(path) > _LONGEST_PATH_BYTES:
        yield f"is longer than {_LONGEST_PATH_BYTES} bytes"


def folders_of(path: str) -> Iterator[str]:
    """Yield the paths of all folders above an absolute path, but for the root."""
    while path := path.rpartition("/")[0]:
        yield path


def check_name(name: str) -> Iterator[str]:
    """Yield what is wrong with the name of a unit or drop-in as one part of a path; systemd checks the rest itself."""
    if not name:
        yield "must not be empty"
    elif name in _SPECIAL_NAMES:
        yield "must not be '.' or '..'"
    if "/" in name:
        yield "must not contain a slash"
    if "\0" in name:
        yield "contains a NUL byte"
    if _size(name) > _LONGEST_NAME_BYTES:
        yield f"is longer than {_LONGEST_NAME_BYTES} bytes"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _check_reserved(path: str, reserved: Sequence[str]) -> Iterator[str]:
    for own in reserved:
        if own.endswith("/"):
            if f"{path}/".startswith(own):
                yield "belongs to the agent's own state"
        elif path in (own, _temporary(own)):
            yield "belongs to the agent's own state"
        if own.startswith(f"{path}/") and own != f"{path}/":
            yield "is a folder of the agent's own state"


def _temporary(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{temporary_name(name)}"


def _check_content(where: str, content: FileContent) -> Iterator[Problem]:
    sources = [source for source in (content.inline, content.secret_ref, content.image_ref) if source is not None]
    if len(sources) != 1:
        yield Problem(where, "must have exactly one of inline, secretRef and imageRef")
    if content.inline is not None:
        if content.inline.encoding not in ("", "b64"):
            yield Problem(f"{where}.inline.encoding", "must be empty or b64")
        else:
            yield from (Problem(f"{where}.inline.data", message) for message in _check_inline(content))
    if content.secret_ref is not None:
        if not content.secret_ref.name:
            yield Problem(f"{where}.secretRef.name", "must not be empty")
        if not content.secret_ref.data_key:
            yield Problem(f"{where}.secretRef.dataKey", "must not be empty")
    if content.image_ref is not None:
        yield from _check_image(f"{where}.imageRef", content.image_ref)


def _check_image(where: str, reference: ImageRef) -> Iterator[Problem]:
    image, path = reference.image, reference.file_path_in_image
    if not image or image.startswith("-") or not image.isprintable() or " " in image:
        yield Problem(f"{where}.image", "must be the name of an image")
    parts = path.strip("/").split("/")
    if not path.strip("/") or "\0" in path or ".." in parts:
        yield Problem(f"{where}.filePathInImage", "must be the path of a file in the image, without '..'")


def _check_in_place(config: OperatingSystemConfig) -> Iterator[Problem]:
    yield from _check_update(config.status.in_place_updates)
    wanted = config.spec.in_place_updates
    if wanted is None:
        return
    for name, version in (("operatingSystemVersion", wanted.operating_system_version), ("kubelet", wanted.kubelet)):
        try:
            Version.parse(version)
        except InvalidVersion:
            yield Problem(f"spec.inPlaceUpdates.{name}", "must be a version")


def _check_update(status: InPlaceUpdatesStatus | None) -> Iterator[Problem]:
    if status is None or status.os_update is None:
        return
    where, update = "status.inPlaceUpdates.osUpdate", status.os_update
    texts = [(f"{where}.command", update.command), *_located(f"{where}.args", update.args)]
    yield from (Problem(place, "contains a NUL byte") for place, text in texts if "\0" in text)


def _check_inline(content: FileContent) -> Iterator[str]:
    if content.inline is None:  # pragma: no cover - the caller looked
        return
    try:
        size = len(decode_file_content(content.inline))
    except InvalidContent as error:
        yield str(error)
    else:
        if size > MAX_FILE_BYTES:
            yield f"decodes to more than {MAX_FILE_BYTES} bytes"


def _check_unit(where: str, unit: Unit) -> Iterator[Problem]:
    yield from (Problem(f"{where}.name", message) for message in check_name(unit.name))
    if unit.drop_ins and _size(unit.name) <= _LONGEST_NAME_BYTES < _size(f"{unit.name}.d"):
        yield Problem(f"{where}.name", f"is longer than {_LONGEST_NAME_BYTES} bytes with the '.d' of its drop-ins")
    if unit.content is not None and _size(unit.content) > MAX_FILE_BYTES:
        yield Problem(f"{where}.content", f"is longer than {MAX_FILE_BYTES} bytes")
    for index, drop_in in enumerate(unit.drop_ins):
        yield from (Problem(f"{where}.dropIns[{index}].name", message) for message in check_name(drop_in.name))
        if _size(drop_in.content) > MAX_FILE_BYTES:
            yield Problem(f"{where}.dropIns[{index}].content", f"is longer than {MAX_FILE_BYTES} bytes")


class _Collisions:
    """Entries of which one would destroy another on the disk."""

    def __init__(
        self, files: Sequence[tuple[str, File]], units: Sequence[tuple[str, Unit]], unit_directory: str
    ) -> None:
        self._files: dict[str, list[tuple[str, File]]] = defaultdict(list)
        for where, file in files:
            self._files[file.path].append((where, file))
        first_place = {unit.name: where for where, unit in reversed(units)}
        self._unit_paths: dict[str, str] = {}
        self._same_unit_path: list[Problem] = []
        for unit in merge_units(unit for _, unit in units):
            for path in _paths_of(unit, unit_directory):
                where = first_place[unit.name]
                if path in self._unit_paths:
                    self._same_unit_path.append(Problem(where, f"writes {path}, as {self._unit_paths[path]} does"))
                self._unit_paths.setdefault(path, where)

    def problems(self) -> Iterator[Problem]:
        """Yield same paths, files in the place of a folder, and files in the place of a temporary file."""
        yield from self._same_unit_path
        for path, entries in self._files.items():
            yield from _same_path(entries)
            if path in self._unit_paths:
                yield from (
                    Problem(f"{where}.path", f"is written by {self._unit_paths[path]} too") for where, _ in entries
                )
        for path in dict.fromkeys((*self._files, *self._unit_paths)):
            yield from self._in_the_place_of_a_folder(path)
            if (stale := _temporary(path)) in self._files:
                yield from (
                    Problem(f"{where}.path", f"is the temporary file of {path}") for where, _ in self._files[stale]
                )

    def _in_the_place_of_a_folder(self, path: str) -> Iterator[Problem]:
        below: list[tuple[str, File]] = self._files.get(path, [])
        for folder in folders_of(path):
            if folder in self._unit_paths:
                yield Problem(self._unit_paths[folder], f"writes {folder}, which is the folder of {path}")
            for where, file in self._files.get(folder, ()):
                if path in self._unit_paths or any(_may_meet(file, other) for _, other in below):
                    yield Problem(f"{where}.path", f"is the folder of {path}")


def _paths_of(unit: Unit, unit_directory: str) -> Iterator[str]:
    if unit.content is not None:
        yield f"{unit_directory}/{unit.name}"
    for drop_in in unit.drop_ins:
        yield f"{unit_directory}/{unit.name}.d/{drop_in.name}"


def _may_meet(one: File, other: File) -> bool:
    return one.host_name is None or other.host_name is None or one.host_name == other.host_name


def _same_path(entries: Sequence[tuple[str, File]]) -> Iterator[Problem]:
    if len(entries) == 1:
        return
    seen: dict[str | None, str] = {}
    for where, file in entries:
        if file.host_name is None:
            others = ", ".join(other for other, _ in entries if other != where)
            yield Problem(f"{where}.path", f"is also the path of {others}, and not every one has a hostName of its own")
        elif file.host_name in seen:
            yield Problem(f"{where}.path", f"is also the path of {seen[file.host_name]} for the same host")
        seen.setdefault(file.host_name, where)
