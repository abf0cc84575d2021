"""`python -m tests.bench.gardenlet`: gardenlet's figures beside their targets, on the lab's garden."""
