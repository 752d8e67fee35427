"""The mix of requests, counted as they arrive: what pods ask for, and which GPUs they would take."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from services.placement.policies.base import largest_ask
from shared.book.accepts import GpuConstraints, gpu_constraints, mismatch
from shared.book.arrays import Arrays, Bools
from shared.book.mig import serving
from shared.book.shares import share_on
from shared.book.states import PodState
from shared.model.gpu import Gpu
from shared.model.mig import geometry_of
from shared.model.request import GpuAsk

Floats = npt.NDArray[np.float64]

MOST_COUNTED = 65_536
"""Arrivals remembered at full weight; beyond, all counts are halved, so that the mix follows the times."""
MOST_KINDS = 512
"""Kinds of request kept; the rarest go first."""


class Kind(msgspec.Struct, frozen=True):
    """Pods that ask for the same, as far as packing is concerned."""

    cpu_milli: int
    memory_bytes: int
    ask: GpuAsk | None
    gpu_constraints: GpuConstraints | None
    """Of picky pods: which GPUs they would take."""

    @property
    def count(self) -> int:
        return 0 if self.ask is None else self.ask.count


class Mix:
    def __init__(self) -> None:
        self.counts: dict[Kind, float] = {}
        self.total = 0.0

    def add(self, pod: PodState) -> Kind:
        kind = kind_of(pod)
        self.counts[kind] = self.counts.get(kind, 0.0) + 1
        self.total += 1
        if self.total >= MOST_COUNTED or len(self.counts) > MOST_KINDS:
            self._fade()
        return kind

    def _fade(self) -> None:
        kept = sorted(self.counts.items(), key=lambda item: -item[1])[: MOST_KINDS // 2]
        factor = 0.5 if self.total >= MOST_COUNTED else 1.0
        self.counts = {kind: count * factor for kind, count in kept}
        self.total = sum(self.counts.values())


def kind_of(pod: PodState) -> Kind:
    return Kind(pod.demand.cpu_milli, pod.demand.memory_bytes, largest_ask(pod), gpu_constraints(pod.request))


def sizes_on(kind: Kind, arrays: Arrays) -> Floats:
    """Milli-GPU that the kind takes of each of its GPUs, by GPU kind; the larger of memory and compute."""
    if kind.ask is None:
        return np.zeros(len(arrays.kinds))
    return np.array([milli_on(kind.ask, gpu.memory_mib) for gpu in arrays.kinds], np.float64)


def milli_on(ask: GpuAsk, total_mib: int) -> int:
    """Milli of one GPU that an ask takes; more than 1000 where it does not fit."""
    memory_mib, compute_milli = share_on(ask, total_mib)
    return max(compute_milli, -(-memory_mib * 1000 // max(1, total_mib)))


def accepts(kind: Kind, arrays: Arrays) -> Bools:
    """By GPU kind: whether a pod of this kind would take such a GPU, were it free."""
    wanted = kind.gpu_constraints
    return np.array(
        [
            (wanted is None or mismatch(wanted, gpu) is None) and (kind.ask is None or _serves(gpu, kind.ask))
            for gpu in arrays.kinds
        ],
        np.bool_,
    )


def _serves(gpu: Gpu, ask: GpuAsk) -> bool:
    """Whether an ask, or each part of it, fits on an empty GPU: on one in MIG mode as an instance."""
    if not gpu.mig_enabled:
        return not ask.profile and milli_on(ask, gpu.memory_mib) <= 1000
    geometry = geometry_of(gpu.model, gpu.memory_mib)
    return geometry is not None and bool(serving(geometry, ask, gpu.memory_mib))
