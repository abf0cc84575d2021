"""Write the agent's configuration file: what was read, with the defaults filled in, and one value changed.

Gardener's agent must be able to read it. What the file holds beyond our model is kept: a newer gardenlet may have written it.
Source: gardener pkg/nodeagent/controller/secretnamechange/reconciler.go (contract 2, 7.7).
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from agents.core.aside import DAMAGED, keep_aside
from agents.core.config import ConfigError, decode_mapping, parse_config, read_content
from agents.core.generations import Keeper, Origin
from agents.core.yamlio import dump_json
from nodeagent.config import NodeAgentConfiguration, validate

CONFIG_MODE = 0o600
_LEFT_OUT_IF_UNSET = ("bootstrap", "debugging", "featureGates")


def secret_name(path: Path, generations: Keeper) -> str:
    """Return the name of the OSC Secret that the configuration says now; see `_current`.

    Raises:
        ConfigError: it cannot be read or understood.
    """
    document, _damaged = _current(path, generations)
    return parse_config(path, document, NodeAgentConfiguration).controllers.operating_system_config.secret_name


def write_secret_name(path: Path, name: str, generations: Keeper) -> None:
    """Set the name of the OSC Secret and write the file with all defaults, 0600, in one step; a damaged one is kept aside.

    Raises:
        ConfigError: the file cannot be read, or would not be valid afterwards; it is left as it is.
        FileError: it cannot be written.
    """
    current, damaged = _current(path, generations)
    document = with_secret_name(path, current, name)
    config = parse_config(path, document, NodeAgentConfiguration)
    # Whether this Kubernetes version is supported was decided at the start, and is not what changes here.
    if problems := list(validate(config, check_kubernetes_version=False)):
        raise ConfigError(path, problems)
    if damaged:
        keep_aside(path, path.with_name(f"{path.name}{DAMAGED}"))
    generations.write(path, dump_json(document), mode=CONFIG_MODE)


def _current(path: Path, generations: Keeper) -> tuple[Mapping[str, object], bool]:
    """Return what the file says, or the newest that is known of it if it is damaged or an older one was written back.

    As at the start, see `nodeagent.config_history`: an OSC whose Secret may only be read under another name cannot mend it.

    Returns:
        The decoded configuration, and whether the file is damaged.

    Raises:
        ConfigError: nothing usable is known.
    """
    try:
        content = read_content(path)
        found = _decode(path, content)
    except ConfigError:
        for newest in _known(path, generations):
            return newest, True
        raise
    if generations.origin(path, content) is Origin.OLDER:
        for newest in _known(path, generations):
            return newest, False
    return found, False


def _known(path: Path, generations: Keeper) -> Iterator[Mapping[str, object]]:
    for kept in generations.kept(path):
        with suppress(ConfigError):
            yield _decode(path, kept)


def _decode(path: Path, content: bytes) -> Mapping[str, object]:
    document = decode_mapping(path, content)
    parse_config(path, document, NodeAgentConfiguration)
    return document


def with_secret_name(path: Path, document: Mapping[str, object], name: str) -> dict[str, object]:
    """Return a decoded file with defaults for what it leaves open, and this name of the OSC Secret.

    Raises:
        ConfigError: it is not understood.
    """
    config = parse_config(path, document, NodeAgentConfiguration)
    defaults = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    for key in _LEFT_OUT_IF_UNSET:
        if not document.get(key):
            defaults.pop(key)
    defaults["controllers"]["operatingSystemConfig"].pop("drift")  # ours alone: kept if it is there, else not invented
    (_, health), (_, metrics) = config.server.health_address, config.server.metrics_address
    defaults["server"]["healthProbes"]["port"], defaults["server"]["metrics"]["port"] = health, metrics
    return _replaced(_filled(document, defaults), ("controllers", "operatingSystemConfig", "secretName"), name)


def _filled(value: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """Return a mapping with defaults for keys that are missing or, as gardenlet renders them, empty."""
    result = dict(value)
    for key, default in defaults.items():
        found = value.get(key)
        if isinstance(default, Mapping):
            result[key] = _filled(found if isinstance(found, Mapping) else {}, default)
        elif found in (None, "", 0) and found is not False:
            result[key] = default
    return result


def _replaced(value: Mapping[str, object], keys: tuple[str, ...], new: object) -> dict[str, object]:
    """Return a mapping with another value at the end of a chain of keys."""
    key, *rest = keys
    inner = value.get(key)
    if rest:
        new = _replaced(inner if isinstance(inner, Mapping) else {}, tuple(rest), new)
    return {**value, key: new}
