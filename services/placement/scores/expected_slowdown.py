from __future__ import annotations

import numpy as np

from services.placement.policies.base import GPU_POLICY_WEIGHT, POLICY_READS, Policy, largest_ask
from services.placement.policies.weighed import LOST_PER_POINT, expected, weights
from services.placement.scores.base import EXCLUDED, ColumnScore
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk


class ExpectedSlowdown(ColumnScore):
    """What is lost on a node by sharing, beside what the policy says of it: never more than nothing.

    The policy rates a node by the GPU that costs later pods least. The pod gets the one where that and what is lost
    weigh least together; the score is the difference. Pods that are not weighed have none.
    """

    name = "expected-slowdown"
    weight = 1
    reads = (*POLICY_READS, "uses", "adaptive")

    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        ask = largest_ask(pod) if pod.adaptive and pod.uses else None
        if ask is None or fit is None:
            return None
        found = np.zeros(len(rows), np.int64)
        for place, row in enumerate(rows.tolist()):
            name = policy.book.row_names[row]
            if name:
                found[place] = _worth(pod, ask, policy, policy.book.nodes[name], fit[place])
        return found


def _worth(pod: PodState, ask: GpuAsk, policy: Policy, node: NodeState, fit: Bools) -> int:
    fitting = [node.gpus[column] for column in np.flatnonzero(fit).tolist()]
    enough = 1 if ask.profile else ask.count  # a GPU may give several instances
    found = expected(pod, ask, fitting, node)
    if found is None:
        return 0
    quiet = [room for room in fitting if room.uuid in found]
    if len(quiet) < enough:
        return EXCLUDED
    points = None if ask.count > 1 else policy.points(pod, ask, quiet, node)
    if points is None:
        lost = sorted(found[room.uuid].lost_milli for room in quiet)[: ask.count]
        return -sum(lost) // (len(lost) * LOST_PER_POINT)
    own = GPU_POLICY_WEIGHT * max(points)
    return int(max(weights(policy, pod, ask, quiet, node, found)) - own)
