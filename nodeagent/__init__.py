"""gardener-node-agent: makes a machine match its OperatingSystemConfig."""
