"""Samples: periodic measurements. A lost one is not repeated; the next one replaces it."""

from __future__ import annotations

from shared.contracts.base import Message
from shared.model.strategies import StrategyName


class SliceUse(Message, frozen=True, kw_only=True):
    """What the processes of one slice use of one GPU, beside what it was granted."""

    uid: str
    namespace: str
    name: str
    container: str = ""
    """Empty if the pod has several containers with GPUs: processes are attributed by pod."""
    memory_mib: int
    granted_memory_mib: int
    sm_milli: int | None = None
    """Per mille of the GPU's SMs, the mean since the last sample. None: unknown, as in MIG mode or without a sample."""
    granted_compute_milli: int
    processes: int = 0
    strategy: StrategyName | None = None
    """How it is enforced. None: unknown."""
    counted_mib: int | None = None
    """Memory that the strategy itself counts, to be compared with `memory_mib`. None: it counts none."""
    gpu_milli: int | None = None
    """GPU time per mille of the time by the driver's events, since the last sample; to be compared with
    `granted_compute_milli`. None: the strategy does not measure it."""
    refused: int = 0
    """Allocations that failed at the limit since the container's start."""
    hidden_mib: int = 0
    """Memory that got past the strategy."""
    over_milli: int = 0
    """GPU time beyond `granted_compute_milli` that NVML saw over a window of seconds; 0 while it is within the slack.
    """
    bandwidth_milli: int | None = None
    """Per mille of the time in which it read or wrote the GPU's memory, by NVML. None: as for `sm_milli`."""
    waited_milli: int | None = None
    """Time that its launches waited at the gate, per mille of the time, since the last sample. None: not measured."""
    launches_per_s: int | None = None
    """Launches since the last sample; None: the strategy does not count them."""
    launch_us: int | None = None
    """GPU time of a launch, the mean since the last sample; None: not measured."""


class GpuUse(Message, frozen=True):
    uuid: str
    used_mib: int
    """Of all processes and of the driver itself."""
    foreign_mib: int = 0
    """Of processes whose pod got nothing handed over, and of the host's."""
    sm_milli: int | None = None
    """Per mille of the time in which any kernel ran. None: not known, as in MIG mode."""
    slices: tuple[SliceUse, ...] = ()


class UsageSample(Message, frozen=True):
    """What is used on a node's GPUs now."""

    node: str
    at_ms: int
    """Unix milliseconds by the node's clock."""
    gpus: tuple[GpuUse, ...] = ()
