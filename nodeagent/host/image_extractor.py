"""Files out of container images (contract 6.16).

Source: gardener pkg/nodeagent/registry/containerd_extractor.go; deviations W8, W23 and W33 of contract section 9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.core.errors import AgentError


@dataclass(frozen=True, slots=True)
class Extraction:
    """One file to be copied out of an image.

    Attributes:
        source: path in the image, for example `/gardener-node-agent`.
        target: absolute path on the machine, for example `/opt/bin/gardener-node-agent`.
        mode: permission bits.
    """

    source: str
    target: str
    mode: int


class ImageExtractor(Protocol):
    """Copies files out of container images; calls for different images may run at the same time."""

    async def extract(self, image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        """Copy files out of one image, which is pulled once.

        Args:
            image: reference with registry; with a digest or a tag.
            wanted: what to copy; each target once.

        Returns:
            By target: whether bytes on disk changed, or why it failed. A pull that fails is the error of every target.
            Never raises but for cancellation.
        """
        ...

    async def clean(self) -> None:
        """Remove mounts, snapshots, leases, image records and temporary directories that a killed run left.

        To be called once after a start, before the first `extract`. Never raises but for cancellation: what cannot be
        removed now is removed the next time.
        """
        ...
