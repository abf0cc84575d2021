"""Work as a graph of tasks: what depends on what, run as wide as possible, with every error and the progress on the way.

Knows nothing of clusters. Source: contract controllers 2.4 and 2.9.
"""
