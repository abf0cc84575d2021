"""What an OSC says about containerd, as values: its configuration file, `hosts.toml` files, and a drop-in for its unit.

Nothing here touches the disk. Source: gardener pkg/nodeagent/controller/operatingsystemconfig/containerd.go and
containerd_config.go (contract 6.14, 6.15); the bytes of drop-in and `hosts.toml` are an interface (Appendix D).
"""

import copy
import json
from collections.abc import Mapping, Sequence

from agents.core.errors import TerminalError
from agents.core.versions import Version
from osc.codec import Decoded
from osc.merge import Runtime, runtime
from osc.types import OperatingSystemConfig, Plugin, Registry, RegistryHost

CONTAINERD_UNIT = "containerd.service"
ENVIRONMENT_DROP_IN = "30-env_config.conf"
RUNTIMES_DIRECTORY = "/var/bin/containerruntimes"
CERTS_DIRECTORY = "/etc/containerd/certs.d"
IMPORTS_DIRECTORY = "/etc/containerd/conf.d"
CONFIG_FILE = "/etc/containerd/config.toml"
CNI_BINARIES = "/opt/cni/bin"
HOSTS_FILE = "hosts.toml"

_IMPORTS = f"{IMPORTS_DIRECTORY}/*.toml"
_CRI_V1 = "io.containerd.grpc.v1.cri"
_IMAGES = "io.containerd.cri.v1.images"
_RUNTIME = "io.containerd.cri.v1.runtime"
_VERSIONS = range(1, 5)
_FIRST_SPLIT_VERSION = 3
"""From this version of the file on, the CRI plugin is two plugins."""
_DEFAULT_CAPABILITIES = ("pull", "resolve")

Table = dict[str, object]


def hosts_file(upstream: str) -> str:
    """Return the path of a registry's `hosts.toml`."""
    return f"{CERTS_DIRECTORY}/{upstream}/{HOSTS_FILE}"


class UnusableConfig(TerminalError):
    """containerd's configuration file has a form that cannot be changed."""


def with_environment(decoded: Decoded, path: str) -> Decoded:
    """Return the OSC with the drop-in that puts the container runtimes' directory before the PATH of containerd.

    It joins the spec's unit, or becomes a unit of its own; it is part of what is remembered as applied.

    Args:
        decoded: the OSC as it was received.
        path: the agent's own PATH.
    """
    if runtime(decoded.config) is None:
        return decoded
    drop_in = {"name": ENVIRONMENT_DROP_IN, "content": environment_drop_in(path)}
    document = copy.copy(dict(decoded.document))
    spec = dict(_mapping(document.get("spec")))
    units = list(_sequence(spec.get("units")))
    for index, unit in enumerate(units):
        if isinstance(unit, Mapping) and unit.get("name") == CONTAINERD_UNIT:
            units[index] = {**unit, "dropIns": [*_sequence(unit.get("dropIns")), drop_in]}
            break
    else:
        units.append({"name": CONTAINERD_UNIT, "dropIns": [drop_in]})
    document["spec"] = {**spec, "units": units}
    return Decoded(document, OperatingSystemConfig.model_validate(document))


def environment_drop_in(path: str) -> str:
    """Return the text of the drop-in."""
    return f'[Service]\nEnvironment="PATH={RUNTIMES_DIRECTORY}:{path}"\n'


def hosts_toml(registry: Registry) -> str:
    """Return the text of a registry's `hosts.toml`."""
    server = f"\nserver = {_quoted(registry.server)}\n" if registry.server else ""
    hosts = "".join(f"\n{_host(host)}" for host in registry.hosts)
    return f"# managed by gardener-node-agent{server}{hosts}\n"


def _host(host: RegistryHost) -> str:
    lines = [f"[host.{_quoted(host.url)}]", f"  capabilities = {_list(host.capabilities or _DEFAULT_CAPABILITIES)}"]
    if host.ca_certs:
        lines.append(f"  ca = {_list(host.ca_certs)}")
    if host.override_path:
        lines.append("  override_path = true")
    return "".join(f"{line}\n" for line in lines)


def _quoted(text: str) -> str:
    """Quote as TOML's basic strings do; JSON's rules are the same but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(items: Sequence[str]) -> str:
    return f"[{','.join(_quoted(item) for item in items)}]"


def patched(config: Mapping[str, object], settings: Runtime, containerd_version: str) -> Table:
    """Return containerd's configuration with what the OSC asks for.

    Args:
        config: the parsed file.
        settings: of the OSC.
        containerd_version: of the running containerd; decides on one key.

    Raises:
        UnusableConfig: its version is unknown, or something else stands where a table is needed.
        InvalidVersion: containerd's version cannot be read.
    """
    version = config_version(config)
    split = version >= _FIRST_SPLIT_VERSION
    images, runtimes = (_IMAGES, _RUNTIME) if split else (_CRI_V1, _CRI_V1)
    table: Table = copy.deepcopy(dict(config))
    _set(table, ("plugins", images, "registry", "config_path"), CERTS_DIRECTORY)
    _import(table)
    sandbox = ("pinned_images", "sandbox") if split else ("sandbox_image",)
    _set(table, ("plugins", images, *sandbox), settings.sandbox_image)
    if split and Version.parse(containerd_version).at_least(2, 2):
        _set(table, ("plugins", runtimes, "cni", "bin_dirs"), [CNI_BINARIES])
        _remove(table, ("plugins", runtimes, "cni", "bin_dir"))
    else:
        _set(table, ("plugins", runtimes, "cni", "bin_dir"), CNI_BINARIES)
    if settings.cgroup_driver:
        options = ("plugins", runtimes, "containerd", "runtimes", "runc", "options", "SystemdCgroup")
        _set(table, options, settings.cgroup_driver == "systemd")
    for plugin in settings.plugins:
        _apply_plugin(table, plugin, split=split)
    return table


def config_version(config: Mapping[str, object]) -> int:
    """Return the version of the file's format, 1 where it is not said.

    Raises:
        UnusableConfig: it is none that we know.
    """
    version = config.get("version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version not in _VERSIONS:
        raise UnusableConfig("version of containerd's configuration is unknown", version=str(version)[:50])
    return version


def same(one: object, other: object) -> bool:
    """Tell whether two configurations say the same; 10 and 10.0 are not, for containerd's options have types (W15)."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if one.keys() != other.keys():
                return False
            pairs += [(value, other[key]) for key, value in one.items()]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one is not other and (one != other or _kind(one) != _kind(other)):
            return False
    return True


def _kind(value: object) -> tuple[bool, bool]:
    return isinstance(value, float), isinstance(value, bool)


def _import(table: Table) -> None:
    imports = table.get("imports")
    if not isinstance(imports, list):
        table["imports"] = [_IMPORTS]
    elif _IMPORTS not in imports:
        imports.append(_IMPORTS)


def _apply_plugin(table: Table, plugin: Plugin, *, split: bool) -> None:
    path = ("plugins", *_translated(plugin.path, split=split))
    if plugin.removes:
        _remove(table, path)
        return
    target = _table_at(table, path)
    if isinstance(plugin.values, Mapping):
        target.update({key: _toml(value) for key, value in plugin.values.items() if value is not None})


def _translated(path: tuple[str, ...], *, split: bool) -> tuple[str, ...]:
    moved = (_CRI_V1, "containerd", "runtimes")
    if split and path[: len(moved)] == moved:
        return (_RUNTIME, *path[1:])
    return path


def _toml(value: object) -> object:
    """Return a JSON value as TOML can hold it: numbers stay what they are (W15), nulls are left out."""
    if isinstance(value, Mapping):
        return {key: _toml(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_toml(item) for item in value if item is not None]
    return value


def _table_at(table: Table, path: Sequence[str]) -> Table:
    for index, key in enumerate(path):
        child = table.setdefault(key, {})
        if not isinstance(child, dict):
            raise UnusableConfig("something else stands where a table is needed", path=".".join(path[: index + 1]))
        table = child
    return table


def _set(table: Table, path: Sequence[str], value: object) -> None:
    _table_at(table, path[:-1])[path[-1]] = value


def _remove(table: Table, path: Sequence[str]) -> None:
    for index, key in enumerate(path[:-1]):
        child = table.get(key)
        if child is None:
            return
        if not isinstance(child, dict):
            raise UnusableConfig("something else stands where a table is needed", path=".".join(path[: index + 1]))
        table = child
    table.pop(path[-1], None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
