"""Runs a simulated cluster until it has settled."""

from __future__ import annotations

from tests.support.preemption_harness import PreemptionHarness
from tests.support.terminations import is_terminating


def until_settled(world: PreemptionHarness, *, settled_s: float, max_s: float) -> None:
    """Steps until the cluster has been settled for `settled_s`.

    That is: no Binding or eviction, no terminating pod, and no pending pod for which a preemption is possible. A
    protected pod may be preempted later. Fails after `max_s`.
    """
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
