"""Figures of the node agent on the lab, beside Gardener's and the targets: `make bench`."""
