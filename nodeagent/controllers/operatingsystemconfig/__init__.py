"""Make the machine match its OperatingSystemConfig."""
