from __future__ import annotations

from collections.abc import Mapping, Sequence

Sets = Mapping[int, Sequence[tuple[int, ...]]]

_SINGLE = [(i,) for i in range(8)]
_HALVES = [(0, 1, 2, 3), (4, 5, 6, 7)]
_ALL = [tuple(range(8))]
PASCAL: Sets = {1: _SINGLE, 2: [(0, 2), (1, 3), (4, 6), (5, 7)], 4: _HALVES, 8: _ALL}
VOLTA: Sets = {1: _SINGLE, 2: [(0, 3), (1, 2), (4, 7), (5, 6)], 4: _HALVES, 8: _ALL}


def static_set(sets: Sets, available: Sequence[int], required: Sequence[int], size: int) -> tuple[int, ...]:
    """go-gpuallocator's static policies (gpuallocator/staticdgx_policies.go): the first of the valid sets that is
    available and holds those required; or none."""
    free = set(available)
    if not set(required) <= free:
        return ()
    return next((each for each in sets.get(size, ()) if set(required) <= set(each) <= free), ())
