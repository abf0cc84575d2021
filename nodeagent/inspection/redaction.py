"""Takes out of logs and state files what may be a secret, before they leave the machine."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_REDACTED = "<redacted>"
_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|CERTIFICATE)[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.S),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"),  # a JSON Web Token
    re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"),  # a bootstrap token
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user and password in a URL
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(r"\b[A-Za-z0-9+/]{64,}={0,2}"),  # base64 of 48 bytes or more
)
_NAMED = re.compile(
    r"(?i)((?:password|passwd|secret|token|api[_-]?key|credential)s?[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&]+)"
)
_CONTENT_KEYS = frozenset({"data", "content"})
"""Where an OperatingSystemConfig has the bytes of files, unit files and drop-ins."""
_SETTINGS_KEYS = frozenset({"values", "providerConfig", "command", "args"})
"""Where it has settings of others, of which nobody knows what they are."""


def shorten_digests(text: str) -> str:
    """Return text with the beginning of each SHA-256 only: of a short secret the whole would be as good as the secret."""
    return _SHA256.sub(r"\1", text)


def redact_text(text: str) -> str:
    """Return text without what looks like a key, a token or a password."""
    text = shorten_digests(text)
    for pattern in _PATTERNS:
        text = pattern.sub(_REDACTED, text)
    return _NAMED.sub(rf"\1{_REDACTED}", text)


def redact_document(value: Any) -> Any:
    """Return an OperatingSystemConfig, or a journal of one, without the content of anything; size and digest are left."""
    if isinstance(value, Mapping):
        return {key: _redact_field(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_document(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def _redact_field(key: str, value: Any) -> Any:
    if key in _CONTENT_KEYS and isinstance(value, str):
        return _digest(value)
    if key in _SETTINGS_KEYS and not isinstance(value, str | None):
        return _REDACTED
    return redact_document(value)


def _digest(content: str) -> str:
    data = content.encode("utf-8", "surrogatepass")
    return f"<{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}>"
