"""Kubernetes' quantities: `250`, `100Gi`, `500m`, `1e3`."""

import re
from fractions import Fraction

from agents.core.errors import TerminalError

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]))?")
_BINARY = {f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")}
_DECIMAL = {letter: Fraction(1000 ** (power + 1)) for power, letter in enumerate("kMGTPE")} | {
    letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", start=1)
}
_SUFFIXES = {"": Fraction(1), **_BINARY, **_DECIMAL}


class InvalidQuantity(TerminalError):
    """Text is no quantity."""


def parse_quantity(value: object) -> Fraction:
    """Return a quantity as an exact number; a plain number is one, too.

    Raises:
        InvalidQuantity: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidQuantity("not a quantity such as 250, 100Gi or 500m")
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise InvalidQuantity("not a quantity such as 250, 100Gi or 500m")
    number, exponent, suffix = match.groups()
    return Fraction(number) * _SUFFIXES[suffix or ""] * (Fraction(10) ** int(exponent[1:]) if exponent else 1)


def whole_quantity(value: object) -> int:
    """Return a quantity rounded up to an integer, as Go's `Quantity.Value` does; same errors as `parse_quantity`."""
    quantity = parse_quantity(value)
    return -(-quantity.numerator // quantity.denominator)
