"""A graph of lines as one SVG file, readable on light and on dark pages: it brings its own background."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dashboards import Series

WIDTH, HEIGHT = 720, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 36, 28
_LEGEND_LINE = 17
_MOST_SERIES = 8
_RED = 1
_LIGHT = ("#2a6fdb", "#d1495b", "#2f8f4e", "#a15fc4", "#b8730a", "#178a94", "#7a6a58", "#c2418c")
_DARK = ("#6ea8ff", "#ff8a94", "#6fd08c", "#cf9cf0", "#f0b254", "#5fd0da", "#c9b8a3", "#f58cc6")
_BYTES = ("B", "KiB", "MiB", "GiB")


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: a moment in seconds since the epoch, and what it was."""

    moment: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn.

    Attributes:
        title: above the lines.
        unit: of the values, one of Grafana's: s, bytes, ops, reqps, percentunit, short, none.
        start: left end of the axis of time, seconds since the epoch.
        end: right end.
        step: how far apart points are; where one is missing the line is broken.
        series: the lines; of more than eight those with the highest values are drawn, and of these not those that are always zero.
        marks: vertical lines.
    """

    title: str
    unit: str
    start: float
    end: float
    step: float
    series: Sequence[Series]
    marks: Sequence[Mark] = ()

    def svg(self) -> str:
        """Return the picture."""
        telling = [one for one in self.series if _highest(one) > 0] or self.series
        drawn = sorted(telling, key=_highest, reverse=True)[:_MOST_SERIES]
        drawn.sort(key=lambda one: one.name)
        colours = _colours(drawn)
        ticks = _ticks(max(map(_highest, drawn), default=1.0))
        parts = [*self._frame(ticks), *self._marks()]
        for colour, one in zip(colours, drawn, strict=True):
            parts.append(f'<path class="l c{colour}" d="{self._path(one, ticks[-1])}"/>')
        legend, height = self._legend([one.name for one in drawn], colours, more=len(telling) - len(drawn))
        size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>\n'
        return f"{head}{_style()}" + "\n".join([*parts, *legend]) + "\n</svg>\n"

    def _x(self, moment: float) -> float:
        return _LEFT + (moment - self.start) / max(self.end - self.start, 1e-9) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float, highest: float) -> float:
        return HEIGHT - _BOTTOM - max(value, 0.0) / highest * (HEIGHT - _TOP - _BOTTOM)

    def _frame(self, ticks: Sequence[float]) -> Iterator[str]:
        yield f'<rect class="b" width="{WIDTH}" height="100%" rx="6"/>'
        yield f'<text class="h" x="14" y="22">{escape(self.title)}</text>'
        for value in ticks:
            y = self._y(value, ticks[-1])
            yield f'<path class="g" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
            yield f'<text class="e" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(formatted(value, self.unit, ticks[-1]))}</text>'
        for seconds in _ticks(self.end - self.start):
            x = self._x(self.start + seconds)
            if x <= WIDTH - _RIGHT + 1:
                text = f"{int(seconds) // 60}:{int(seconds) % 60:02}"
                yield f'<text class="m" x="{x:.1f}" y="{HEIGHT - 9}">{text}</text>'

    def _marks(self) -> Iterator[str]:
        """Yield the vertical lines; a label that would run into the one before it goes below that."""
        row, taken = 0, -math.inf
        for mark in sorted(self.marks, key=lambda mark: mark.moment):
            if self.start <= mark.moment <= self.end:
                x, width = self._x(mark.moment), 6.2 * len(mark.label)
                before = x + 4 + width > WIDTH - _RIGHT
                row = row + 1 if (x - 4 - width if before else x) < taken else 0
                taken = x if before else x + 4 + width
                yield f'<path class="k" d="M{x:.1f} {_TOP - 4}V{HEIGHT - _BOTTOM}"/>'
                place = f'class="n{" e" if before else ""}" x="{x - 4 if before else x + 4:.1f}"'
                yield f'<text {place} y="{_TOP + 6 + 13 * row}">{escape(mark.label)}</text>'

    def _path(self, series: Series, highest: float) -> str:
        parts, before = [], -math.inf
        for moment, value in series.points:
            command = "M" if moment - before > 1.5 * self.step else "L"
            parts.append(f"{command}{self._x(moment):.1f} {self._y(value, highest):.1f}")
            before = moment
        return "".join(parts)

    def _legend(self, names: Sequence[str], colours: Sequence[int], *, more: int) -> tuple[list[str], int]:
        """Return names beside their colours below the graph, and the height of the whole picture."""
        parts, x, y = [], float(_LEFT), HEIGHT + 10
        for number, name in enumerate([*names, *([f"and {more} more"] if more else [])]):
            width = 32 + 7 * len(name)
            if x > _LEFT and x + width > WIDTH - _RIGHT:
                x, y = float(_LEFT), y + _LEGEND_LINE
            if number < len(names):
                parts.append(f'<path class="l c{colours[number]}" d="M{x:.1f} {y - 4}h14"/>')
            parts.append(f'<text x="{x + 19:.1f}" y="{y}">{escape(name)}</text>')
            x += width
        return parts, y + 10


def _highest(series: Series) -> float:
    return max(value for _, value in series.points)


def _colours(drawn: Sequence[Series]) -> list[int]:
    """Return a colour for each; red is for what went wrong, as long as there are others."""
    others = iter([*(number for number in range(_MOST_SERIES) if number != _RED), _RED])
    red = next((one for one in drawn if re.search("error|failed|left|suppressed", one.name)), None)
    return [_RED if one is red else next(others) for one in drawn]


def formatted(value: float, unit: str, highest: float) -> str:
    """Return a value as a person reads it; all ticks of an axis are in the unit that its highest needs."""
    if unit == "bytes":
        power = min(int(math.log(max(highest, 1), 1024)), len(_BYTES) - 1)
        return f"{value / 1024**power:.3g} {_BYTES[power]}"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            if highest >= 2 * size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s" if highest >= 1 else f"{value * 1000:.3g} ms"
    return f"{value:.3g}{'/s' if unit in ('ops', 'reqps') else ''}"


def _ticks(highest: float) -> list[float]:
    """Return round numbers from 0 on, the last of which is not below the highest value."""
    highest = highest if highest > 0 else 1.0
    size = 10 ** math.floor(math.log10(highest / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= highest)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def _style() -> str:
    def colours(text: str, page: str, grid: str, palette: Sequence[str]) -> str:
        lines = "".join(f".c{number}{{stroke:{colour}}}" for number, colour in enumerate(palette))
        return f"text{{fill:{text}}}.b{{fill:{page}}}.g{{stroke:{grid}}}.k{{stroke:{text}}}{lines}"

    fixed = (
        "text{font:12px system-ui,sans-serif}.h{font-weight:600;font-size:14px}.e{text-anchor:end}.m{text-anchor:middle}"
        ".n{font-size:11px}.l{fill:none;stroke-width:2;stroke-linejoin:round}.k{stroke-dasharray:3 3;stroke-width:1}"
    )
    dark = colours("#d4d8de", "#1b1f24", "#343a42", _DARK)
    light = colours("#3b4149", "#ffffff", "#e3e6ea", _LIGHT)
    return f"<style>{fixed}{light}@media(prefers-color-scheme:dark){{{dark}}}</style>\n"
