"""Tracks how much GPU memory slices have allocated recently, by the samples of their nodes. Pure."""

from __future__ import annotations

import msgspec

from shared.contracts.samples import UsageSample

SEEN_FOR_S = 60.0
"""How long a slice must be observed: one observed for less may still be loading what it needs."""
LOST_S = 30.0
"""After so long without a sample the memory use of a slice is unknown."""


class _Seen(msgspec.Struct):
    since: float
    """The start of the samples without a gap."""
    most: tuple[float, int]
    """The current window: its start and the maximum on one GPU in MiB. `before_mib` is the maximum of the last
    window."""
    before_mib: int
    last: float


class MemoryUse:
    """The maximum by pod over one or two windows of `SEEN_FOR_S`: released memory is noticed after a while."""

    def __init__(self) -> None:
        self._of: dict[str, _Seen] = {}

    def sampled(self, sample: UsageSample, now: float) -> None:
        """Records a sample. Only slices whose strategy counts allocations matter: that count also limits them."""
        used: dict[str, int] = {}
        for gpu in sample.gpus:
            for slice_ in gpu.slices:
                if slice_.counted_mib is not None:
                    used[slice_.uid] = max(used.get(slice_.uid, 0), slice_.counted_mib)
        for uid, mib in used.items():
            self._saw(uid, mib, now)

    def max_used_mib(self, uid: str, now: float) -> int | None:
        """Returns the maximum that a pod has recently had allocated on one GPU, in MiB.

        None if it has not been observed for long enough, or has allocated nothing yet: it may still be loading.
        """
        seen = self._of.get(uid)
        if seen is None or now - seen.last > LOST_S or now - seen.since < SEEN_FOR_S:
            return None
        return max(seen.most[1], seen.before_mib) or None

    def tick(self, now: float) -> None:
        for uid in [uid for uid, seen in self._of.items() if now - seen.last > LOST_S]:
            del self._of[uid]

    def _saw(self, uid: str, mib: int, now: float) -> None:
        seen = self._of.get(uid)
        if seen is None or now - seen.last > LOST_S:
            self._of[uid] = _Seen(now, (now, mib), 0, now)
            return
        begun, most = seen.most
        if now - begun >= SEEN_FOR_S:
            seen.before_mib, seen.most = most, (now, mib)
        else:
            seen.most = (begun, max(most, mib))
        seen.last = now
