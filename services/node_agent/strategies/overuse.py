"""GPU time beyond a slice's share: NVML's word on a pod's processes against what was granted. Pure.

What the page says of GPU time is the container's own word, and a process that got past the library says nothing there. NVML samples
each process whoever started it. Its samples are rough, and an honest slice may have one long kernel that it pays for afterwards:
hence a mean over a window of seconds, a slack, and an end only well below where it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent.strategies.slices import Key, Slice
from shared.model.units import WHOLE_GPU_MILLI

CYCLE_NS = 500_000_000
"""Of a rationed process: it runs for its share of each, and is locked for the rest. A lock and an unlock take about 2 ms."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's use of a GPU since the look before, per mille of the time, and its share of it."""

    uid: str
    uuid: str
    containers: tuple[Key, ...]
    used_milli: int
    share_milli: int


class Overuse(msgspec.Struct, frozen=True, kw_only=True):
    """`mean_milli`: of the window."""

    used: Usage
    mean_milli: int
    window_s: float

    @property
    def over_milli(self) -> int:
        return max(0, self.mean_milli - self.used.share_milli)

    @property
    def sentence(self) -> str:
        return (
            f"pod {self.used.uid} had {self.mean_milli / 10:g} % of GPU {self.used.uuid} over {self.window_s:g} s by NVML; "
            f"{self.used.share_milli / 10:g} % are granted"
        )


class OveruseDetector:
    def __init__(self, slack_milli: int, window_s: float) -> None:
        """`slack_milli`: so much beyond its share a pod's mean may be. It counts again as within when it is below half of that."""
        self._slack_milli, self._window_s = slack_milli, window_s
        self._past: dict[tuple[str, str], deque[tuple[float, float, int]]] = {}
        """Begin, end and use of each sample that lies in the window."""
        self._over: set[tuple[str, str]] = set()
        self._last_s: float | None = None

    def update(self, now_s: float, used: Iterable[Usage]) -> tuple[Overuse, ...]:
        """Those whose mean of a whole window is over. Seconds of any clock that does not go back."""
        before_s, self._last_s = self._last_s, now_s
        seen = {(one.uid, one.uuid): one for one in used}
        self._past = {key: self._past.get(key, deque()) for key in seen}
        found = []
        for key, one in sorted(seen.items()):
            if before_s is not None and now_s > before_s:
                self._past[key].append((before_s, now_s, one.used_milli))
            mean = self._mean(self._past[key], now_s)
            slack = self._slack_milli // 2 if key in self._over else self._slack_milli
            if mean is not None and mean > one.share_milli + slack:
                found.append(Overuse(used=one, mean_milli=mean, window_s=self._window_s))
        self._over = {(over.used.uid, over.used.uuid) for over in found}
        return tuple(found)

    def _mean(self, past: deque[tuple[float, float, int]], now_s: float) -> int | None:
        """None until a whole window was seen."""
        begin_s = now_s - self._window_s
        while past and past[0][1] <= begin_s:
            past.popleft()
        if not past or past[0][0] > begin_s:
            return None
        return round(sum((end - max(begin, begin_s)) * milli for begin, end, milli in past) / self._window_s)


def pod_usage(seen_milli: Mapping[tuple[str, str], int], slices: Iterable[Slice]) -> list[Usage]:
    """`seen_milli` by (pod, GPU); who is not in it was idle. Pods of which a container has no share of its own are left out: they
    may have whatever the others leave."""
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
        )
        for (uid, uuid), group in sorted(grouped.items())
        if all(milli > 0 for _, milli in group) and sum(milli for _, milli in group) < WHOLE_GPU_MILLI
    ]


class ThrottleQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod that overran gets from now on, by the driver's lock: its share of every cycle, until its processes have ended."""

    share_milli: int
    pids: frozenset[int]

    def waits(self, now_ns: int) -> bool:
        return now_ns % CYCLE_NS >= CYCLE_NS * self.share_milli // WHOLE_GPU_MILLI


ThrottleQuotas = Mapping[tuple[str, str], ThrottleQuota]
"""By pod and GPU."""


def update_quotas(
    before: ThrottleQuotas, overuses: Iterable[Overuse], pids: Mapping[tuple[str, str], frozenset[int]]
) -> dict[tuple[str, str], ThrottleQuota]:
    """Who was rationed stays so while it has a process on the GPU: under the lock its mean is its share, which proves nothing. One
    that was honest after all loses little: it is kept to what it has anyway."""
    shares = {key: quota.share_milli for key, quota in before.items()}
    shares |= {(over.used.uid, over.used.uuid): over.used.share_milli for over in overuses}
    return {key: ThrottleQuota(share_milli=milli, pids=pids[key]) for key, milli in shares.items() if pids.get(key)}
