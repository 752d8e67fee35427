"""The driver's own memory limits for cgroups, by NVML: r615 and later, cgroup v2, not in MIG mode.

The limit is for all processes of the cgroup together. Only the hard limit is set: the soft one is a guarantee that the
kernel passes on to the cgroup's ancestors, where it stays when the cgroup is removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

from services.node_agent.messages import SliceNotReady
from services.node_agent.nvml_calls import UNKNOWN

NO_LIMIT: int = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


class MemoryLimitError(SliceNotReady):
    """A limit is not in force. The text says why."""

    code = "driver-limit-not-set"


class MemoryLimitsUnsupported(MemoryLimitError):
    """The driver has no such limits, or not for this GPU."""


def set_limit(handle: Any, cgroup: Path, limit_bytes: int) -> None:
    """Sets the limit of a cgroup on one GPU, and reads it back; NO_LIMIT clears it. Raises MemoryLimitError."""
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=str(cgroup).encode(), softLimit=0, hardLimit=limit_bytes)
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
        found = _hard_limit(handle, cgroup)
    except UNKNOWN as error:
        raise MemoryLimitsUnsupported(f"NVML: {error}") from error
    except pynvml.NVMLError as error:
        raise MemoryLimitError(f"NVML: {error}") from error
    if found != limit_bytes:
        raise MemoryLimitError(f"the driver was told a limit of {limit_bytes} bytes for {cgroup}, and reports {found}")


def _hard_limit(handle: Any, cgroup: Path) -> int:
    """Raises pynvml.NVMLError."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError_NotFound:
        return NO_LIMIT  # none was set
    return int(limits.hardLimit)
