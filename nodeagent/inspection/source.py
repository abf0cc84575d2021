"""An OperatingSystemConfig from a file: by itself, or in the Secret that carries it, as `kubectl get secret -o yaml` prints it."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from osc import codec
from osc.errors import InvalidOSC, Problem


@dataclass(frozen=True, slots=True)
class Source:
    """The text of an OperatingSystemConfig, and the checksum that a node would report for it."""

    content: bytes = field(repr=False)
    checksum: str


def is_secret(document: object) -> bool:
    """Tell whether a decoded file is a Secret."""
    return isinstance(document, Mapping) and (document.get("apiVersion"), document.get("kind")) == ("v1", "Secret")


def of_secret(document: Mapping[str, object]) -> Source:
    """Return the OperatingSystemConfig in a Secret.

    Raises:
        InvalidOSC: it holds none.
    """
    values, metadata = document.get("data"), document.get("metadata")
    data = {str(key): _decoded(str(key), value) for key, value in values.items()} if isinstance(values, Mapping) else {}
    found = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    annotations = {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
    content = codec.payload(data)
    return Source(content, codec.checksum(annotations, content).value)


def of_content(content: bytes) -> Source:
    """Return an OperatingSystemConfig that stands by itself."""
    return Source(content, codec.checksum({}, content).value)


def _decoded(key: str, value: object) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidOSC([Problem(f"data.{key}", "is not base64")]) from None
