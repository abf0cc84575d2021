"""Base of the models of gardenlet's configuration: what counts as absent.

A key that is absent or null has its default. Where Go has no pointer, the zero value counts as absent, too: those fields are named
in `zero_is_unset`. A configuration that another gardenlet renders relies on the difference: 0 workers is not the default.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import model_validator

from agents.core.config import ConfigModel

_ZEROS = ("", 0, "0", "0s", "0m", "0h", "0m0s", "0h0m0s")


class GardenletModel(ConfigModel):
    """Null is absent; so is zero for some fields."""

    zero_is_unset: ClassVar[frozenset[str]] = frozenset()
    """Keys whose zero value is their absence."""

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {
            key: item
            for key, item in value.items()
            if item is not None and not (key in cls.zero_is_unset and item is not False and item in _ZEROS)
        }
