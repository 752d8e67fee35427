"""What a policy's compiled loops see: the book's columns and one pod's ask."""

from __future__ import annotations

from typing import NamedTuple

from services.placement.jit import jit
from services.placement.policies.base import largest_ask
from shared.book.arrays import Arrays, Ints
from shared.book.states import PodState
from shared.model.mig import PROFILES
from shared.model.request import GpuAsk


class MigColumns(NamedTuple):
    cut: Ints
    used: Ints


class Columns(NamedTuple):
    """The book's arrays, by row, and by row and GPU."""

    cpu_free: Ints
    memory_free: Ints
    cpu_total: Ints
    memory_total: Ints
    node_class: Ints
    gpu_count: Ints
    gpu_kind: Ints
    gpu_free_mib: Ints
    gpu_free_milli: Ints
    gpu_total_mib: Ints
    mig: MigColumns | None
    """None where no GPU is in MIG mode: then the loops are compiled as if there were no such thing."""


class Ask(NamedTuple):
    cpu_milli: int
    memory_bytes: int
    gpus: int
    memory_mib: int
    memory_milli: int
    """Thousandths of the GPU's memory instead of memory_mib; 0: none."""
    compute_milli: int
    whole: bool
    profile: int
    """The place in PROFILES of the MIG profile that it names, or -1."""


def columns_of(arrays: Arrays) -> Columns:
    mig = MigColumns(arrays.gpu_mig_cut, arrays.gpu_mig_used) if arrays.any_mig else None
    return Columns(**{name: getattr(arrays, name) for name in Columns._fields if name != "mig"}, mig=mig)


@jit
def rest_milli(free_mib: int, free_milli: int, total_mib: int) -> int:
    """What of a GPU can be used, as the lesser of memory and compute; 0 where it is not to be given."""
    if total_mib <= 0:
        return 0
    return int(max(0, min(free_milli, free_mib * 1000 // total_mib)))


@jit
def rest_after(free_mib: int, free_milli: int, total_mib: int, ask: Ask) -> int:
    """The same once the ask has its share of it."""
    if ask.whole:
        return 0
    memory_mib = ask.memory_mib
    if ask.memory_milli:
        memory_mib = total_mib * ask.memory_milli // 1000
    return rest_milli(free_mib - memory_mib, free_milli - ask.compute_milli, total_mib)


@jit
def asked_milli(total_mib: int, ask: Ask) -> int:
    """Milli that the ask takes of a GPU with this much memory: the larger of memory and compute."""
    if ask.memory_milli or total_mib <= 0:
        return max(ask.compute_milli, ask.memory_milli)
    return max(ask.compute_milli, -(-ask.memory_mib * 1000 // total_mib))


def ask_of(pod: PodState, ask: GpuAsk | None = None) -> Ask:
    """The pod's CPU and memory, and of its GPUs this ask, or the largest."""
    ask = ask or largest_ask(pod)
    cpu_milli, memory_bytes = pod.demand.cpu_milli, pod.demand.memory_bytes
    if ask is None:
        return Ask(cpu_milli, memory_bytes, 0, 0, 0, 0, False, -1)
    profile = PROFILES.index(ask.profile) if ask.profile else -1
    return Ask(
        cpu_milli, memory_bytes, ask.count, ask.memory_mib, ask.memory_milli, ask.compute_milli, ask.whole, profile
    )
