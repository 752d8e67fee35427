"""Samples: what is measured again and again. Sent and forgotten; the next one says it anew."""

from __future__ import annotations

from shared.contracts.base import Message


class SliceUse(Message, frozen=True, kw_only=True):
    """What the processes of one slice use of one GPU, beside what it was granted."""

    uid: str
    namespace: str
    name: str
    container: str = ""
    """Empty where the pod has several with GPUs: processes are told apart by pod."""
    memory_mib: int
    granted_memory_mib: int
    sm_milli: int | None = None
    """Per mille of the GPU's SMs, the mean since the last sample. None: nobody can say, as in MIG mode or without a sample."""
    granted_compute_milli: int
    processes: int = 0


class GpuUse(Message, frozen=True):
    uuid: str
    used_mib: int
    """Of all processes and of the driver itself."""
    foreign_mib: int = 0
    """Of processes to whose pod nothing was handed over, and of the host's."""
    sm_milli: int | None = None
    """Per mille of the time in which any kernel ran. None: not known, as in MIG mode."""
    slices: tuple[SliceUse, ...] = ()


class UsageSample(Message, frozen=True):
    """What is used on a node's GPUs now."""

    node: str
    at_ms: int
    """Unix milliseconds by the node's clock."""
    gpus: tuple[GpuUse, ...] = ()
