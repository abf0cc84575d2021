"""What every room stands on: errors, clock, logging, files, shutdown, configuration, durations, YAML."""

from agents.core.imports import import_pydantic

import_pydantic()
