"""Questions to NVML that a device or a driver may not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

UNKNOWN = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NoData,
    pynvml.NVMLError_ArgumentVersionMismatch,
)
"""What "I do not know that question" looks like. pynvml looks functions up when they are called, so an older driver costs a
field and no more."""
NO_DRIVER = (pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_Uninitialized)
"""Not one GPU's trouble but that of all."""


def optional(ask: Callable[..., Any], *arguments: Any) -> Any:
    """None where this driver or device does not know the question; any other failure is the caller's."""
    try:
        return ask(*arguments)
    except UNKNOWN:
        return None


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
