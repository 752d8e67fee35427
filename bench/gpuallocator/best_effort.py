from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple, cast

from shared.scheduling.topology.base import Choice
from shared.scheduling.topology.fabric import Fabric, places_of
from shared.scheduling.topology.ring import choose_gpus

Scores = Sequence[Sequence[int]]
_DIVIDED_MOST = 16


def choose_best_effort(fabric: Fabric, choice: Choice) -> tuple[int, ...] | None:
    """Chooses as NVIDIA's go-gpuallocator and device plugin do by default; None if there is no set.

    All free GPUs are divided into sets of the wanted size so that the sum of pair scores over all sets is greatest, and
    the best of these sets is given. Kept as it is, with what it is known for: a single GPU is the first free one, and a
    set of 210 points can be passed over for one of 150. Above 16 free GPUs there are too many divisions: it chooses as
    Kerf does.
    """
    if choice.fitting.bit_count() > _DIVIDED_MOST:
        return choose_gpus(fabric, choice)
    key = ("best-effort", choice.fitting, choice.size)
    if key not in fabric.memo:
        fabric.memo[key] = best_effort(fabric.score, places_of(choice.fitting), (), choice.size)
    return cast("tuple[int, ...]", fabric.memo[key]) or None


def best_effort(score: Scores, available: Sequence[int], required: Sequence[int], size: int) -> tuple[int, ...]:
    """go-gpuallocator's best-effort policy (gpuallocator/besteffort_policy.go): the chosen GPUs, or none.

    Where `size` does not divide the GPUs, one set of the division is smaller. Each division must hold `required` in one
    full set. Of equal divisions, and of equal sets in the best one, the first counts, in the order of `available`.
    """
    if size <= 0 or len(available) < size or len(required) > size or not set(required) <= set(available):
        return ()
    if size == 1:
        return tuple(required) or (available[0],)
    count = len(available)
    inner = [[score[a][b] for b in available] for a in available]
    wanted = sum(1 << place for place, gpu in enumerate(available) if gpu in required)
    division = _Divider(inner, wanted, size).divide((1 << count) - 1, count % size)
    if division is None:
        return ()
    full = [each for each in division.sets if each.bit_count() == size and wanted & ~each == 0]
    return tuple(available[place] for place in places_of(max(full, key=lambda each: _points(inner, each))))


class _Division(NamedTuple):
    points: int
    sets: tuple[int, ...]


class _Divider:
    def __init__(self, score: Scores, required: int, size: int) -> None:
        self.score, self.required, self.size = score, required, size
        self._known: dict[tuple[int, int], _Division | None] = {}
        self._points: dict[int, int] = {}

    def divide(self, gpus: int, small: int) -> _Division | None:
        """The first of the divisions with the most points. `small` is the size of the smaller set to come, if any."""
        if not gpus:
            return _Division(0, ())
        key = (gpus, small)
        if key in self._known:
            return self._known[key]
        best: _Division | None = None
        first, *others = places_of(gpus)
        for pattern in _patterns(len(others), self.size, small):
            chosen = 1 << first
            for place in pattern:
                chosen |= 1 << others[place]
            full = len(pattern) + 1 == self.size
            held = chosen & self.required
            if held and not (full and held == self.required):
                continue
            rest = self.divide(gpus & ~chosen, small if full else 0)
            if rest is not None and (best is None or self._worth(chosen) + rest.points > best.points):
                best = _Division(self._worth(chosen) + rest.points, (chosen, *rest.sets))
        self._known[key] = best
        return best

    def _worth(self, gpus: int) -> int:
        known = self._points.get(gpus)
        if known is None:
            known = self._points[gpus] = _points(self.score, gpus)
        return known


@lru_cache(maxsize=256)
def _patterns(others: int, size: int, small: int) -> tuple[tuple[int, ...], ...]:
    """Which other GPUs join the first one, in upstream's order: there the smaller set is filled up with padding, which
    follows every GPU and is complete in one set."""
    full = combinations(range(others), size - 1)
    less = combinations(range(others), small - 1) if small else iter(())
    return tuple(sorted((*full, *less), key=lambda each: each + (others,) * (size - 1 - len(each))))


def _points(score: Scores, gpus: int) -> int:
    return sum(score[a][b] for a, b in combinations(places_of(gpus), 2))
