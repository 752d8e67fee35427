from __future__ import annotations

from typing import cast

from shared.scheduling.topology.base import Choice, Near, all_near, largest_group
from shared.scheduling.topology.fabric import Fabric, places_of
from shared.scheduling.topology.rings import candidates, quality, ring_mb_s, worth

_MEMO_MOST = 200_000


def choose_gpus(fabric: Fabric, choice: Choice) -> tuple[int, ...] | None:
    """The set whose best ring has the strongest weakest link, as places, lowest first; None if there is no set.

    Of equal sets the one on fewer NUMA nodes and near more network cards, then the policy's choice, then the one that
    leaves the best rings to later pods, then the one beside enough CPUs. A single GPU breaks no pair unless it has
    to. Deterministic: the same choice
    on the same fabric gives the same GPUs.
    """
    if choice.fitting.bit_count() < choice.size:
        return None
    key = ("choice", choice)
    if key not in fabric.memo:
        if len(fabric.memo) > _MEMO_MOST:
            fabric.memo.clear()
        fabric.memo[key] = _best(fabric, choice)
    return cast("tuple[int, ...] | None", fabric.memo[key])


def _best(fabric: Fabric, choice: Choice) -> tuple[int, ...] | None:
    groups = [
        (fabric.twins[place], choice.idle >> place & 1, choice.rank[place] if choice.rank else 0)
        for place in range(fabric.count)
    ]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    found = candidates(fabric, choice.fitting, choice.size, tuple(numbers[group] for group in groups))
    sets = [gpus for gpus in found if not choice.near or all_near(fabric, gpus, choice.near)]
    if not sets:
        # On a large machine not all sets were looked at; any part of a group in which all are near is one.
        group = places_of(largest_group(fabric, choice.fitting, choice.near or "peers"))
        return group[: choice.size] if len(group) >= choice.size else None
    return places_of(max(sets, key=lambda gpus: _value(fabric, choice, gpus)))


def _value(fabric: Fabric, choice: Choice, gpus: int) -> tuple[int, int, int, int, int, int, tuple[int, ...]]:
    """CPUs count less than the rings that are left, and more than how near to each other the GPUs of these are."""
    places, left = places_of(gpus), choice.idle & ~gpus
    return (
        quality(fabric, gpus),
        -sum(choice.rank[place] for place in places) if choice.rank else 0,
        worth(fabric, left, ring_mb_s) if choice.short else 0,
        -(gpus & choice.short).bit_count(),
        worth(fabric, left),
        sum(fabric.mb_s[a][b] for a in places for b in places),
        tuple(-place for place in places),
    )


def best_ring_mb_s(fabric: Fabric, fitting: int, size: int, *, near: Near = "") -> int:
    """The ring that a pod would get of these, 0 where there is none."""
    chosen = choose_gpus(fabric, Choice(size=size, fitting=fitting, idle=fitting, near=near))
    return 0 if chosen is None else ring_mb_s(fabric, sum(1 << place for place in chosen))
