"""How good a set of GPUs is for pods that communicate, and what a set of free GPUs is still good for.

An all-reduce runs in a ring and is as fast as its slowest link, so a set is worth the weakest link of its best ring; of
equal sets the one on fewer NUMA nodes, then the one near more network cards. The free GPUs that remain are worth the
sets of 2, 4 and 8 that they can form. All sets are bit masks over the fabric's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, islice
from typing import cast

from shared.scheduling.topology.fabric import Fabric, places_of

GROUPS = (2, 4, 8)
"""The sizes that later pods are assumed to request."""
_NEARNESS = 64
_SEARCHED_MOST = 50_000
_EXACT_MOST = 8
"""Packings of this many GPUs are exact, of more than that greedy."""
CANDIDATES_MOST = 4096
_GREEDY_MOST = 128
"""Sets to be looked at for each that is packed greedily."""


def ring_mb_s(fabric: Fabric, gpus: int) -> int:
    """The bandwidth of the weakest link in the best ring over a set; 0 for less than two. Two form a ring by their
    link.

    Exact for up to 16 GPUs; above, where the search is given up, never too high.
    """
    if gpus.bit_count() < 2:
        return 0
    key = ("ring", gpus)
    known = fabric.memo.get(key)
    if known is None:
        known = fabric.memo[key] = next(
            (level for level in fabric.levels if _has_ring(fabric.reach[level], gpus)), fabric.levels[-1]
        )
    return cast(int, known)


def _has_ring(reach: tuple[int, ...], gpus: int) -> bool:
    """Whether the graph on these places has a Hamiltonian cycle."""
    places = places_of(gpus)
    degrees = [(reach[p] & gpus).bit_count() for p in places]
    if len(places) == 2:
        return degrees[0] == 1
    if min(degrees) < 2:
        return False
    if 2 * min(degrees) >= len(places):
        return True  # Dirac's theorem
    start = places[0]
    ends = {1 << start: 1 << start}
    searched = 0
    for _ in places[1:]:
        further: dict[int, int] = {}
        for visited, last in ends.items():
            for end in places_of(last):
                for place in places_of(reach[end] & gpus & ~visited):
                    grown = visited | 1 << place
                    further[grown] = further.get(grown, 0) | 1 << place
        ends = further
        searched += len(ends)
        if searched > _SEARCHED_MOST and len(places) > 16:
            return False
    return bool(ends.get(gpus, 0) & reach[start])


def quality(fabric: Fabric, gpus: int) -> int:
    """Ring bandwidth first, then nearness to each other and to network cards, in one number. 0 for a single GPU."""
    if gpus.bit_count() < 2:
        return 0
    key = ("quality", gpus)
    known = fabric.memo.get(key)
    if known is None:
        places = places_of(gpus)
        numa = len({fabric.numa[p] for p in places})
        cards = 0
        for place in places:
            cards |= fabric.cards[place]
        nearness = 8 * max(0, 5 - numa) + min(7, cards.bit_count())
        known = fabric.memo[key] = _NEARNESS * ring_mb_s(fabric, gpus) + nearness
    return cast(int, known)


Measure = Callable[[Fabric, int], int]
"""What a set of GPUs is worth by itself."""


def worth(fabric: Fabric, free: int, of: Measure = quality) -> int:
    """What free GPUs are still good for: over the sizes 2, 4 and 8, the quality of the sets that they can be divided
    into, each counted by its size. `of`: another measure of a set than its quality."""
    free = canonical(fabric, free)
    key = ("worth", free, of)
    known = fabric.memo.get(key)
    if known is None:
        known = fabric.memo[key] = sum(
            size * _packed(fabric, free, size, of) for size in GROUPS if size <= free.bit_count()
        )
    return cast(int, known)


def _packed(fabric: Fabric, free: int, size: int, of: Measure) -> int:
    """The most that disjoint sets of one size can be worth together."""
    if free.bit_count() < size:
        return 0
    free = canonical(fabric, free)
    key = ("packed", free, size, of)
    known = fabric.memo.get(key)
    if known is None:
        pack = _pack_exactly if free.bit_count() <= _EXACT_MOST else _pack_greedily
        known = fabric.memo[key] = pack(fabric, free, size, of)
    return cast(int, known)


def _pack_exactly(fabric: Fabric, free: int, size: int, of: Measure) -> int:
    places = places_of(free)
    best = _packed(fabric, free & ~(1 << places[0]), size, of)
    for rest in combinations(places[1:], size - 1):
        chosen = sum(1 << p for p in rest) | 1 << places[0]
        best = max(best, of(fabric, chosen) + _packed(fabric, free & ~chosen, size, of))
    return best


def _pack_greedily(fabric: Fabric, free: int, size: int, of: Measure) -> int:
    chosen = max(candidates(fabric, free, size, most=_GREEDY_MOST), key=lambda gpus: (of(fabric, gpus), -gpus))
    return of(fabric, chosen) + _packed(fabric, free & ~chosen, size, of)


def canonical(fabric: Fabric, gpus: int) -> int:
    """The set with each GPU replaced by the lowest of its twins: equal in worth, and one entry in the memo for many."""
    key = ("canonical", gpus)
    known = fabric.memo.get(key)
    if known is None:
        counts: dict[int, int] = {}
        for place in places_of(gpus):
            counts[fabric.twins[place]] = counts.get(fabric.twins[place], 0) + 1
        made = 0
        for place, twin in enumerate(fabric.twins):
            if counts.get(twin, 0):
                counts[twin] -= 1
                made |= 1 << place
        known = fabric.memo[key] = made
    return cast(int, known)


def candidates(
    fabric: Fabric, free: int, size: int, groups: tuple[int, ...] | None = None, *, most: int = CANDIDATES_MOST
) -> Iterator[int]:
    """The sets of one size to be looked at, one of each kind: of twins in one group the lowest places. `groups` are the
    fabric's twins unless given. Where there are more than can be looked at, those that grow from each GPU by the
    nearest."""
    groups = groups or fabric.twins
    classes: dict[int, list[int]] = {}
    for place in places_of(free):
        classes.setdefault(groups[place], []).append(place)
    if _kinds(classes, size) > most:
        return iter({_grown(fabric, free, start, size) for start in places_of(free)})
    return _by_class(list(classes.values()), size)


def _kinds(classes: dict[int, list[int]], size: int) -> int:
    """How many sets `_by_class` would yield."""
    ways = [1] + [0] * size
    for members in classes.values():
        ways = [sum(ways[total - taken] for taken in range(min(len(members), total) + 1)) for total in range(size + 1)]
    return ways[size]


def _by_class(classes: list[list[int]], size: int) -> Iterator[int]:
    if not classes:
        if size == 0:
            yield 0
        return
    members, later = classes[0], classes[1:]
    rest = sum(map(len, later))
    for taken in range(min(size, len(members)), max(0, size - rest) - 1, -1):
        lowest = sum(1 << p for p in islice(members, taken))
        for others in _by_class(later, size - taken):
            yield lowest | others


def _grown(fabric: Fabric, free: int, start: int, size: int) -> int:
    chosen, total = 1 << start, {p: fabric.mb_s[start][p] for p in places_of(free) if p != start}
    while chosen.bit_count() < size:
        best = max(total, key=lambda p: (total[p], -p))
        chosen |= 1 << best
        del total[best]
        # The weakest link counts; of equal ones the stronger sum.
        total = {p: min(least, fabric.mb_s[best][p]) + fabric.mb_s[best][p] // 1000 for p, least in total.items()}
    return chosen
