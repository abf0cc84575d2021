"""Gardener's kinds as far as gardenlet reads them: projections, constants of the wire, and where the kinds live in the API."""
