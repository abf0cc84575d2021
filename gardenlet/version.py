"""Our version, and the Gardener version that this build speaks: it goes into the Seed's status (contract core 1.4)."""

VERSION = "v0.1.0"
GARDENER_VERSION = "v1.150.0"
