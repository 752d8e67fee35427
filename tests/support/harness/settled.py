"""Runs a simulated cluster until it has settled."""

from __future__ import annotations

from tests.support.harness.cluster import Cluster
from tests.support.harness.terminations import is_terminating


def until_settled(cluster: Cluster, *, settled_s: float, max_s: float) -> None:
    """Steps until the cluster has been settled for `settled_s`.

    That is: no Binding or eviction, no terminating pod, and no pending pod for which a preemption is possible. A
    protected pod may be preempted later. Fails after `max_s`.
    """
    began = since = cluster.clock.now
    seen = (-1, -1)
    while cluster.clock.now - since < settled_s:
        assert cluster.clock.now - began < max_s, (
            f"still at work after {max_s:g} s, with {cluster.helped()} still to help"
        )
        cluster.step()
        now = (len(cluster.api.evictions), len(cluster.nodes.grants))
        if (
            now != seen
            or cluster.preemptor.core.executions
            or any(map(is_terminating, cluster.api.live.values()))
            or (cluster.clock.now - since >= settled_s and cluster.helped())
        ):
            since, seen = cluster.clock.now, now
