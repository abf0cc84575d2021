"""What is measured, what the Go agent was measured at, and what we aim for."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Attributes:
        name: what was measured.
        value: ours.
        unit: of the value.
        go: the Go agent on such a machine, as text; empty where it was not measured.
        target: not above this; None for figures that only inform.
        note: how the target came about, or what the value consists of.
    """

    name: str
    value: float
    unit: str
    go: str = ""
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Return `met`, `missed`, or nothing."""
        if self.target is None:
            return ""
        return "met" if self.value <= self.target else "missed"


def render(figures: Sequence[Figure]) -> str:
    """Return a table for people."""
    rows = [("figure", "ours", "target", "Go", "", "note")]
    for figure in figures:
        target = "" if figure.target is None else f"{_rounded(figure.target)} {figure.unit}"
        rows.append(
            (figure.name, f"{_rounded(figure.value)} {figure.unit}", target, figure.go, figure.verdict, figure.note)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def save(figures: Sequence[Figure], path: Path) -> None:
    """Write all rows as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
    path.write_text(json.dumps(rows, indent=2) + "\n")
