"""Our version, and the Gardener version that this build speaks.

The second one is the name of the configuration file, `config-<version>.yaml`: it must equal the version of the gardenlet
that rendered the OperatingSystemConfig (contract 1.3).
"""

VERSION = "v0.1.0"
GARDENER_VERSION = "v1.150.0"
