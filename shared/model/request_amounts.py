"""Amounts of a request: whole numbers of Kubernetes quantities, and a container's request from its totals."""

from __future__ import annotations

from fractions import Fraction

from shared.model.kube_object import Quantities
from shared.model.request import GpuAsk, RequestError
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, mib, quantity

MAX_GPUS = 64
MAX_MEMORY_BYTES = 1 << 46
"""64 TiB in one container: far above 64 of the largest GPUs, and far below where the book's arrays would overflow."""


def read_number(quantities: Quantities, resource: str, where: str) -> int:
    """The quantity of a resource; 0 if it is not named. Raises RequestError, beginning with `where`."""
    text = quantities.get(resource)
    if text is None:
        return 0
    try:
        # In JSON an amount may be a number, such as 1 or 1.0.
        number = Fraction(text) if isinstance(text, int) else quantity(str(text))
    except QuantityError as error:
        raise RequestError("not-a-quantity", f"{where}: {resource}: {error}") from None
    if number < 0:
        raise RequestError("negative", f"{where}: {resource} is {text}; it cannot be negative")
    if number.denominator != 1:
        raise RequestError(
            "fraction",
            f"{where}: {resource} is {text}, and Kubernetes counts such resources in whole numbers. For a part of one "
            "GPU set kerf.dev/gpu-memory (such as 16Gi) or kerf.dev/gpu-compute (percent) and leave kerf.dev/gpu out",
        )
    return int(number)


def ask_for(
    where: str, count: int, memory_bytes: int, percent: int, *, memory_percent: int = 0, count_named: bool
) -> GpuAsk:
    """A request from its totals over `count` GPUs. Raises RequestError, beginning with `where`, on one that makes no
    sense."""
    if count_named and count == 0:
        raise RequestError(
            "zero-gpus",
            f"{where}: kerf.dev/gpu is 0 beside a memory or compute limit; set it to 1 or more, or leave it out "
            "for one GPU",
        )
    gpus = count or 1
    if gpus > MAX_GPUS:
        raise RequestError(
            "too-many-gpus",
            f"{where}: kerf.dev/gpu is {gpus}; one container can have at most {MAX_GPUS}. kerf.dev/gpu counts "
            "GPUs, not memory",
        )
    if memory_bytes and memory_percent:
        raise RequestError(
            "memory-twice",
            f"{where}: kerf.dev/gpu-memory and kerf.dev/gpu-memory-percent both say how much memory it gets; keep one",
        )
    if not memory_bytes and not percent and not memory_percent:
        return GpuAsk(count=gpus, compute_milli=WHOLE_GPU_MILLI, whole=True)
    if memory_bytes % gpus:
        raise RequestError(
            "memory-not-even",
            f"{where}: kerf.dev/gpu-memory is the container's total and is spread evenly; {memory_bytes} bytes "
            f"cannot be divided over {gpus} GPUs",
        )
    if memory_bytes and memory_bytes < 1024 * 1024:
        raise RequestError(
            "memory-too-small",
            f"{where}: kerf.dev/gpu-memory is {memory_bytes} bytes; write it with a unit, such as 16Gi (at least 1Mi)",
        )
    if memory_percent > 100 * gpus:
        raise RequestError(
            "memory-too-large",
            f"{where}: kerf.dev/gpu-memory-percent is {memory_percent}; it is the container's total in percent of one "
            f"GPU's memory, so {gpus} GPU(s) allow at most {100 * gpus}",
        )
    if (memory_percent * 10) % gpus:
        raise RequestError(
            "memory-not-even",
            f"{where}: kerf.dev/gpu-memory-percent {memory_percent} cannot be divided over {gpus} GPUs; use a multiple "
            f"of {gpus}",
        )
    if percent > 100 * gpus:
        raise RequestError(
            "compute-too-large",
            f"{where}: kerf.dev/gpu-compute is {percent}; it is the container's total in percent of one GPU, so "
            f"{gpus} GPU(s) allow at most {100 * gpus}",
        )
    if percent % gpus and (percent * 10) % gpus:
        raise RequestError(
            "compute-not-even",
            f"{where}: kerf.dev/gpu-compute {percent} cannot be divided over {gpus} GPUs; use a multiple of {gpus}",
        )
    if percent == 100 * gpus and not memory_bytes and memory_percent in (0, percent):
        return GpuAsk(count=gpus, compute_milli=WHOLE_GPU_MILLI, whole=True)
    compute_milli = percent * 10 // gpus
    return GpuAsk(
        count=gpus,
        memory_mib=mib(memory_bytes // gpus),
        compute_milli=compute_milli,
        memory_milli=0 if memory_bytes else memory_percent * 10 // gpus or compute_milli,
    )
