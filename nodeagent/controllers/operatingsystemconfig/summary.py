"""What failed, in as many events as it takes to name every item."""

from collections.abc import Mapping

_MOST_BYTES = 1000
"""Of one note; the API server takes 1024."""
_LONGEST_CAUSE = 200
_MOST_NOTES = 8


def notes(failed: Mapping[str, str]) -> list[str]:
    """Return notes that name each item with its cause; what is too much for eight of them is counted.

    Args:
        failed: cause by item, as operators read both.
    """
    heading = f"{len(failed)} items could not be applied: "
    packed: list[list[str]] = [[]]
    room = left = _MOST_BYTES - len(heading) - len("; and 1000000 more, see the status")
    for name, cause in failed.items():
        text = _cut(f"{name}: {_cut(cause, _LONGEST_CAUSE)}", room - 2)
        size = len(text.encode()) + 2
        if size > left:
            packed.append([])
            left = room
        packed[-1].append(text)
        left -= size
    more = sum(len(texts) for texts in packed[_MOST_NOTES:])
    found = [heading + "; ".join(texts) for texts in packed[:_MOST_NOTES]]
    if more:
        found[-1] += f"; and {more} more, see the status"
    return found


def _cut(text: str, most: int) -> str:
    """Return a text of at most so many bytes."""
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "..."
