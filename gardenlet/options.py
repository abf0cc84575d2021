"""What the process was started with."""

from dataclasses import dataclass
from pathlib import Path

SELF_HOSTED_NAMESPACE = "kube-system"
"""A gardenlet in this namespace serves the self-hosted shoot that it runs in."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the environment say."""

    config: Path
    namespace: str = ""
    pod_uid: str = ""
    """Makes the leader's identity the same after a restart of the container."""

    @property
    def self_hosted(self) -> bool:
        """Return whether we serve the self-hosted shoot that we run in."""
        return self.namespace == SELF_HOSTED_NAMESPACE
