"""Notebooks that share GPUs: how many of them on one, and how long a cell waits. See `__main__`."""
