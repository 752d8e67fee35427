"""NATS behind a narrow port: `port.Bus` is all that services see; `nats_bus` is the one implementation.

`embedded` runs a NATS server of our own from the PyPI wheel, for `kerf up`, the demo and tests.
"""
