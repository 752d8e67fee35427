"""The simulator: a cluster without Kubernetes and nodes without GPUs, for laptops, demos and tests.

It is no process of its own: the watcher and the node agent load it by name (`shared.service.load_simulator`) where
their settings say so, and use it through `shared.ports`. It imports no other service.
"""
