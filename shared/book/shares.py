"""The arithmetic of one slice on one GPU."""

from __future__ import annotations

from copy import copy

import msgspec

from shared.book.mig import MigRoom, names_of, serving_bits
from shared.model.request import GpuAsk
from shared.model.strategies import StrategyName, by_preference
from shared.model.strategy import Isolation
from shared.model.units import WHOLE_GPU_MILLI, format_mib


class GpuRoom(msgspec.Struct):
    """One GPU: what it is, and what is free. `column` is its index among its node's GPUs."""

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
    mig: MigRoom | None = None
    """Of a GPU in MIG mode. What is free is then free in instances that it can give, whether or not they still fit."""
    kept: int = 0
    """Of `containers`: those that are not there, and for which a plan keeps a place."""

    @property
    def idle(self) -> bool:
        """Usable, and nothing at all is on it."""
        return (
            self.usable
            and self.containers == 0
            and self.free_mib == self.total_mib
            and self.free_milli == WHOLE_GPU_MILLI
        )

    def copy(self) -> GpuRoom:
        return copy(self) if self.mig is None else msgspec.structs.replace(self, mig=copy(self.mig))

    def take(self, memory_mib: int, compute_milli: int, *, kept: bool = False) -> None:
        self.free_mib -= memory_mib
        self.free_milli -= compute_milli
        self.containers += 1
        self.kept += kept


def share_on(ask: GpuAsk, total_mib: int) -> tuple[int, int]:
    """(memory_mib, compute_milli) that `ask` takes of a GPU with this much memory.

    A fraction of the memory is rounded down, so that as many equal fractions fit as the fraction says.
    """
    if ask.whole:
        return total_mib, WHOLE_GPU_MILLI
    if ask.memory_milli:
        return total_mib * ask.memory_milli // WHOLE_GPU_MILLI, ask.compute_milli
    return ask.memory_mib, ask.compute_milli


def limits_on(ask: GpuAsk, total_mib: int) -> tuple[int, int]:
    """(memory_limit_mib, compute_limit_milli) of `ask` on a GPU with this much memory; 0 where it may use no more than
    it takes. A limit beyond the GPU is all of it: a limit promises nothing, so it keeps a pod off no GPU."""
    memory_mib, compute_milli = share_on(ask, total_mib)
    memory_limit_mib = min(total_mib, ask.memory_limit_mib or total_mib * ask.memory_limit_milli // WHOLE_GPU_MILLI)
    return (
        memory_limit_mib if memory_limit_mib > memory_mib else 0,
        ask.compute_limit_milli if ask.compute_limit_milli > compute_milli else 0,
    )


def fits(ask: GpuAsk, gpu: GpuRoom) -> bool:
    if not gpu.usable:
        return False
    if gpu.mig is not None or ask.profile:
        return gpu.mig is not None and bool(gpu.mig.bits & serving_bits(gpu.mig.geometry, ask, gpu.total_mib))
    memory_mib, compute_milli = share_on(ask, gpu.total_mib)
    if ask.whole:
        return gpu.idle
    return gpu.free_mib >= memory_mib and gpu.free_milli >= compute_milli


def missing(ask: GpuAsk, gpu: GpuRoom) -> str:
    """What keeps `ask` off this GPU, for people; empty where it fits."""
    if fits(ask, gpu):
        return ""
    if not gpu.usable:
        return gpu.why_unusable
    return _lacks(ask, gpu) + ("; a place on it is kept for a plan" if gpu.kept else "")


def _lacks(ask: GpuAsk, gpu: GpuRoom) -> str:
    if gpu.mig is not None or ask.profile:
        return _no_instance(ask, gpu)
    memory_mib, compute_milli = share_on(ask, gpu.total_mib)
    if ask.whole:
        there = gpu.containers - gpu.kept
        return (
            f"needs the whole GPU, {there} container(s) are on it"
            if there
            else "needs the whole GPU, part of it is taken"
        )
    lacks = []
    if gpu.free_mib < memory_mib:
        lacks.append(
            f"needs {format_mib(memory_mib, up=True)}, {format_mib(max(0, gpu.free_mib))} free of "
            f"{format_mib(gpu.total_mib)}"
        )
    if gpu.free_milli < compute_milli:
        lacks.append(f"needs {compute_milli / 10:g} % compute, {max(0, gpu.free_milli) / 10:g} % free")
    return "; ".join(lacks)


def instance_words(ask: GpuAsk) -> str:
    """The MIG instance that would serve an ask, for people."""
    if ask.profile:
        return f"a MIG instance {ask.profile}"
    if ask.is_fraction:
        return f"a MIG instance of {ask.compute_milli / 10:g} % of it"
    size = f"{ask.memory_milli / 10:g} % of its memory" if ask.memory_milli else format_mib(ask.memory_mib)
    return f"a MIG instance of {size}" + (f" and {ask.compute_milli / 10:g} % compute" if ask.compute_milli else "")


def _no_instance(ask: GpuAsk, gpu: GpuRoom) -> str:
    if gpu.mig is None:
        return "it is not in MIG mode"
    if ask.whole or (ask.count > 1 and not ask.profile):
        return "it is in MIG mode, and gives only single instances"
    if ask.bursts:
        return "it is in MIG mode, and an instance has no memory beyond its own; the pod has a limit above its request"
    if not gpu.mig.offers & serving_bits(gpu.mig.geometry, ask, gpu.total_mib):
        return f"needs {instance_words(ask)}, it offers {', '.join(names_of(gpu.mig.offers)) or 'none'}"
    return f"needs {instance_words(ask)}, free are {', '.join(names_of(gpu.mig.bits)) or 'none'}"


def suspendable(isolation: Isolation, offered: tuple[StrategyName, ...]) -> StrategyName | None:
    """The strategy by which a whole GPU is given to a pod that takes turns: one whose slices can be paused and
    checkpointed, as `exclusive` cannot. None if the node offers none that keeps the isolation."""
    return next(
        (
            strategy.name
            for strategy in by_preference(False, True, isolation)
            if strategy.name in offered and strategy.limits_compute and strategy.checkpoints and not strategy.concurrent
        ),
        None,
    )


def strategy_for(
    ask: GpuAsk, isolation: Isolation, offered: tuple[StrategyName, ...], *, opportunistic: bool = False
) -> StrategyName | None:
    """How this request is shared on a node that offers these strategies, or None if none keeps the requested isolation.

    A whole GPU is exclusive. A part takes the strongest strategy that the node has proven and the pod has agreed to; of
    equally strong ones, time slicing if no compute is requested or the pod is opportunistic. What a part may use beyond
    its request is taken back while it runs, which only some strategies can.
    """
    for strategy in by_preference(ask.whole, bool(ask.compute_milli) and not opportunistic, isolation):
        if strategy.name not in offered or (strategy.concurrent and (ask.count > 1 or ask.bursts)):
            continue
        if strategy.limits_memory or not ask.bursts:
            return strategy.name
    return None
