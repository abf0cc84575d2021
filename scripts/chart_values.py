"""Writes the table of values into the README of gardenlet's chart: each key that has a comment in `values.yaml`, with its default.

`python scripts/chart_values.py` writes it, `--check` fails if it is not up to date.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from generated import ROOT, main

CHART = ROOT / "packaging/charts/gardenlet"
OUTPUT = CHART / "README.md"
BEGIN = "| Value | Default | Meaning |\n| --- | --- | --- |\n"
LONGEST = 60
"""Characters of a default that still fits into a table."""
_KEY = re.compile(r"^( *)([A-Za-z]\w*):")


def commented(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each key of a YAML file that has a comment right above it: its path and the comment."""
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# "):
            comment.append(stripped[2:])
        elif match := _KEY.match(line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if comment:
                yield tuple(path), " ".join(comment)
            comment = []
        else:
            comment = []


def row(path: tuple[str, ...], meaning: str, values: Any) -> str:
    """Return the row of a value."""
    for key in path:
        values = values[key]
    default = json.dumps(values)
    shown = f"`{default}`" if len(default) <= LONGEST else "see [values.yaml](values.yaml)"
    return f"| `{'.'.join(path)}` | {shown} | {meaning} |\n"


def render() -> str:
    """Return the README with the table as it has to be.

    Raises:
        SystemExit: there is no table in it.
    """
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    table = "".join(row(path, meaning, values) for path, meaning in commented(text))
    before, begin, after = OUTPUT.read_text().partition(BEGIN)
    if not begin:
        raise SystemExit(f"{OUTPUT.relative_to(ROOT)}: no table of values")
    return before + begin + table + re.sub(r"\A(?:\|.*\n)*", "", after)


if __name__ == "__main__":
    raise SystemExit(main(OUTPUT, render(), description=__doc__))
