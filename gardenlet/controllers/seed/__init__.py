"""The Seed that we serve."""
