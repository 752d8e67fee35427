"""A GPU's memory by its use: the four amounts that hold at every instant.

| | on the device | whose |
|---|---|---|
| guaranteed | yes | of slices that run, or may |
| paused | yes | of slices that are paused, which keep it |
| returning | yes | of slices that take back what they had given up: no other slice gets it |
| suspended | no | given up for a while: on the host, or not allocated by a shrunk slice |

The first three are on the device together, and all four are what was given. What a plan
reserves is shown beside them: until the victims have released it, it is theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from shared.book.states import NodeState, PodState
from shared.model.grant import sum_shares
from shared.model.suspension import left_of


class MemoryBreakdown(msgspec.Struct):
    """MiB of one GPU."""

    guaranteed_mib: int = 0
    paused_mib: int = 0
    returning_mib: int = 0
    suspended_mib: int = 0
    reserved_mib: int = 0


def memory_breakdown(node: NodeState, returns: Callable[[PodState], bool]) -> dict[str, MemoryBreakdown]:
    """By GPU uuid. `returns`: whether a pod is taking back what it gave up. For a node that has not told this leader
    yet what runs there, the pods' annotations count: the book counts their memory in full until then, so that it is
    not given away."""
    found: dict[str, MemoryBreakdown] = defaultdict(MemoryBreakdown)
    for held in node.grants.values():
        state = node.pods.get(held.uid)
        suspension = (
            state.suspension
            if state is not None and held.suspension is None and node.agent_trouble
            else held.suspension
        )
        kept = sum_shares((held.given if suspension is None else left_of(held.given, suspension),))
        for (name, uuid), (given_mib, _) in sum_shares((held.given,)).items():
            if name != node.name:
                continue
            of, here_mib = found[uuid], kept.get((name, uuid), (0, 0))[0]
            of.suspended_mib += given_mib - here_mib
            if held.phase == "reserved":
                of.reserved_mib += here_mib
            elif suspension is not None and suspension.action == "pause":
                of.paused_mib += here_mib
            elif state is not None and returns(state):
                of.returning_mib += here_mib
            else:
                of.guaranteed_mib += here_mib
    return dict(found)
