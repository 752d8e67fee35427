"""Finds GPU time beyond a slice's share: compares NVML's figure of a pod's processes with the grant. Pure.

The container itself writes the GPU time in its control block, and a process that bypasses the library writes nothing
there. NVML samples every process. Its samples are coarse, and a slice that keeps to its share may run one long kernel
and wait afterwards. Hence the detector uses a mean over a window of seconds, a slack, and hysteresis: overuse ends well
below where it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from services.node_agent.strategies.slices import Key, Slice
from shared.model.units import WHOLE_GPU_MILLI

CYCLE_NS = 500_000_000
"""Cycle of a throttled process: it runs for its share of each cycle and is locked for the rest. A lock and an unlock
together take about 2 ms."""


ACT_SAMPLES = 3
"""Consecutive samples with overuse before a pod is locked, evicted or killed for it. Each covers a whole window."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's use of a GPU since the previous sample, and its share. Both per mille of the time."""

    uid: str
    uuid: str
    containers: tuple[Key, ...]
    used_milli: int
    share_milli: int
    counted_milli: int | None = None
    """What its own counters say; None if they are unknown."""


class Overuse(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that used more of a GPU than its share. `mean_milli` is its mean over the window, per mille."""

    used: Usage
    mean_milli: int
    window_s: float
    is_proven: bool = False
    """It was seen often enough to act on it."""
    is_forged: bool = False
    """Its own counters say less than NVML, by more than the slack, over the same window."""

    @property
    def over_milli(self) -> int:
        return max(0, self.mean_milli - self.used.share_milli)

    @property
    def sentence(self) -> str:
        return (
            f"pod {self.used.uid} used {self.mean_milli / 10:g} % of GPU {self.used.uuid} over {self.window_s:g} s "
            f"according to NVML; {self.used.share_milli / 10:g} % are granted"
        )


class OveruseDetector:
    def __init__(self, slack_milli: int, window_s: float) -> None:
        """`slack_milli`: how far a pod's mean may be above its share. Overuse ends when the excess is below half of
        that."""
        self._slack_milli, self._window_s = slack_milli, window_s
        self._past: dict[tuple[str, str], deque[_Sample]] = {}
        self._over: dict[tuple[str, str], int] = {}
        """The pods with overuse, and in how many consecutive samples."""
        self._last_s: float | None = None

    def update(self, now_s: float, used: Iterable[Usage]) -> tuple[Overuse, ...]:
        """Records one sample. Returns the pods whose mean over a whole window is too high.

        `now_s`: seconds of any monotonic clock.
        """
        before_s, self._last_s = self._last_s, now_s
        seen = {(one.uid, one.uuid): one for one in used}
        self._past = {key: self._past.get(key, deque()) for key in seen}
        found = []
        for key, one in sorted(seen.items()):
            if before_s is not None and now_s > before_s:
                self._past[key].append(_Sample(before_s, now_s, one.used_milli, one.counted_milli))
            mean, counted = self._means(self._past[key], now_s)
            slack = self._slack_milli // 2 if key in self._over else self._slack_milli
            if mean is not None and mean > one.share_milli + slack:
                is_proven = self._over.get(key, 0) + 1 >= ACT_SAMPLES
                found.append(
                    Overuse(
                        used=one,
                        mean_milli=mean,
                        window_s=self._window_s,
                        is_proven=is_proven,
                        is_forged=counted is not None and mean - counted > self._slack_milli,
                    )
                )
        times = self._over
        self._over = {key: times.get(key, 0) + 1 for over in found for key in [(over.used.uid, over.used.uuid)]}
        return tuple(found)

    def _means(self, past: deque[_Sample], now_s: float) -> tuple[int | None, int | None]:
        """Returns the means over the window by NVML and by the counters; None where not all of the window is known."""
        begin_s = now_s - self._window_s
        while past and past[0].end_s <= begin_s:
            past.popleft()
        if not past or past[0].begin_s > begin_s:
            return None, None
        spans = [one.end_s - max(one.begin_s, begin_s) for one in past]
        used = sum(span * one.used_milli for span, one in zip(spans, past, strict=True))
        known = [one.counted_milli for one in past if one.counted_milli is not None]
        counted = (
            sum(span * milli for span, milli in zip(spans, known, strict=True)) if len(known) == len(past) else None
        )
        return round(used / self._window_s), None if counted is None else round(counted / self._window_s)


class _Sample(NamedTuple):
    begin_s: float
    end_s: float
    used_milli: int
    counted_milli: int | None


def pod_usage(
    seen_milli: Mapping[tuple[str, str], int],
    slices: Iterable[Slice],
    counted_milli: Mapping[tuple[Key, str], int | None] = {},
) -> list[Usage]:
    """Sums up use and shares by pod and GPU.

    `seen_milli` is NVML's figure by (pod, GPU); a pod that is not in it was idle. `counted_milli` is
    what the counters say, by container and GPU. Pods with a container that has no
    share of its own are omitted: they may use all time that others leave.
    """
    grouped: dict[tuple[str, str], list[tuple[Key, int]]] = {}
    for slice_ in slices:
        for part in slice_.parts:
            grouped.setdefault((slice_.uid, part.uuid), []).append(
                (slice_.key, part.compute_milli if slice_.reserved else 0)
            )
    return [
        Usage(
            uid=uid,
            uuid=uuid,
            containers=tuple(key for key, _ in group),
            used_milli=seen_milli.get((uid, uuid), 0),
            share_milli=sum(milli for _, milli in group),
            counted_milli=_sum([counted_milli.get((key, uuid)) for key, _ in group]),
        )
        for (uid, uuid), group in sorted(grouped.items())
        if all(milli > 0 for _, milli in group) and sum(milli for _, milli in group) < WHOLE_GPU_MILLI
    ]


def _sum(amounts: Iterable[int | None]) -> int | None:
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


class ThrottleQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The share of every cycle to which the driver's process lock limits a pod after overuse, until its processes have
    ended."""

    share_milli: int
    pids: frozenset[int]

    def waits(self, now_ns: int) -> bool:
        return now_ns % CYCLE_NS >= CYCLE_NS * self.share_milli // WHOLE_GPU_MILLI


ThrottleQuotas = Mapping[tuple[str, str], ThrottleQuota]
"""By pod and GPU."""


def update_quotas(
    before: ThrottleQuotas, overuses: Iterable[Overuse], pids: Mapping[tuple[str, str], frozenset[int]]
) -> dict[tuple[str, str], ThrottleQuota]:
    """Returns the throttle quotas after a sample.

    A pod keeps its quota while it has a process on the GPU: under the lock its mean equals its share, which proves
    nothing. A pod that would keep to its share anyway loses little.
    """
    shares = {key: quota.share_milli for key, quota in before.items()}
    shares |= {(over.used.uid, over.used.uuid): over.used.share_milli for over in overuses}
    return {key: ThrottleQuota(share_milli=milli, pids=pids[key]) for key, milli in shares.items() if pids.get(key)}
