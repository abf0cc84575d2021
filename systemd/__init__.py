"""systemd: jobs and unit state over D-Bus, unit files, and readiness notification."""
