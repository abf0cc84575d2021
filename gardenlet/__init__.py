"""The agent that reconciles Gardener's objects in a seed cluster."""
