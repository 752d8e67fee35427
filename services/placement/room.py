"""Whether a pod fits into what is left, asked of many nodes at once. The per-node words are in `filters`."""

from __future__ import annotations

import numpy as np

from shared.book.arrays import NOT_MIG, Arrays, Bools, Ints
from shared.book.mig import serving_bits
from shared.book.states import PodState
from shared.model.mig import PROFILE_BIT
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI


def fits_room(pod: PodState, arrays: Arrays, rows: Ints) -> tuple[Bools, Bools | None]:
    """Whether the pod fits each node, and on which GPUs of it its largest ask fits (None without GPUs).

    Exact for pods with one GPU container that do not ask for several MIG instances. For others a node that passes may still
    fail: `assign` has the last word.
    """
    demand = pod.demand
    room: Bools = arrays.pods_free[rows] >= 1
    if demand.cpu_milli:
        room &= arrays.cpu_free[rows] >= demand.cpu_milli
    if demand.memory_bytes:
        room &= arrays.memory_free[rows] >= demand.memory_bytes
    if demand.ephemeral_bytes:
        room &= arrays.ephemeral_free[rows] >= demand.ephemeral_bytes
    if pod.request is None:
        return room, None
    fit: Bools | None = None
    for ask in sorted(pod.request.asks.values(), key=lambda a: (a.whole, a.count, a.memory_mib, a.compute_milli)):
        fit = gpu_fit(ask, arrays, rows)
        room &= fit.any(axis=1) if ask.profile else fit.sum(axis=1) >= ask.count
    return room, fit


def gpu_fit(ask: GpuAsk, arrays: Arrays, rows: Ints) -> Bools:
    """By row and GPU column: whether the ask fits on that GPU as it stands."""
    if ask.profile:
        named: Bools = (arrays.gpu_mig_fits[rows] & PROFILE_BIT[ask.profile]) != 0
        return named
    if ask.whole:
        return arrays.gpu_whole[rows]
    needed_mib: int | Ints = ask.memory_mib
    if ask.memory_follows:
        needed_mib = arrays.gpu_total_mib[rows] * ask.compute_milli // WHOLE_GPU_MILLI
    fit: Bools = (arrays.gpu_free_mib[rows] >= needed_mib) & (arrays.gpu_free_milli[rows] >= ask.compute_milli)
    fit &= arrays.gpu_total_mib[rows] > 0
    in_mig = arrays.gpu_mig_geometry[rows] != NOT_MIG
    return np.where(in_mig, _mig_fit(ask, arrays, rows, in_mig), fit) if in_mig.any() else fit


def _mig_fit(ask: GpuAsk, arrays: Arrays, rows: Ints, in_mig: Bools) -> Bools:
    """By row and GPU column: whether an instance that serves the ask can be had. Looks at each make of GPU once."""
    geometry, total = arrays.gpu_mig_geometry[rows], arrays.gpu_total_mib[rows]
    serves = np.zeros(in_mig.shape, np.int64)
    for place, total_mib in np.unique(np.stack([geometry[in_mig], total[in_mig]]), axis=1).T.tolist():
        serves[(geometry == place) & (total == total_mib)] = serving_bits(place, ask, total_mib)
    fit: Bools = (arrays.gpu_mig_fits[rows] & serves) != 0
    return fit
