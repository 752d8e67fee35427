"""The programs of the mix: what each declares of itself, and what has been measured of it.

Deep learning: the six trainings of Gavel (Narayanan et al., OSDI 2020) whose repository has throughputs alone and in
pairs on one V100 (stanford-futuredata/gavel, scheduler/combined_throughputs.json). What two of one kind make of the GPU
together says how much one of them needs of it: `load` is half the inverse of the relative throughput of a pair of its
own. ResNet-50 has no such pair; beside each other program it lost nothing, and cost the other as much as A3C.

HPC: classes of programs of which it is published how they fare beside each other. GROMACS on a small system reaches up
to 1.8 times the throughput by several simulations a GPU with MPS (NVIDIA, Maximizing GROMACS Throughput with Multiple
Simulations per GPU Using MPS and MIG, 2021). Pairs gain up to 30 % by MPS in favourable cases, and lose about 30 %
where both are bound by memory (arXiv 2604.22430).

Calls and transfers for API forwarding are orders of magnitude: rCUDA names less than 4 % for programs with few calls
(rcuda.net), and hosts that launch kernels of some 10 us make tens of thousands of calls a second.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Class = Literal["light", "compute", "memory", "host"]


class App(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Class
    load: float
    """The part of a V100 that it needs, as measured."""
    busy: float
    """The part of the time in which a kernel of it runs on a V100."""
    bandwidth: float
    """The part of the memory bandwidth that its kernels use."""
    memory_mib: int
    cpus: int
    request_us: int
    calls_per_s: int
    copy_mib_per_s: float
    weight: int
    """How many of the mix."""


APPS: tuple[App, ...] = (
    App(name="Transformer", kind="compute", load=0.69, busy=0.90, bandwidth=0.35, memory_mib=6_000, cpus=4,
        request_us=20_000, calls_per_s=9_000, copy_mib_per_s=5, weight=10),
    App(name="CycleGAN", kind="compute", load=0.83, busy=0.95, bandwidth=0.45, memory_mib=7_000, cpus=4,
        request_us=100_000, calls_per_s=6_000, copy_mib_per_s=10, weight=10),
    App(name="ResNet-50", kind="host", load=0.55, busy=0.60, bandwidth=0.45, memory_mib=11_000, cpus=10,
        request_us=150_000, calls_per_s=3_000, copy_mib_per_s=120, weight=10),
    App(name="LM", kind="light", load=0.715, busy=0.85, bandwidth=0.40, memory_mib=4_000, cpus=4,
        request_us=8_000, calls_per_s=15_000, copy_mib_per_s=1, weight=10),
    App(name="ResNet-18", kind="compute", load=0.765, busy=0.85, bandwidth=0.50, memory_mib=4_000, cpus=6,
        request_us=20_000, calls_per_s=8_000, copy_mib_per_s=30, weight=10),
    App(name="A3C", kind="host", load=0.53, busy=0.50, bandwidth=0.10, memory_mib=7_000, cpus=8,
        request_us=2_000, calls_per_s=12_000, copy_mib_per_s=20, weight=10),
    App(name="GROMACS-small", kind="light", load=0.55, busy=0.75, bandwidth=0.15, memory_mib=2_000, cpus=6,
        request_us=400, calls_per_s=25_000, copy_mib_per_s=40, weight=12),
    App(name="GROMACS-large", kind="compute", load=0.80, busy=0.90, bandwidth=0.30, memory_mib=4_000, cpus=8,
        request_us=3_000, calls_per_s=6_000, copy_mib_per_s=80, weight=8),
    App(name="HPL", kind="compute", load=0.98, busy=0.98, bandwidth=0.30, memory_mib=13_000, cpus=4,
        request_us=500_000, calls_per_s=200, copy_mib_per_s=60, weight=7),
    App(name="HPCG", kind="memory", load=0.95, busy=0.95, bandwidth=0.90, memory_mib=10_000, cpus=4,
        request_us=5_000, calls_per_s=2_000, copy_mib_per_s=5, weight=7),
    App(name="CFD", kind="memory", load=0.85, busy=0.85, bandwidth=0.80, memory_mib=8_000, cpus=6,
        request_us=10_000, calls_per_s=1_500, copy_mib_per_s=10, weight=6),
)  # fmt: skip
BY_NAME = {app.name: app for app in APPS}

PAIRS: dict[tuple[str, str], tuple[float, float]] = {
    ("Transformer", "Transformer"): (0.727, 0.725),
    ("Transformer", "CycleGAN"): (0.543, 0.785),
    ("Transformer", "ResNet-50"): (0.798, 1.0),
    ("Transformer", "LM"): (0.807, 0.732),
    ("Transformer", "ResNet-18"): (0.687, 0.716),
    ("Transformer", "A3C"): (0.825, 0.933),
    ("CycleGAN", "CycleGAN"): (0.600, 0.601),
    ("CycleGAN", "ResNet-50"): (0.778, 1.0),
    ("CycleGAN", "LM"): (0.830, 0.480),
    ("CycleGAN", "ResNet-18"): (0.736, 0.521),
    ("CycleGAN", "A3C"): (0.815, 0.724),
    ("ResNet-50", "LM"): (1.0, 0.785),
    ("ResNet-50", "ResNet-18"): (1.0, 0.801),
    ("ResNet-50", "A3C"): (1.0, 0.844),
    ("LM", "LM"): (0.698, 0.699),
    ("LM", "ResNet-18"): (0.662, 0.764),
    ("LM", "A3C"): (0.789, 0.868),
    ("ResNet-18", "ResNet-18"): (0.637, 0.671),
    ("ResNet-18", "A3C"): (0.776, 0.903),
    ("A3C", "A3C"): (0.940, 0.931),
}
"""Throughput of each of two on one V100, of its throughput alone (capped at 1): measured by Gavel."""

CLASSES: dict[tuple[Class, Class], tuple[float, float]] = {
    ("light", "light"): (0.75, 0.75),
    ("light", "compute"): (0.60, 0.72),
    ("light", "memory"): (0.62, 0.70),
    ("light", "host"): (0.78, 0.90),
    ("compute", "compute"): (0.50, 0.50),
    ("compute", "memory"): (0.65, 0.65),
    ("compute", "host"): (0.78, 0.90),
    ("memory", "memory"): (0.35, 0.35),
    ("memory", "host"): (0.76, 0.86),
    ("host", "host"): (0.94, 0.93),
}
"""The same for a pair with a program of HPC, by class, after the sources above: two of GROMACS-small make 1.5 times of
one, a favourable pair 1.3 times, two that are bound by memory 0.7 times. A host-bound program fares as A3C does."""


def beside(one: App, other: App) -> float:
    """The throughput of `one` beside `other` under MPS, of its throughput alone."""
    for table, mine, theirs in ((PAIRS, one.name, other.name), (CLASSES, one.kind, other.kind)):
        if (mine, theirs) in table:
            return table[mine, theirs][0]  # type: ignore[index]
        if (theirs, mine) in table:
            return table[theirs, mine][1]  # type: ignore[index]
    raise KeyError((one.name, other.name))
