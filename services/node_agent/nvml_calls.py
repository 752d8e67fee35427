"""Calls to NVML functions that a device or a driver may not support."""

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
"""The errors of a call that is not supported. pynvml looks functions up when they are called, so an older driver lacks
a field and no more."""
NO_DRIVER = (pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_Uninitialized)
"""Errors that concern all GPUs, not a single one."""


def optional(ask: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an NVML function. Returns None if the driver or device does not support it; raises any other NVMLError."""
    try:
        return ask(*arguments)
    except UNKNOWN:
        return None


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
