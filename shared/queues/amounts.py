"""Amounts that queues count: thousandths of a GPU, thousandths of a core, bytes of memory.

A share of a GPU counts by the larger of its memory part and its compute part (dominant share), so whole GPUs, slices
and MIG instances add up. Parts are rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shared.book.states import PodState
from shared.model.grant import Grant, sum_shares
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI

TotalOf = Callable[[str, str], int | None]
"""Returns the memory of a GPU in MiB by (node, uuid); None if the GPU is not known."""


class Amount(NamedTuple):
    gpu_milli: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def minus(self, other: Amount) -> Amount:
        return Amount(self[0] - other[0], self[1] - other[1], self[2] - other[2])


NOTHING = Amount()


def room_of(state: PodState, gpu_milli: int = 0) -> Amount:
    """Returns what a pod takes of its node's CPU and memory, together with `gpu_milli`."""
    return Amount(gpu_milli, state.demand.cpu_milli, state.demand.memory_bytes)


def part_of(memory_mib: int, compute_milli: int, total_mib: int) -> int:
    """Returns the part of one GPU with `total_mib` of memory that a share takes, in milli, at most 1000."""
    return min(WHOLE_GPU_MILLI, max(-(-memory_mib * WHOLE_GPU_MILLI // total_mib), compute_milli))


def gpus_of(grant: Grant, total_of: TotalOf) -> int | None:
    """Returns the GPU milli of a grant; None if one of its GPUs is not known."""
    milli = 0
    for (node, uuid), (memory_mib, compute_milli) in sum_shares((grant,)).items():
        total_mib = total_of(node, uuid)
        if not total_mib:
            return None
        milli += part_of(memory_mib, compute_milli, total_mib)
    return milli


def whole_gpus_of(grant: Grant) -> int:
    """Returns an upper bound of a grant's GPU milli: all of every GPU that it touches."""
    return WHOLE_GPU_MILLI * len(sum_shares((grant,)))


def ask_of(state: PodState, largest_mib: int) -> Amount:
    """Returns what a pending pod takes at least: a part of GPUs as large as the largest in the cluster.

    Several containers may share one GPU, so their memory parts and their compute parts are summed separately.
    """
    asks = () if state.request is None else tuple(state.request.asks.values())
    if len(asks) == 1:
        (ask,) = asks
        milli = max(ask.memory_milli, part_of(ask.memory_mib, ask.compute_milli, max(1, largest_mib)))
        return room_of(state, ask.count * milli)
    whole = sum(a.count * WHOLE_GPU_MILLI for a in asks if a.whole)
    parts = [a for a in asks if not a.whole]
    memory = sum(_memory_milli(a, largest_mib) for a in parts)
    return room_of(state, whole + max(memory, sum(a.count * a.compute_milli for a in parts)))


def _memory_milli(ask: GpuAsk, largest_mib: int) -> int:
    """Returns the memory part of an ask, rounded down, because the sum over containers is rounded once."""
    return (
        ask.count * ask.memory_milli
        if ask.memory_milli
        else ask.count * ask.memory_mib * WHOLE_GPU_MILLI // max(1, largest_mib)
    )
