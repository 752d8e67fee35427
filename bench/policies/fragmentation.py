"""What typical pods cannot use of a node's GPUs: the measure of "Beware of Fragmentation" (USENIX ATC 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.placement.jit import jit
from services.placement.policies.columns import Columns, rest_milli
from services.placement.policies.kerf.mix import Kind, accepts, milli_on
from shared.book.arrays import Arrays, Bools, Ints

Floats = npt.NDArray[np.float64]

TYPICAL = 0.95
"""Kinds of pods are typical until they make up this much of all."""
_LACKS_BOTH, _LACKS_GPU, _LACKS_CPU, _NO_GPU_WANTED, _NO_GPU_WANTED_LACKS_CPU, _NOT_ACCEPTED = range(6)


class Typical(NamedTuple):
    cpu_milli: Ints
    milli: Ints
    gpus: Ints
    accepts: Bools
    """Typical pods x GPU kinds."""
    part: Floats


def typical_of(pods: Iterable[tuple[Kind, str, float]], arrays: Arrays) -> Typical:
    """`pods`: kind, its wish for GPU models as text, and how many. By CPU, share, count and that text (host memory
    plays no part) the most frequent first, equals as published, cut at TYPICAL."""
    groups: dict[tuple[int, int, int, str], float] = {}
    takes: dict[str, Bools] = {}
    most_mib = int(arrays.gpu_total_mib.max())
    for kind, models, count in pods:
        milli = 0 if kind.ask is None else 1000 if kind.ask.whole else milli_on(kind.ask, most_mib)
        key = (kind.cpu_milli, milli, kind.count, models)
        groups[key] = groups.get(key, 0.0) + count
        takes.setdefault(models, accepts(kind, arrays))
    total, seen = sum(groups.values()), 0.0
    kept = []
    for key, count in sorted(groups.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if seen >= TYPICAL * total:
            break
        kept.append((key, count))
        seen += count
    return Typical(
        np.array([key[0] for key, _ in kept], np.int64),
        np.array([key[1] for key, _ in kept], np.int64),
        np.array([key[2] for key, _ in kept], np.int64),
        np.array([takes[key[3]] for key, _ in kept], np.bool_).reshape(len(kept), len(arrays.kinds)),
        np.array([(count / total) / (seen / total) for _, count in kept], np.float64),
    )


@jit
def fragmentation(cpu_free: int, rests: Ints, kind: int, typical: Typical) -> float:
    """Expected milli-GPU of a node that a typical pod cannot use: all of it where the pod cannot run there, else the
    GPUs that are too small for it. Summed by cause first, in the published order: the score is cut to an integer, and
    there the last bit of a sum decides."""
    total = rests.sum()
    lost = np.zeros(6)
    for pod in range(typical.part.size):
        part, enough_cpu = typical.part[pod], cpu_free >= typical.cpu_milli[pod]
        if typical.gpus[pod] == 0:
            lost[_NO_GPU_WANTED if enough_cpu else _NO_GPU_WANTED_LACKS_CPU] += part * total
            continue
        if not typical.accepts[pod, kind]:
            lost[_NOT_ACCEPTED] += part * total
            continue
        fitting, small = 0, 0
        for rest in rests:
            if rest >= typical.milli[pod]:
                fitting += 1
            else:
                small += rest
        if fitting < typical.gpus[pod]:
            lost[_LACKS_GPU if enough_cpu else _LACKS_BOTH] += part * total
        elif enough_cpu:
            lost[_LACKS_GPU] += part * small
        else:
            lost[_LACKS_CPU] += part * total
    result = 0.0
    for cause in lost:
        result += cause
    return result


@jit
def fragmented(rows: Ints, columns: Columns, typical: Typical) -> float:
    """Of all these nodes together, in milli-GPU."""
    result = 0.0
    for row in rows:
        rests = np.zeros(columns.gpu_count[row], np.int64)
        for gpu in range(rests.size):
            rests[gpu] = rest_milli(
                columns.gpu_free_mib[row, gpu], columns.gpu_free_milli[row, gpu], columns.gpu_total_mib[row, gpu]
            )
        result += fragmentation(columns.cpu_free[row], rests, columns.gpu_kind[row, 0], typical)
    return result
