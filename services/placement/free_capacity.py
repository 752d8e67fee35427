"""Whether a pod fits into the free capacity of many nodes at once. `filters` has the checks of a single node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.placement.jit import jit
from shared.book.arrays import NOT_MIG, Arrays, Bools, Ints
from shared.book.mig import serving_bits
from shared.book.states import PodState
from shared.model.mig import PROFILE_BIT
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI


def fits_room(pod: PodState, arrays: Arrays, rows: Ints) -> tuple[Bools, Bools | None]:
    """Whether the pod fits each node, and on which GPUs of it its largest request fits (None without GPUs).

    Exact for pods with one GPU container that do not request several MIG instances. For others a node that passes may
    still fail: `assign` decides.
    """
    demand, request = pod.demand, pod.request
    if request is not None and len(request.asks) == 1:
        ask = next(iter(request.asks.values()))
        if not ask.profile and not arrays.any_mig:
            needs = (demand.cpu_milli, demand.memory_bytes, demand.ephemeral_bytes)
            return fits_one(
                rows,
                needs,
                (ask.count, ask.memory_mib, ask.memory_milli, ask.compute_milli, ask.whole),
                _columns(arrays),
            )
    room: Bools = arrays.pods_free[rows] >= 1
    if demand.cpu_milli:
        room &= arrays.cpu_free[rows] >= demand.cpu_milli
    if demand.memory_bytes:
        room &= arrays.memory_free[rows] >= demand.memory_bytes
    if demand.ephemeral_bytes:
        room &= arrays.ephemeral_free[rows] >= demand.ephemeral_bytes
    if request is None:
        return room, None
    fit: Bools | None = None
    for ask in sorted(request.asks.values(), key=lambda ask: ask.hardness):
        fit = gpu_fit(ask, arrays, rows)
        room &= fit.any(axis=1) if ask.profile else fit.sum(axis=1) >= ask.count
    return room, fit


class _Room(NamedTuple):
    pods_free: Ints
    cpu_free: Ints
    memory_free: Ints
    ephemeral_free: Ints
    gpu_whole: Bools
    gpu_free_mib: Ints
    gpu_free_milli: Ints
    gpu_total_mib: Ints


def _columns(arrays: Arrays) -> _Room:
    return _Room(*(getattr(arrays, name) for name in _Room._fields))


@jit
def fits_one(
    rows: Ints, needs: tuple[int, int, int], ask: tuple[int, int, int, int, bool], room: _Room
) -> tuple[Bools, Bools]:
    """The common case in one loop: one container with GPUs, and no GPU in MIG mode. The rest of this file gives the
    same result; a test compares the two."""
    cpu_milli, memory_bytes, ephemeral_bytes = needs
    count, memory_mib, memory_milli, compute_milli, whole = ask
    columns = room.gpu_whole.shape[1]
    fits, fit = np.zeros(rows.size, np.bool_), np.zeros((rows.size, columns), np.bool_)
    for place in range(rows.size):
        row = rows[place]
        found = 0
        for gpu in range(columns):
            total = room.gpu_total_mib[row, gpu]
            if whole:
                fit[place, gpu] = room.gpu_whole[row, gpu]
            elif total > 0:
                needed = total * memory_milli // 1000 if memory_milli else memory_mib
                fit[place, gpu] = (
                    room.gpu_free_mib[row, gpu] >= needed and room.gpu_free_milli[row, gpu] >= compute_milli
                )
            found += fit[place, gpu]
        enough = room.pods_free[row] >= 1 and (cpu_milli == 0 or room.cpu_free[row] >= cpu_milli)
        enough = enough and (memory_bytes == 0 or room.memory_free[row] >= memory_bytes)
        fits[place] = (
            enough and (ephemeral_bytes == 0 or room.ephemeral_free[row] >= ephemeral_bytes) and found >= count
        )
    return fits, fit


def gpu_fit(ask: GpuAsk, arrays: Arrays, rows: Ints) -> Bools:
    """By row and GPU index: whether the request fits on that GPU as it stands."""
    if ask.profile:
        named: Bools = (arrays.gpu_mig_fits[rows] & PROFILE_BIT[ask.profile]) != 0
        return named
    if ask.whole:
        return arrays.gpu_whole[rows]
    needed_mib: int | Ints = ask.memory_mib
    if ask.memory_milli:
        needed_mib = arrays.gpu_total_mib[rows] * ask.memory_milli // WHOLE_GPU_MILLI
    fit: Bools = (arrays.gpu_free_mib[rows] >= needed_mib) & (arrays.gpu_free_milli[rows] >= ask.compute_milli)
    fit &= arrays.gpu_total_mib[rows] > 0
    in_mig = arrays.gpu_mig_geometry[rows] != NOT_MIG
    return np.where(in_mig, _mig_fit(ask, arrays, rows, in_mig), fit) if in_mig.any() else fit


def _mig_fit(ask: GpuAsk, arrays: Arrays, rows: Ints, in_mig: Bools) -> Bools:
    """By row and GPU index: whether an instance that serves the request is free. Examines each GPU geometry once."""
    geometry, total = arrays.gpu_mig_geometry[rows], arrays.gpu_total_mib[rows]
    serves = np.zeros(in_mig.shape, np.int64)
    for place, total_mib in np.unique(np.stack([geometry[in_mig], total[in_mig]]), axis=1).T.tolist():
        serves[(geometry == place) & (total == total_mib)] = serving_bits(place, ask, total_mib)
    fit: Bools = (arrays.gpu_mig_fits[rows] & serves) != 0
    return fit
