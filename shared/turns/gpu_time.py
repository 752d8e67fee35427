"""The GPU time that a pod has had: the annotation `kerf.dev/gpu-time` of pods that take turns.

It is written in the same patch as each suspension and each resumption, so that a leader that knows only Kubernetes
knows it. In between it grows with the clock.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared.formats import UNREADABLE
from shared.model import names

MOST = 1 << 60


class GpuTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As of `since`. GPU time is in milliseconds of a whole GPU: half a GPU for 2 s is 1,000."""

    since: float
    """Seconds since 1970: from then on it has run, or if it is suspended, has waited."""
    attained_gpu_ms: int = 0
    turns: int = 0
    """How often it has been suspended for another pod's turn."""
    lifted_at_gpu_ms: int = 0
    """What it had attained when it had last waited too long. Its level counts from there."""
    turn_of: str = ""
    """While it is suspended for a turn: whose, as namespace/name and how many more."""

    def __post_init__(self) -> None:
        for field in ("attained_gpu_ms", "turns", "lifted_at_gpu_ms"):
            if not 0 <= getattr(self, field) <= MOST:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be between 0 and {MOST}")

    def attained(self, gpu_milli: int, now: float, *, runs: bool) -> int:
        """GPU milliseconds until `now`. A clock that has gone back takes nothing away."""
        return self.attained_gpu_ms + (round(max(0.0, now - self.since) * gpu_milli) if runs else 0)


def read_gpu_time(annotations: Mapping[str, str]) -> GpuTime | None:
    """None where there is none. Only Kerf writes it: one that cannot be read is from a later Kerf, and counts as
    none."""
    text = annotations.get(names.ANNOTATION_GPU_TIME)
    try:
        return None if text is None else _DECODER.decode(text)
    except UNREADABLE:
        return None


def encode_gpu_time(gpu_time: GpuTime) -> str:
    return msgspec.json.encode(gpu_time).decode()


_DECODER = msgspec.json.Decoder(GpuTime)
