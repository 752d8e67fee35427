"""Simulated nodes: which slices they have, what is suspended, what they use, and what they release when.

Safety properties are asserted where they could be violated.
"""

from __future__ import annotations

from collections import defaultdict

from services.placement import messages as m
from services.placement.queries.memory_breakdown import memory_breakdown
from services.preemptor import messages as pm
from shared.contracts.node_commands import LiveSlice, NodeGrant, NodeSync, NodeSyncAnswer
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import Grant, sum_shares
from shared.model.suspension import Suspension, left_of
from tests.support.harness.api_server import TEAM, ApiServer
from tests.support.harness.placement import Placement

GPU_MIB, GPU_MILLI = 81_920, 1_000
STRATEGIES = ("exclusive", "advisory", "interposer")


class Nodes:
    """Nodes whose GPUs have `GPU_MIB` and are shared by slices with enforced limits."""

    def __init__(
        self, gpus: dict[str, int], placement: Placement, api: ApiServer, *, gives_back_s: float, park_mib: int
    ) -> None:
        """`gpus`: by node. `gives_back_s`: how long after a pod's end its node releases the grant. `park_mib`: what
        each host takes of checkpointed GPU memory."""
        self.park_mib = park_mib
        self.gpus = gpus
        self._placement, self._api = placement, api
        self.gives_back_s = gives_back_s
        self.alive: tuple[str, ...] = tuple(gpus)
        """Those whose agents send heartbeats."""
        self.grants: dict[str, Grant] = {}
        """The grants by id, from the Binding until the node has released them."""
        self.suspension: dict[str, Suspension] = {}
        """By grant id, the suspension that its node enforces."""
        self.uses_percent: dict[str, int] = {}
        """By pod name, which part of its granted memory a slice has allocated. Nodes report no other slices."""
        self._releases: list[tuple[float, m.ReleaseSeen]] = []
        """(when, what)"""

    # --- orders -------------------------------------------------------------------------------------------------

    def execute(self, order: NodeGrant) -> m.GrantAcknowledged:
        """Executes an order and confirms it; refuses to shrink a slice below what it has allocated."""
        grant_id = order.grant.grant_id
        if (
            order.suspension is not None
            and order.suspension.action == "shrink"
            and self._uses_mib(order.grant, order.name) > order.suspension.memory_mib
        ):
            return m.GrantAcknowledged(
                self._api.live[order.uid].spec.node_name,
                grant_id,
                reason="it has more allocated",
                suspension=self.suspension.get(grant_id),
            )
        self._obey(order)
        self.assert_no_double_booking()
        node = self._api.live[order.uid].spec.node_name if order.uid in self._api.live else ""
        whole = order.suspension is None
        return m.GrantAcknowledged(
            node,
            grant_id,
            suspension=order.suspension,
            number=order.number,
            whole=whole,
            amendment=order.grant.amendment,
        )

    def _obey(self, order: NodeGrant) -> None:
        """Enforces the suspension; a grant that was amended is on the GPUs that it has now."""
        grant_id, suspension = order.grant.grant_id, order.suspension
        if grant_id in self.grants:
            self.grants[grant_id] = order.grant
        if suspension is None:
            self.suspension.pop(grant_id, None)
        else:
            self.suspension[grant_id] = suspension

    def sync(self, sync: NodeSync) -> NodeSyncAnswer:
        """Takes over the suspensions of a leader, and reports the slices that it does not know."""
        known = {grant.grant.grant_id: grant.suspension for grant in sync.grants}
        for grant in sync.grants:
            if grant.grant.grant_id in self.grants:
                self._obey(grant)
        self.assert_no_double_booking()
        live = []
        for grant_id, grant in self.grants.items():
            for name, part in grant.containers.items():
                if grant_id not in known and any(share.node == sync.node for share in part.gpus):
                    gpus = {share.uuid: (share.memory_mib, share.compute_milli) for share in part.gpus}
                    live.append(
                        LiveSlice(
                            uid=f"of-{grant_id}",
                            namespace=TEAM,
                            name=grant_id,
                            container=name,
                            grant_id=grant_id,
                            strategy=part.strategy,
                            gpus=gpus,
                            nics=grant.nics,
                        )
                    )
        suspended_now = {grant_id: suspension for grant_id, suspension in self.suspension.items() if grant_id in known}
        return NodeSyncAnswer(
            node=sync.node,
            boot_id="boot-1",
            term=sync.term,
            accepted=True,
            number=sync.number,
            live=tuple(live),
            suspension=suspended_now,
        )

    # --- releases -----------------------------------------------------------------------------------------------

    def begin_release(self, node: str, grant_id: str, now: float) -> None:
        """The slices of a grant are taken down, unless they are already or the node does not have them."""
        if grant_id in self.grants and grant_id not in {release.grant_id for _, release in self._releases}:
            self._releases.append((now + self.gives_back_s, m.ReleaseSeen(node, grant_id)))

    def next_release(self, now: float) -> m.ReleaseSeen | None:
        """A release that is over by now, once."""
        due = next(((at, release) for at, release in self._releases if at <= now), None)
        if due is None:
            return None
        self._releases.remove(due)
        self._forget(due[1].grant_id)
        return due[1]

    def lose(self, name: str) -> None:
        """The node disappears with all that runs on it."""
        for grant_id in [
            id_
            for id_, grant in self.grants.items()
            if any(share.node == name for part in grant.containers.values() for share in part.gpus)
        ]:
            self._forget(grant_id)
        self._releases = [(at, release) for at, release in self._releases if release.node != name]

    def _forget(self, grant_id: str) -> None:
        self.grants.pop(grant_id, None)
        self.suspension.pop(grant_id, None)

    # --- usage --------------------------------------------------------------------------------------------------

    def samples(self) -> list[pm.Sampled]:
        """Returns the usage samples of all nodes."""
        samples = []
        for uid, state in self._placement.core.book.pods.items():
            grant, name = self.grants.get(state.grant_id), state.pod.metadata.name
            if grant is None or name not in self.uses_percent:
                continue
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
            share = next(iter(grant.containers.values())).gpus[0]
            gpu = GpuUse(uuid=share.uuid, used_mib=mib, slices=(use,))
            samples.append(pm.Sampled(UsageSample(node=share.node, at_ms=0, gpus=(gpu,))))
        return samples

    def _uses_mib(self, grant: Grant, name: str) -> int:
        return (
            max(share.memory_mib for part in grant.containers.values() for share in part.gpus)
            * self.uses_percent.get(name, 0)
            // 100
        )

    # --- properties ---------------------------------------------------------------------------------------------

    def assert_no_double_booking(self) -> None:
        on_host: dict[str, int] = defaultdict(int)
        for grant_id, suspension in self.suspension.items():
            for share in (s for part in self.grants[grant_id].containers.values() for s in part.gpus):
                on_host[share.node] += share.memory_mib if suspension.action == "checkpoint" else 0
        assert all(mib <= self.park_mib for mib in on_host.values())
        taken: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for grant_id, given in self.grants.items():
            grant = left_of(given, self.suspension[grant_id]) if grant_id in self.suspension else given
            for share in (share for part in grant.containers.values() for share in part.gpus):
                taken[share.uuid][0] += share.memory_mib
                taken[share.uuid][1] += share.compute_milli
        assert all(mib <= GPU_MIB and milli <= GPU_MILLI for mib, milli in taken.values())

    def assert_memory_breakdown(self) -> None:
        """Asserts that slices fit on their GPU, and that with what they have given up they have their grants."""
        core = self._placement.core
        for node in core.book.nodes.values():
            given = sum_shares(held.given for held in node.grants.values() if held.phase != "reserved")
            # If the pod was gone before this leader began, it is unknown what its slice has given up: the slice counts
            # in full until it is released.
            unknown = any(held.phase == "leaving" and held.uid not in node.pods for held in node.grants.values())
            for uuid, of in memory_breakdown(node, core.suspension.returns).items():
                here_mib = of.guaranteed_mib + of.paused_mib + of.returning_mib
                assert here_mib <= GPU_MIB or unknown
                assert here_mib + of.suspended_mib == given.get((node.name, uuid), (0, 0))[0]
            assert all(
                self.suspension.get(held.grant_id) == held.suspension
                for held in node.grants.values()
                if held.suspension is not None and held.grant_id in self.grants
            )
