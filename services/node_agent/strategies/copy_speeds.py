"""How fast this node copies GPU memory to its host and back, by its own checkpoints. Pure.

A driver copies far below what the GPU's link carries: to new memory of the host, page by page. That depends on host,
kernel and driver, so it is learned here and not assumed (docs/decisions/0254). A speed is that of one GPU: the most
that a pod had on one of its GPUs, by the time until all of it was copied, for all of them are copied at once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Way = Literal["out", "back"]

MIN_MIB = 1024
"""A copy of less says little: what the driver needs besides is a part of it."""
KEPT = 0.75
"""How much of what was learned before counts beside a new copy."""
CHANGE = 0.1
"""What is told changes only by more than this part, so that not every copy makes a new inventory."""
MAX_MIB_PER_S = 64 * 1024
"""No link between a GPU and its host is faster."""


class Learned(msgspec.Struct, frozen=True):
    """Of one way: what was copied and in which time, the newest copies most, and the speed that is told (0: none)."""

    mib: float = 0.0
    seconds: float = 0.0
    told_mib_per_s: int = 0

    def after(self, mib: int, seconds: float) -> Learned:
        """What is known after another copy."""
        if mib < MIN_MIB or seconds <= 0:
            return self
        total_mib, total_s = self.mib * KEPT + mib, self.seconds * KEPT + seconds
        speed = min(MAX_MIB_PER_S, max(1, round(total_mib / total_s)))
        told = self.told_mib_per_s
        changed = not told or abs(speed - told) > CHANGE * told
        return Learned(total_mib, total_s, speed if changed else told)


class CopySpeeds(msgspec.Struct, frozen=True):
    """Both ways."""

    out: Learned = Learned()
    back: Learned = Learned()

    def after(self, way: Way, mib: int, seconds: float) -> CopySpeeds:
        """`mib`: the most that was copied from or to one GPU."""
        if way == "out":
            return CopySpeeds(self.out.after(mib, seconds), self.back)
        return CopySpeeds(self.out, self.back.after(mib, seconds))
