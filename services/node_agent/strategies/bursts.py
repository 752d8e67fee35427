"""How much more than it is guaranteed each slice may use now. Pure.

What no slice on a GPU is guaranteed is lent: to slices of higher rank first, to those of one rank equally, and to none
more than its limit. The memory that a slice is guaranteed and does not use is never lent, so that it is there at once.

A limit is lowered without regard to what the slice has: nothing more is allocated beyond it, and what was allocated
stays. So a limit is raised only by what no other slice has or may allocate, and together they never have more than the
device. A guarantee that needs memory which slices still have waits for it: `overdraft` says for how much.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What one slice could use beyond its guarantee. A higher rank is served first."""

    rank: tuple[int, int]
    amount: int


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's memory, in MiB. What is guaranteed is that of all slices which run there or may start there."""

    total_mib: int
    guaranteed_mib: int
    foreign_mib: int = 0
    reserve_mib: int = 0
    """What is never lent: for memory that no counter has."""
    unseen_mib: int = 0
    """What pods with bursts have beyond what their slices count and are guaranteed, by NVML."""

    @property
    def spare_mib(self) -> int:
        """What may be lent."""
        return max(0, self.total_mib - self.guaranteed_mib - self.foreign_mib - self.reserve_mib)


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """One slice on one GPU, in MiB beyond its guarantee."""

    rank: tuple[int, int]
    limit_mib: int
    """The most that it may ever use."""
    allowed_mib: int = 0
    """What its limit is now."""
    held_mib: int = 0
    """What it has. Nothing while its memory is on the host."""
    needs_mib: int = 0
    """What it needs to come back from the host; 0: it is not there."""

    @property
    def reach_mib(self) -> int:
        """What it has or may allocate."""
        return max(self.allowed_mib, self.held_mib)


def divide(spare: int, wants: Mapping[K, Want]) -> dict[K, int]:
    """Divides an amount: by rank, and within a rank equally, where what one does not want goes to the others."""
    given = {}
    for rank in sorted({want.rank for want in wants.values()}, reverse=True):
        equal = sorted(
            (want.amount, index, key) for index, (key, want) in enumerate(wants.items()) if want.rank == rank
        )
        for place, (amount, _, key) in enumerate(equal):
            given[key] = max(0, min(amount, spare // (len(equal) - place)))
            spare -= given[key]
    return given


def targets(room: Room, bursts: Mapping[K, Burst]) -> dict[K, int]:
    """What each slice may use when all have given back what is not theirs. Those on the host come first, by rank: they
    run again only with all that they had."""
    spare, found = room.spare_mib, {}
    waiting = sorted((key for key in bursts if bursts[key].needs_mib), key=lambda key: bursts[key].rank, reverse=True)
    for key in waiting:
        found[key] = bursts[key].needs_mib if bursts[key].needs_mib <= spare else 0
        spare -= found[key]
    wants = {key: Want(rank=burst.rank, amount=burst.limit_mib) for key, burst in bursts.items() if not burst.needs_mib}
    return found | divide(spare, wants)


def lowered(room: Room, bursts: Mapping[K, Burst]) -> dict[K, int]:
    """The limits at once: none is raised."""
    return {key: min(bursts[key].allowed_mib, target) for key, target in targets(room, bursts).items()}


def raised(room: Room, bursts: Mapping[K, Burst]) -> dict[K, int]:
    """The limits after they were lowered and `held_mib` was read: raised by what no slice has or may allocate. Of
    those on the host the amount is the need, if there is room for it now, else 0."""
    aims = targets(room, bursts)
    free = room.spare_mib - room.unseen_mib - sum(burst.reach_mib for burst in bursts.values())
    found = {}
    for key in sorted(bursts, key=lambda key: (bool(bursts[key].needs_mib), bursts[key].rank), reverse=True):
        burst = bursts[key]
        reach_mib = min(aims[key], burst.reach_mib + max(0, free))
        if burst.needs_mib and reach_mib < burst.needs_mib:
            found[key] = 0
            continue
        found[key] = max(min(burst.allowed_mib, aims[key]), reach_mib)
        free -= max(0, found[key] - burst.reach_mib)
    return found


def overdraft(room: Room, bursts: Iterable[Burst]) -> int:
    """The MiB that slices must give back before all guarantees have their memory; 0 or less if they have.

    Foreign memory has the reserve first: no slice must give back what fits on the GPU.
    """
    free_mib = room.total_mib - room.guaranteed_mib - max(room.foreign_mib, room.reserve_mib)
    return sum(burst.held_mib for burst in bursts) + room.unseen_mib - max(0, free_mib)
