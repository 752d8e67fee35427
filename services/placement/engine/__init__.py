"""Cached rows of feasible nodes and scores, by pod shape."""
