"""The arithmetic of one slice on one GPU."""

from __future__ import annotations

import msgspec

from shared.model.gpu import ISOLATION_OF, ISOLATION_RANK, Isolation, Strategy
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI, format_mib

SHARED_STRATEGIES: tuple[Strategy, ...] = ("driver", "interposer", "time_slice", "mps", "advisory")
"""For a part of a GPU, the strongest promise first."""


class GpuRoom(msgspec.Struct):
    """One GPU as it stands: what it is, and what is left. `column` is its place among its node's GPUs."""

    uuid: str
    column: int
    index: int
    model: str
    total_mib: int
    free_mib: int
    free_milli: int
    containers: int
    usable: bool
    why_unusable: str = ""

    def copy(self) -> GpuRoom:
        return GpuRoom(self.uuid, self.column, self.index, self.model, self.total_mib, self.free_mib, self.free_milli, self.containers, self.usable, self.why_unusable)

    def take(self, memory_mib: int, compute_milli: int) -> None:
        self.free_mib -= memory_mib
        self.free_milli -= compute_milli
        self.containers += 1


def share_on(ask: GpuAsk, total_mib: int) -> tuple[int, int]:
    """(memory_mib, compute_milli) that `ask` takes of a GPU with this much memory.

    A fraction of the memory is rounded down, so that as many equal fractions fit as the fraction says.
    """
    if ask.whole:
        return total_mib, WHOLE_GPU_MILLI
    if ask.memory_follows:
        return total_mib * ask.compute_milli // WHOLE_GPU_MILLI, ask.compute_milli
    return ask.memory_mib, ask.compute_milli


def fits(ask: GpuAsk, gpu: GpuRoom) -> bool:
    if not gpu.usable:
        return False
    memory_mib, compute_milli = share_on(ask, gpu.total_mib)
    if ask.whole:
        return gpu.containers == 0 and gpu.free_mib == gpu.total_mib and gpu.free_milli == WHOLE_GPU_MILLI
    return gpu.free_mib >= memory_mib and gpu.free_milli >= compute_milli


def missing(ask: GpuAsk, gpu: GpuRoom) -> str:
    """What keeps `ask` off this GPU, for people; empty where it fits."""
    if fits(ask, gpu):
        return ""
    if not gpu.usable:
        return gpu.why_unusable
    memory_mib, compute_milli = share_on(ask, gpu.total_mib)
    if ask.whole:
        return f"needs the whole GPU, {gpu.containers} container(s) are on it" if gpu.containers else "needs the whole GPU, part of it is taken"
    lacks = []
    if gpu.free_mib < memory_mib:
        lacks.append(f"needs {format_mib(memory_mib)}, {format_mib(max(0, gpu.free_mib))} free of {format_mib(gpu.total_mib)}")
    if gpu.free_milli < compute_milli:
        lacks.append(f"needs {compute_milli / 10:g} % compute, {max(0, gpu.free_milli) / 10:g} % free")
    return "; ".join(lacks)


def strategy_for(ask: GpuAsk, isolation: Isolation, offered: tuple[Strategy, ...]) -> Strategy | None:
    """How this ask is shared on a node that offers these strategies, or None where none keeps the promise asked for.

    A whole GPU is exclusive. A part takes the strongest strategy that the node has proven.
    """
    if ask.whole:
        return "exclusive" if "exclusive" in offered else None
    for strategy in SHARED_STRATEGIES:
        if strategy in offered and ISOLATION_RANK[ISOLATION_OF[strategy]] >= ISOLATION_RANK[isolation]:
            return strategy
    return None
