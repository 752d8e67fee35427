"""Predicted slowdown of a pod whose GPU is on another node."""

from __future__ import annotations

from shared.model.network import NetworkLink

_US_PER_S = 1_000_000


def remote_slowdown(calls_per_s: float, mib_per_s: float, link: NetworkLink) -> float:
    """The factor by which a pod becomes slower when its calls to the GPU cross `link`; 1 is no slowdown.

    1 + calls/s x round trip + MiB/s / bandwidth: of each second that the pod works with a local GPU, so much is added
    if each call waits for its answer and transfers overlap with nothing. That is the worst case for these figures:
    calls that a client sends without waiting cost less.

    `calls_per_s`: calls of the driver that wait for the GPU's node, per second on a local GPU. `mib_per_s`: copied
    between host and GPU, in both directions together, per second on a local GPU. Raises ValueError on negative ones.
    """
    if not (calls_per_s >= 0 and mib_per_s >= 0):
        raise ValueError(f"calls and transfers are not negative: {calls_per_s}, {mib_per_s}")
    return 1 + calls_per_s * link.rtt_us / _US_PER_S + mib_per_s / link.mib_s
