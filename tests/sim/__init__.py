"""Deterministic simulation: all cores in one process under a simulated clock, network, API server and log.

Faults are drawn from a seed. The properties P1 to P4 are checked after every step, P5 and P6 when the faults have
stopped. A seed replays exactly: `python -m tests.sim --seed 17 --story`.
"""
