"""Every message on the bus. `schemas/` is generated from here; `registry.CHANNELS` says which subject carries which.

All messages are JSON. Public events have a CloudEvents envelope (`envelope.py`); messages between services do not, for
they are on the hot path. Consumers ignore fields they do not know; within a version no field is removed or newly
required.
"""
