"""The search for credentials in what was printed: logs, events, metrics, a test's own output.

What the lab hands out is remembered word by word; what agents and API servers generate is known by its shape. Nothing here ever repeats
what was found.
"""

import base64
import re
from collections.abc import Iterable

from tests.lab.api import Api

_EVENTS = "/apis/events.k8s.io/v1/events"
_handed_out: set[str] = set()


def _encoded(marker: str) -> str:
    """Return an expression for a marker inside Base64, wherever in its groups of three bytes it begins."""
    shifted = (base64.b64encode(b"\0" * shift + marker.encode()).decode() for shift in range(3))
    # The first characters depend on what comes before, the last ones on what comes after.
    starts = (0, 2, 3)
    return "|".join(re.escape(text[start:].rstrip("=")[:-1]) for text, start in zip(shifted, starts, strict=True))


_SHAPES = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:\\n|\s)+[A-Za-z0-9+/]{40,}"),
    "a private key in Base64": re.compile(_encoded("PRIVATE KEY-----")),
    "a token of a service account or workload": re.compile(r"\beyJ[\w-]{16,}\.eyJ[\w-]{16,}\.[\w-]+"),
    "such a token in Base64": re.compile(r"\bZXlK[A-Za-z0-9+/]{60,}"),
}


def remember(credential: str) -> str:
    """Have the search know a credential of the lab; returns it."""
    _handed_out.add(credential)
    return credential


def found_in(text: str) -> list[str]:
    """Return what kinds of credentials a text has, without repeating them."""
    kinds = [kind for kind, shape in _SHAPES.items() if shape.search(text)]
    if any(one in text or base64.b64encode(one.encode()).decode() in text for one in _handed_out):
        kinds.append("a credential that the lab handed out")
    return kinds


def found_in_all(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return what is found in texts with names, as `name: kind`."""
    return [f"{name}: {kind}" for name, text in texts for kind in found_in(text)]


def events_of(api: Api) -> tuple[str, str]:
    """Return the notes of all events of a cluster, as a text with a name."""
    return f"events of {api}", "\n".join(str(one.get("note", "")) for one in api.list(_EVENTS))
