"""One package or module for each controller; none imports another."""
