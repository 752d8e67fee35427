from __future__ import annotations

from collections.abc import Sequence

from shared.scheduling.topology import Choice, Fabric
from shared.scheduling.topology.fabric import places_of


def choose_simple(_: Fabric, choice: Choice) -> tuple[int, ...] | None:
    """Chooses the first free GPUs; None if they are too few."""
    return simple(places_of(choice.fitting), (), choice.size) or None


def simple(available: Sequence[int], required: Sequence[int], size: int) -> tuple[int, ...]:
    """go-gpuallocator's simple policy (gpuallocator/simple_policy.go): those required, then the lowest; or none."""
    if size <= 0 or len(available) < size or len(required) > size or not set(required) <= set(available):
        return ()
    others = [gpu for gpu in sorted(available) if gpu not in required]
    return (*required, *others[: size - len(required)])
