"""From the Secret's data to an OperatingSystemConfig, beside the untouched document.

The document is kept whole, because last-applied stores what was received and not our projection of it: fields that are
newer than we are survive. YAML is expanded under a budget, because a few aliases can stand for gigabytes.

Source: contract 5.1, 5.2; gardener pkg/nodeagent/codec.go, pkg/api/extensions/v1alpha1/helper/filecodec.go.
"""

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from agents.core.yamlio import YamlError, dump_json, load_yaml
from osc.errors import InvalidOSC, MissingPayload, Problem
from osc.types import API_VERSION, KIND, Inline, OperatingSystemConfig

DATA_KEY = "osc.yaml"
COMPRESSED_DATA_KEY = "osc.yaml.br"
CHECKSUM_ANNOTATION = "checksum/data-script"

MAX_OSC_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 8 * 1024 * 1024

# Characters that JSON may hold raw, and that YAML's reader refuses or folds like line breaks.
_NOT_RAW_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_MAX_DEPTH = 100
# Without aliases a text holds fewer values and characters than twice its bytes.
_EXPANSION = 4
_FREE_EXPANSION = 64 * 1024
_LARGEST_DOCUMENT = 2 * MAX_OSC_BYTES
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Checksum:
    """What is reported on the Node; `matches` is False if the annotation differs from the data (warn, report anyway)."""

    value: str
    matches: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """An OSC twice: the whole document (with apiVersion and kind), and what the agent reads of it."""

    document: Mapping[str, object]
    config: OperatingSystemConfig


class InvalidContent(ValueError):
    """A file's inline content cannot be decoded; the message says why and never quotes it."""


def effective_data(data: Mapping[str, bytes]) -> bytes | None:
    """Return the bytes that decide whether a Secret changed: `osc.yaml`, else `osc.yaml.br`, else None."""
    return data[DATA_KEY] if DATA_KEY in data else data.get(COMPRESSED_DATA_KEY)


def payload(data: Mapping[str, bytes]) -> bytes:
    """Return the OSC text of a Secret's (decoded) data, decompressed under a hard limit of 16 MiB.

    Raises:
        MissingPayload: neither key is there.
        InvalidOSC: the compressed form is broken or too large.
    """
    if DATA_KEY in data:
        return data[DATA_KEY]
    if COMPRESSED_DATA_KEY in data:
        return _decompress(data[COMPRESSED_DATA_KEY])
    raise MissingPayload([Problem("data", f"neither {DATA_KEY} nor {COMPRESSED_DATA_KEY} is present")])


def checksum(annotations: Mapping[str, str], content: bytes) -> Checksum:
    """Return the Secret's checksum annotation, or the SHA-256 of the payload where it is missing or empty (W11)."""
    actual = hashlib.sha256(content).hexdigest()
    announced = annotations.get(CHECKSUM_ANNOTATION) or actual
    return Checksum(announced, announced == actual)


def decode(content: bytes) -> Decoded:
    """Parse an OSC; also one that another node agent stored as last-applied.

    Raises:
        InvalidOSC: size, syntax, apiVersion, kind, or fields of a wrong type, each with its path.
    """
    if len(content) > MAX_OSC_BYTES:
        raise _invalid("", f"larger than {MAX_OSC_BYTES} bytes")
    try:
        loaded = load_yaml(content)
    except YamlError as error:
        where = ", ".join(f"{key} {value}" for key, value in error.fields.items())
        raise _invalid("", f"not valid YAML ({where})") from error
    return decode_document(loaded, budget=min(_EXPANSION * len(content) + _FREE_EXPANSION, _LARGEST_DOCUMENT))


def decode_document(loaded: object, *, budget: int = _LARGEST_DOCUMENT) -> Decoded:
    """Take the second half of `decode`, for a document that has been parsed already.

    Args:
        loaded: what the parser returned.
        budget: how many values and characters it may hold once its aliases are expanded.

    Raises:
        InvalidOSC: apiVersion, kind, values without a form in JSON, or fields of a wrong type, each with its path.
    """
    plain = _Plain(budget).convert(loaded, "", 0)
    if not isinstance(plain, dict):
        raise _invalid("", "not a mapping")
    document = {**plain, **_type_of(plain)}
    try:
        return Decoded(document, OperatingSystemConfig.model_validate(document))
    except ValidationError as error:
        raise InvalidOSC(
            Problem(json_path(found["loc"]), found["msg"])
            for found in error.errors(include_input=False, include_url=False)
        ) from None  # the cause would carry the input


def dump_state(value: object) -> bytes:
    """Write a state file: JSON that every YAML reader takes for the same value, so that other node agents can read it."""
    text = dump_json(value).decode()
    return _NOT_RAW_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def load_state(content: bytes) -> object:
    """Read a state file: ours is JSON, another node agent's is YAML.

    Raises:
        YamlError: it is neither.
    """
    try:
        loaded: object = json.loads(content)
    except (ValueError, RecursionError):
        return load_yaml(content)
    return loaded


def decode_file_content(inline: Inline) -> bytes:
    """Return the bytes that an inline file holds. As in Go, line breaks inside base64 are skipped, nothing else.

    Raises:
        InvalidContent: unknown encoding, not base64, or not representable as UTF-8.
    """
    if inline.encoding == "":
        try:
            return inline.data.encode()
        except UnicodeEncodeError:
            raise InvalidContent("not valid Unicode") from None
    if inline.encoding == "b64":
        try:
            text = inline.data.replace("\n", "").replace("\r", "")
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidContent("not valid base64") from None
    raise InvalidContent("encoding must be empty or b64")


def json_path(location: tuple[int | str, ...]) -> str:
    """Write a location as `spec.files[3].path`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _invalid(path: str, message: str) -> InvalidOSC:
    return InvalidOSC([Problem(path, message)])


def _type_of(document: Mapping[str, object]) -> dict[str, object]:
    """Fill in apiVersion and kind where they are missing; anything else than ours is refused."""
    problems = []
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) not in (None, "", expected):
            problems.append(Problem(key, f"must be {expected}"))
    if problems:
        raise InvalidOSC(problems)
    return {"apiVersion": API_VERSION, "kind": KIND}


def _decompress(compressed: bytes) -> bytes:
    import brotli  # only here: 1 MiB that only this variant needs

    decompressor = brotli.Decompressor()
    parts: list[bytes] = []
    total = 0
    position = 0
    try:
        while not decompressor.is_finished():
            chunk = b""
            if decompressor.can_accept_more_data():
                chunk = compressed[position : position + _CHUNK_BYTES]
                position += len(chunk)
            part = decompressor.process(chunk, output_buffer_limit=_CHUNK_BYTES)
            if not part and not chunk and not decompressor.is_finished():
                raise _invalid(f"data[{COMPRESSED_DATA_KEY}]", "brotli stream is cut off")
            total += len(part)
            if total > MAX_OSC_BYTES:
                raise _invalid(f"data[{COMPRESSED_DATA_KEY}]", f"decompresses to more than {MAX_OSC_BYTES} bytes")
            parts.append(part)
    except brotli.error:
        raise _invalid(f"data[{COMPRESSED_DATA_KEY}]", "not a brotli stream") from None
    return b"".join(parts)


class _Plain:
    """Copies a loaded document into plain JSON values, under a budget that aliases cannot exceed."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def convert(self, value: object, path: str, depth: int) -> object:
        """Return the value as JSON would hold it.

        Raises:
            InvalidOSC: values that JSON has no form for, keys that are not strings, too deep or too large.
        """
        self._budget -= len(value) if isinstance(value, str) else 1
        if self._budget < 0:
            raise _invalid(path, "aliases expand to more than the size limit")
        if depth > _MAX_DEPTH:
            raise _invalid(path, "nested too deeply")
        if isinstance(value, Mapping):
            return {
                self._key(key, path): self.convert(item, f"{path}.{key}".removeprefix("."), depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.convert(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            raise _invalid(path, "not a finite number")
        if value is None or isinstance(value, str | int | float):
            return value
        raise _invalid(path, "has no form in JSON")

    def _key(self, key: object, path: str) -> str:
        if not isinstance(key, str):
            raise _invalid(path, "a key is not a string")
        self._budget -= len(key)
        return key
