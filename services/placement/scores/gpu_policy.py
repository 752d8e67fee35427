from __future__ import annotations

from services.placement.policies.base import GPU_POLICY_WEIGHT, POLICY_READS, Policy
from services.placement.scores.base import ColumnScore
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.states import PodState


class GpuPolicy(ColumnScore):
    """What the policy in force (kerf, binpack, spread, …) thinks of each node."""

    name = "gpu-policy"
    weight = GPU_POLICY_WEIGHT
    reads = POLICY_READS

    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        return policy.score(pod, arrays, rows, fit)
