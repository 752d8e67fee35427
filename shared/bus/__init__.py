"""NATS behind a narrow interface: services use `port.Bus` alone; `nats_bus` is its one implementation.

`embedded` runs a NATS server from the PyPI wheel, for `kerf up`, the demo and tests.
"""
