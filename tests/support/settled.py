"""Until a world has come to rest."""

from __future__ import annotations

from tests.support.preemption_harness import PreemptionHarness
from tests.support.terminations import is_terminating


def until_settled(world: PreemptionHarness, *, settled_s: float, max_s: float) -> None:
    """Steps until for so long nothing has been bound or evicted, nobody is about to end, and nobody has waited for whom somebody could make room: a
    pod is immune for a while, and then may be asked again."""
    began = since = world.now
    seen = (-1, -1)
    while world.now - since < settled_s:
        assert world.now - began < max_s, f"still at work after {max_s:g} s, with {world.helped()} still to help"
        world.step()
        now = (len(world.evictions), len(world.grants))
        if (
            now != seen
            or world.preemptor.executions
            or any(map(is_terminating, world.live.values()))
            or (world.now - since >= settled_s and world.helped())
        ):
            since, seen = world.now, now
