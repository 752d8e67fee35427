from __future__ import annotations

from collections.abc import Sequence

from shared.scheduling.topology.base import Choice, Mode, all_peers
from shared.scheduling.topology.fabric import Fabric, places_of


class Simple(Mode):
    """The first free ones, as go-gpuallocator's simple policy."""

    name = "simple"

    def choose(self, fabric: Fabric, choice: Choice) -> tuple[int, ...] | None:
        chosen = simple(places_of(choice.fitting), (), choice.size)
        if not chosen or (choice.peers and not all_peers(fabric, sum(1 << place for place in chosen))):
            return None
        return chosen


def simple(available: Sequence[int], required: Sequence[int], size: int) -> tuple[int, ...]:
    """go-gpuallocator's simple policy (gpuallocator/simple_policy.go): those required, then the lowest; or none."""
    if size <= 0 or len(available) < size or len(required) > size or not set(required) <= set(available):
        return ()
    others = [gpu for gpu in sorted(available) if gpu not in required]
    return (*required, *others[: size - len(required)])
