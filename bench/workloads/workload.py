"""What the harness knows of a workload. Each one is a file in `named`."""

from __future__ import annotations

import msgspec


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    does: str
    source: str
    """Where its pattern of calls is from."""
    checks: str
    """What is checked beyond `checks.py`, which is the same for all."""
    program: str
    """Its program in `programs`, without the ending."""
    rounds: int
    short_rounds: int
    """In tests."""
    memory_mib: int
    """A slice that suffices, on each of its GPUs, with the context."""
    devices: int = 1
    saturates: bool = True
    """Whether it always has work for the GPU, so that a limited slice gets all of its share."""
    max_time_factor: float = 1.25
    """How much longer than its share explains it may take. Collectives between limited GPUs also wait for each other.
    """
    max_share_error_percent: float = 4.0
    """How far it may be from its share, in percent of the GPU. Time in which the driver loads code is charged;
    changes of contexts take 1 to 2 % between two slices."""
    script: str = ""
    """The PyTorch script of the same name in `scripts`; empty: there is none."""
