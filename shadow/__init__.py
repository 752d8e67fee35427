"""Shadow mode: watches a cluster of another scheduler, and tells what Kerf would have done.

It stands above the services: it drives the cores of admission and placement, and none of them knows of it.
"""
