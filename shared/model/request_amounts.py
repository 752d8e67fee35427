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
        number = Fraction(text) if isinstance(text, int) else quantity(text)
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


def ask_for(where: str, count: int, memory_bytes: int, percent: int, *, count_named: bool) -> GpuAsk:
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
    if not memory_bytes and not percent:
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
    if percent == 100 * gpus and not memory_bytes:
        return GpuAsk(count=gpus, compute_milli=WHOLE_GPU_MILLI, whole=True)
    per_gpu_memory = mib(memory_bytes // gpus)
    return GpuAsk(
        count=gpus, memory_mib=per_gpu_memory, compute_milli=percent * 10 // gpus, memory_follows=not memory_bytes
    )
