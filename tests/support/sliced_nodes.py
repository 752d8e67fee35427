"""Simulated nodes: which slices they have, what is suspended, and what they use.

Safety properties are asserted where they could be violated.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from services.placement import messages as m
from services.placement.queries.memory_breakdown import memory_breakdown
from services.preemptor import messages as pm
from shared.contracts.node_commands import NodeGrant
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import Grant, sum_shares
from shared.model.objects import Pod
from shared.model.suspension import Suspension, left_of
from tests.support.leader import Leader

TEAM = "team"
GPU_MIB, GPU_MILLI = 81_920, 1_000


class SlicedNodes(Leader):
    """Nodes whose GPUs have `GPU_MIB` and are shared by slices with enforced limits."""

    def __init__(self, **settings: Any) -> None:
        self.live: dict[str, Pod] = {}
        """The pods by uid, as the API server has them."""
        self.grants: dict[str, Grant] = {}
        """The grants by id, from the Binding until the node has released them."""
        self.suspension: dict[str, Suspension] = {}
        """By grant id, the suspension that its node enforces."""
        self.uses_percent: dict[str, int] = {}
        """By pod name, which part of its granted memory a slice has allocated. Nodes report no other slices."""
        super().__init__(**settings)

    def uses(self) -> list[pm.Sampled]:
        """Returns the usage samples of all nodes."""
        said = []
        for uid, state in self.core.book.pods.items():
            grant, name = self.grants.get(state.grant_id), state.pod.metadata.name
            if grant is not None and name in self.uses_percent:
                mib = self._uses_mib(grant, name)
                use = SliceUse(
                    uid=uid,
                    namespace=TEAM,
                    name=name,
                    memory_mib=mib,
                    granted_memory_mib=mib,
                    granted_compute_milli=0,
                    counted_mib=mib,
                )
                said.append(
                    pm.Sampled(
                        UsageSample(node=state.charged, at_ms=0, gpus=(GpuUse(uuid="", used_mib=mib, slices=(use,)),))
                    )
                )
        return said

    def _uses_mib(self, grant: Grant, name: str) -> int:
        return (
            max(share.memory_mib for part in grant.containers.values() for share in part.gpus)
            * self.uses_percent.get(name, 0)
            // 100
        )

    def told(self, order: NodeGrant) -> m.Input:
        """Executes an order and confirms it; refuses to shrink a slice below what it has allocated."""
        grant_id = order.grant.grant_id
        if (
            order.suspension is not None
            and order.suspension.action == "shrink"
            and self._uses_mib(order.grant, order.name) > order.suspension.memory_mib
        ):
            return m.GrantAcknowledged(
                self.live[order.uid].spec.node_name,
                grant_id,
                reason="it has more allocated",
                suspension=self.suspension.get(grant_id),
            )
        if order.suspension is None:
            self.suspension.pop(grant_id, None)
        else:
            self.suspension[grant_id] = order.suspension
        self.assert_no_double_booking()
        return m.GrantAcknowledged(
            self.live[order.uid].spec.node_name if order.uid in self.live else "", grant_id, suspension=order.suspension
        )

    def assert_no_double_booking(self) -> None:
        taken: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for grant_id, given in self.grants.items():
            grant = left_of(given, self.suspension[grant_id]) if grant_id in self.suspension else given
            for share in (share for part in grant.containers.values() for share in part.gpus):
                taken[share.uuid][0] += share.memory_mib
                taken[share.uuid][1] += share.compute_milli
        assert all(mib <= GPU_MIB and milli <= GPU_MILLI for mib, milli in taken.values())

    def assert_memory_breakdown(self) -> None:
        """Asserts that slices fit on their GPU, and that with what they have given up they have their grants."""
        for node in self.core.book.nodes.values():
            given = sum_shares(held.given for held in node.grants.values() if held.phase != "reserved")
            # If the pod was gone before this leader began, it is unknown what its slice has given up: the slice counts
            # in full until it is released.
            unknown = any(held.phase == "leaving" and held.uid not in node.pods for held in node.grants.values())
            for uuid, of in memory_breakdown(node, self.core.suspension.returns).items():
                here_mib = of.guaranteed_mib + of.paused_mib + of.returning_mib
                assert here_mib <= GPU_MIB or unknown
                assert here_mib + of.suspended_mib == given.get((node.name, uuid), (0, 0))[0]
            assert all(
                self.suspension.get(held.grant_id) == held.suspension
                for held in node.grants.values()
                if held.suspension is not None and held.grant_id in self.grants
            )
