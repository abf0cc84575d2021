"""Where in a YAML text the field with a JSON path stands, for people who have to mend it."""

import re
from dataclasses import dataclass

import yaml

from agents.core.yamlio import compose_yaml

_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column, both counted from 1."""

    line: int
    column: int


class Places:
    """The places in one text.

    Args:
        content: a text that `load_yaml` accepts.
    """

    def __init__(self, content: bytes) -> None:
        self._root = compose_yaml(content)

    def find(self, path: str) -> Place | None:
        """Return the place of a field such as `spec.files[3].path`; of what it would be in, where it is missing.

        Returns:
            None if the path begins with nothing of the text.
        """
        node, found, rest = self._root, None, path
        while node is not None and rest:
            step = _step(node, rest)
            if step is None:
                break
            marked, node, rest = step
            found = Place(marked.start_mark.line + 1, marked.start_mark.column + 1)
        return found


def _step(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node, str] | None:
    """Return the node that shows where the first part of a path is, its value, and the rest of the path."""
    if isinstance(node, yaml.SequenceNode):
        index = _INDEX.match(path)
        if index is None or int(index[1]) >= len(node.value):
            return None
        item: yaml.Node = node.value[int(index[1])]
        return item, item, path[index.end() :]
    if not isinstance(node, yaml.MappingNode):
        return None
    path = path.removeprefix(".")
    # A key may hold dots, so the longest one that fits is meant.
    fitting = [(key, value) for key, value in node.value if _fits(str(key.value), path)]
    if not fitting:
        return None
    key, value = max(fitting, key=lambda pair: len(str(pair[0].value)))
    return key, value, path[len(str(key.value)) :]


def _fits(key: str, path: str) -> bool:
    return bool(key) and path.startswith(key) and path[len(key) : len(key) + 1] in ("", ".", "[")
