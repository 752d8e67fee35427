"""Every message on the bus. `schemas/` is generated from here; `registry.CHANNELS` says which subject carries which.

All messages are JSON. Public events wear a CloudEvents envelope (`envelope.py`); what services say among themselves
does not, for it is on the hot path. Consumers ignore fields they do not know; within a version no field is taken away
or newly required.
"""
