"""What a program of a workload tells, and what the harness reads beside it."""

from __future__ import annotations

import msgspec


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """A point at which the program waited, and what the account and the driver said then."""

    at: str
    processes: int = 0
    """Processes of the program that have a context."""
    held: int | None = None
    """Bytes that the program has allocated on its first GPU, without contexts. None: the driver decides."""
    imported: int = 0
    """Bytes of `held` that two processes have open: they are charged twice."""
    shown_free: int = 0
    shown_total: int = 0
    device_bytes: tuple[int, ...] = ()
    """The driver's own figure for the container, by GPU. Empty on a GPU: NVML is sampled instead."""
    account_bytes: tuple[int, ...] = ()
    """The control block's account, by GPU. Empty without Kerf."""


Call = tuple[str, str, str, int, int]
"""Process and thread, phase, name, result, and how often."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The program's last line."""

    results: tuple[str, ...]
    timed_ns: int
    gpu_ns: int
    """GPU time of the kernels of the timed part, on the first GPU, as the program asked for it."""
    beyond_result: int
    refusal: int
    got_bytes: int
    """What the program got piece by piece until it was refused, beside what it had."""
    unexpected: int
    peak_bytes: tuple[int, ...] = ()
    p50_ns: int = 0
    p99_ns: int = 0
    workers_status: int = 0
    """Not 0: a worker ended in another way than it should."""
    calls: tuple[Call, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a program."""

    stops: tuple[Stop, ...] = ()
    result: Result | None = None
    failure: str = ""
    """Why there is no result."""
    sampled_peak_bytes: int | None = None
    """NVML's maximum of the container's processes on the first GPU; None on the fake driver, or if NVML knows none."""
    memory_bytes: int = 0
    """The slice's memory on each GPU; without Kerf the GPU's."""
    compute_milli: int = 0
    """The slice's share; 0: not limited."""
    context_bytes: int = 0
