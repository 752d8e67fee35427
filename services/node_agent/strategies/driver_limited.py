"""The strategy `driver`: NVIDIA's driver holds the memory of the pod's cgroup, and the interposer the rest.

In the container it is as `time_slice`: the library shows the slice's memory and keeps the ranks of GPU time. The
promise for memory does not rest on it (`driver_limits.py`), so a slice cannot be shrunk or checkpointed by it.
"""

from __future__ import annotations

from services.node_agent.strategies.base import Unadjustable
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slices import Key


class DriverLimited(Interposer):
    def adjust(self, key: Key, override: Override) -> None:
        if override.memory_mib:
            raise Unadjustable("the driver holds the memory of this slice; it can be throttled and paused")
        super().adjust(key, override)
