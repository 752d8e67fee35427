from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from shared.scheduling.topology.base import Choice, Mode, all_peers
from shared.scheduling.topology.fabric import Fabric, places_of

_Sets = Mapping[int, Sequence[tuple[int, ...]]]

_SINGLE = [(i,) for i in range(8)]
_HALVES = [(0, 1, 2, 3), (4, 5, 6, 7)]
_ALL = [tuple(range(8))]
PASCAL: _Sets = {1: _SINGLE, 2: [(0, 2), (1, 3), (4, 6), (5, 7)], 4: _HALVES, 8: _ALL}
VOLTA: _Sets = {1: _SINGLE, 2: [(0, 3), (1, 2), (4, 7), (5, 6)], 4: _HALVES, 8: _ALL}


class _StaticDgx1(Mode):
    """A DGX-1 in fixed sets of 1, 2, 4 or 8, as go-gpuallocator's static policies. No other size is ever given."""

    sets: ClassVar[_Sets]

    def choose(self, fabric: Fabric, choice: Choice) -> tuple[int, ...] | None:
        place_at = {index: place for place, index in enumerate(fabric.indices)}
        indices = static_set(self.sets, [fabric.indices[place] for place in places_of(choice.fitting)], (), choice.size)
        places = tuple(sorted(place_at[index] for index in indices))
        if not places or (choice.peers and not all_peers(fabric, sum(1 << place for place in places))):
            return None
        return places


class StaticDgx1Pascal(_StaticDgx1):
    name = "static-dgx1-pascal"
    sets = PASCAL


class StaticDgx1Volta(_StaticDgx1):
    name = "static-dgx1-volta"
    sets = VOLTA


def static_set(sets: _Sets, available: Sequence[int], required: Sequence[int], size: int) -> tuple[int, ...]:
    """go-gpuallocator's static policies (gpuallocator/staticdgx_policies.go): the first of the valid sets that is
    available and holds those required; or none."""
    free = set(available)
    if not set(required) <= free:
        return ()
    return next((each for each in sets.get(size, ()) if set(required) <= set(each) <= free), ())
