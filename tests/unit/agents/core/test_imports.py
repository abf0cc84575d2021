"""What is replaced is found only in the block, and what was loaded before stays."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from agents.core.imports import replaced


def test_a_module_is_replaced_or_missing_in_the_block_only() -> None:
    """Inside, one import fails and one gets the stand-in; afterwards both are real, also after an error in the block."""
    code = (
        "import importlib, types\nfrom agents.core.imports import replaced\nstand_in = types.ModuleType('colorsys')\n"
        "try:\n"
        "    with replaced({'colorsys': stand_in, 'chunk': None}):\n"
        "        assert importlib.import_module('colorsys') is stand_in\n"
        "        importlib.import_module('chunk')\n"
        "except ImportError:\n"
        "    print(importlib.import_module('colorsys').__file__, importlib.import_module('chunk').__file__)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0].endswith("colorsys.py")
    assert done.stdout.split()[1].endswith("chunk.py")


def test_what_is_loaded_stays() -> None:
    """A module that is loaded is the same inside and after; one that does not exist is not invented."""
    with replaced({"json": ModuleType("json"), "this_is_nowhere": None}):
        assert importlib.import_module("json").__file__ is not None
        with pytest.raises(ImportError):
            importlib.import_module("this_is_nowhere")
    assert importlib.import_module("json").__file__ is not None
    assert "this_is_nowhere" not in sys.modules


def test_pydantic_works_without_what_is_installed_around_it() -> None:
    """Models and time zones work; what it would have asked is not loaded, and can be imported afterwards."""
    code = (
        "import sys\nimport agents.core\nfrom zoneinfo import ZoneInfo\nfrom pydantic import BaseModel\n"
        "loaded = [n for n in ('importlib.metadata', 'sysconfig', 'zipfile') if n in sys.modules]\n"
        "class Zone(BaseModel):\n    zone: ZoneInfo\n"
        "import importlib.metadata, sysconfig\n"
        "print(loaded, Zone(zone='Europe/Berlin').zone.key, importlib.metadata.version('pydantic')[0], "
        "sysconfig.get_config_var('TZPATH') != '')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "Europe/Berlin", "2", "True"]
