"""What a container does on a GPU while it runs, as far as others that share the GPU notice it."""

from __future__ import annotations

import msgspec

from shared.model.units import WHOLE_GPU_MILLI


class UseProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The use of one GPU by one container that has the GPU for itself.

    Ratios are per mille of one GPU of the kind on which it was measured.
    """

    busy_milli: int = WHOLE_GPU_MILLI
    """The part of the time in which a kernel of it runs (NVML's utilization)."""
    sm_milli: int = WHOLE_GPU_MILLI
    """The part of the SMs that its kernels occupy while one runs."""
    bandwidth_milli: int = 0
    """The part of the memory bandwidth that its kernels use while one runs."""
    request_us: int = 0
    """GPU time of one request or step, between two pauses; 0: unknown, or it has no pauses."""
    sensitivity_milli: int = 1000
    """How much of the slowdown that is predicted for it has been observed; learned."""
