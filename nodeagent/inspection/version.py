"""`version`: ours, and the Gardener version, which is in the name of the configuration file (contract 1.3)."""

from agents.inspection import version
from agents.inspection.version import Version
from nodeagent.version import GARDENER_VERSION, VERSION


def gather() -> Version:
    """Return the versions of this program."""
    return version.gather("gardener-node-agent", version=VERSION, gardener_version=GARDENER_VERSION)
