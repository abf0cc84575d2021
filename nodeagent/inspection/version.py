"""`version`: ours, and the Gardener version that this build speaks (contract 1.3)."""

import platform
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from nodeagent.inspection.document import document
from nodeagent.inspection.output import Style
from nodeagent.version import GARDENER_VERSION, VERSION


@document
class Version:
    """What this program is."""

    program: Annotated[str, Field(description="Name of the program.")] = "gardener-node-agent"
    version: Annotated[str, Field(description="Our version.")] = VERSION
    gardener_version: Annotated[
        str, Field(description="Gardener version; the configuration file is config-<this>.yaml.")
    ] = GARDENER_VERSION
    python_version: Annotated[str, Field(description="Version of the interpreter inside.")]
    platform: Annotated[str, Field(description="Operating system and architecture.")]


def gather() -> Version:
    """Return the versions of this program."""
    return Version(
        python_version=platform.python_version(),
        platform=f"{platform.system().lower()}/{platform.machine()}",
    )


def lines(found: Version, _style: Style) -> Iterator[str]:
    """Yield the text: as `--version` prints it, and then the rest."""
    yield f"{found.program} {found.gardener_version} (gardener-agents {found.version})"
    yield f"python {found.python_version}, {found.platform}"
