"""Until a world has come to rest."""

from __future__ import annotations

from tests.support.endings import ends
from tests.support.preempting import Together


def until_quiet(world: Together, *, quiet_s: float, most_s: float) -> None:
    """Steps until for so long nothing has been bound or evicted, nobody is about to end, and nobody has waited for whom
    somebody could make room: a pod is immune for a while, and then may be asked again."""
    began = since = world.now
    seen = (-1, -1)
    while world.now - since < quiet_s:
        assert world.now - began < most_s, f"still at work after {most_s:g} s, with {world.helped()} still to help"
        world.step()
        now = (len(world.evictions), len(world.grants))
        if (
            now != seen
            or world.preemptor.open
            or any(map(ends, world.live.values()))
            or (world.now - since >= quiet_s and world.helped())
        ):
            since, seen = world.now, now
