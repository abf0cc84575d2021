"""What every room stands on: errors, clock, logging, files, shutdown, configuration, durations, YAML."""
