"""Tells what is reserved for a pod or gang at the head of the queue."""

from __future__ import annotations

from services.placement.scheduling.backfill.reservations import Backfill
from shared.contracts.explain import ReservedCapacity

_NAMED_MOST = 8


def reserved_for(backfill: Backfill, uid: str) -> ReservedCapacity | None:
    """What is reserved for a waiting pod or its gang; None: nothing."""
    kept = backfill.of(uid)
    if kept is None:
        return None
    return ReservedCapacity(
        nodes=tuple(kept.nodes),
        gpu_milli=kept.gpu_milli,
        idle_gpu_milli=backfill.idle_milli(kept),
        since_s=round(backfill.kept_s(kept)),
        awaits=len(kept.awaits),
    )


def reserved_text(reserved: ReservedCapacity) -> str:
    """For people."""
    more = len(reserved.nodes) - _NAMED_MOST
    nodes = ", ".join(reserved.nodes[:_NAMED_MOST]) + (f" and {more} more nodes" if more > 0 else "")
    pods = f"{reserved.awaits} pods there end" if reserved.awaits > 1 else "1 pod there ends"
    waits = f", and it waits until {pods}" if reserved.awaits else ""
    return (
        f"{reserved.gpu_milli / 1000:g} GPUs on {nodes} have been reserved for it for {reserved.since_s} s: "
        f"{reserved.idle_gpu_milli / 1000:g} of them are free{waits}"
    )
