"""What `version` says: ours, and the Gardener version that a build speaks (contract 1.3)."""

import platform
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from agents.inspection.document import document
from agents.inspection.output import Style


@document
class Version:
    """What a program is."""

    program: Annotated[str, Field(description="Name of the program.")]
    version: Annotated[str, Field(description="Our version.")]
    gardener_version: Annotated[str, Field(description="The Gardener version that it speaks.")]
    python_version: Annotated[str, Field(description="Version of the interpreter inside.")]
    platform: Annotated[str, Field(description="Operating system and architecture.")]


def gather(program: str, *, version: str, gardener_version: str) -> Version:
    """Return the versions of this program."""
    return Version(
        program=program,
        version=version,
        gardener_version=gardener_version,
        python_version=platform.python_version(),
        platform=f"{platform.system().lower()}/{platform.machine()}",
    )


def lines(found: Version, _style: Style) -> Iterator[str]:
    """Yield the text: as `--version` prints it, and then the rest."""
    yield f"{found.program} {found.gardener_version} (gardener-agents {found.version})"
    yield f"python {found.python_version}, {found.platform}"
