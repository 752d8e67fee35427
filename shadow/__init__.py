"""Shadow mode: watches a cluster that another scheduler runs, and tells what Kerf would have done with its pods.

It stands above the services: it drives the cores of admission and placement, and none of them knows of it.
"""
