"""What slices have allocated of their GPUs of late, by what their nodes say of them. Pure."""

from __future__ import annotations

import msgspec

from shared.contracts.samples import UsageSample

SEEN_FOR_S = 60.0
"""A slice that has been heard of for less may still be loading what it needs."""
LOST_S = 30.0
"""Nobody knows of a slice that was not heard of for so long what it uses now."""


class _Seen(msgspec.Struct):
    since: float
    """Without a gap."""
    most: tuple[float, int]
    """When, and MiB of one GPU: in the window that is open, and in the one before it."""
    before_mib: int
    last: float


class MemoryUse:
    """By pod. The most of one or two windows of `SEEN_FOR_S`, so that what was given back is seen to be so in time."""

    def __init__(self) -> None:
        self._of: dict[str, _Seen] = {}

    def sampled(self, sample: UsageSample, now: float) -> None:
        """Only of slices whose strategy counts what it has let them allocate: by that very count it will hold them."""
        used: dict[str, int] = {}
        for gpu in sample.gpus:
            for slice_ in gpu.slices:
                if slice_.counted_mib is not None:
                    used[slice_.uid] = max(used.get(slice_.uid, 0), slice_.counted_mib)
        for uid, mib in used.items():
            self._saw(uid, mib, now)

    def max_used_mib(self, uid: str, now: float) -> int | None:
        """The most of one GPU that it has had allocated of late; None where it has not been seen for long enough, or has
        nothing yet: it may be loading."""
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
