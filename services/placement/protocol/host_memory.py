"""When host memory that checkpointed pods took is free again.

The book counts a grant from the moment at which a plan that checkpoints its pod is reserved. It is free again when
- no open plan, no annotation and no order that may still be written wants the checkpoint, and
- the node has answered the order that followed: it has all GPU memory of the grant on the GPU. The pod may be paused.
A node that cannot restore it yet is asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.placement import messages as m
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import touch
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.model.suspension import goes_to_host

ASK_AGAIN_S = 5.0


class HostMemory:
    def __init__(self, book: Book, nodes: Nodes, capacity_changes: CapacityChanges) -> None:
        self._book, self._nodes, self._capacity_changes = book, nodes, capacity_changes
        self._ordered: dict[str, str] = {}
        """By uid of pods whose checkpoint was ordered: the resourceVersion at which it may still be written."""
        self._asked: dict[str, int] = {}
        """By grant id: the number of the order by which its node is to have all of it on the GPU."""
        self._asked_at: dict[str, float] = {}
        self.cannot_checkpoint: dict[str, str] = {}
        """By id of grants whose programs cannot be checkpointed, by their nodes' rehearsals: why."""

    def take(self, grant_id: str) -> None:
        """Counts a grant whose checkpoint is reserved."""
        self._book.park(grant_id)

    def ordered(self, state: PodState) -> None:
        """Notes that the annotation may be written at this version of the pod."""
        self._ordered[state.uid] = state.pod.metadata.resource_version

    def settled(self, uid: str) -> bool:
        """Whether no order to checkpoint this pod can be written any more that has not been; or in vain, since its node
        has given its grant back."""
        state = self._book.pods.get(uid)
        return uid not in self._ordered or state is None or state.grant_id not in self._book.grants or self._moved(uid)

    def told(self, held: GrantState, orders: list[m.Command], now: float) -> None:
        """Notes the order that tells a node to have all of a grant on the GPU."""
        numbers = [c.grant.number for c in orders if isinstance(c, m.SendGrant) and c.node == held.node]
        if numbers:
            self._asked[held.grant_id], self._asked_at[held.grant_id] = max(numbers), now

    def answered(self, event: m.GrantAcknowledged, open_checkpoints: Collection[str]) -> None:
        """Handles a node's answer: frees the host memory of a grant that it has all on the GPU by the last order."""
        self._rehearsed(event.grant_id, event.cannot_checkpoint)
        held = self._book.grants.get(event.grant_id)
        asked = self._asked.get(event.grant_id)
        if held is None or asked is None or not event.whole or event.number < asked:
            return
        if self._is_over(held, open_checkpoints):
            self._book.park(held.grant_id, parked=False)
            self._capacity_changes.note()

    def synced(self, node: str, on_host: Collection[str], cannot_checkpoint: Mapping[str, str]) -> None:
        """Handles what a node tells a new leader about the host memory of its grants."""
        for grant_id in self._book.nodes[node].grants:
            self._rehearsed(grant_id, cannot_checkpoint.get(grant_id, ""))
        for grant_id in on_host:
            if grant_id in self._book.nodes[node].grants:
                self._book.park(grant_id)

    def tick(self, open_checkpoints: Collection[str], term: int, now: float) -> list[m.Command]:
        """Asks nodes until they have all on the GPU again, and moves pods with an order that may still be
        written: also of pods that are paused meanwhile, which a new leader tells by its sync alone.

        `open_checkpoints`: grants that open plans checkpoint.
        """
        book, out = self._book, list[m.Command]()
        self._ordered = {uid: at for uid, at in self._ordered.items() if not self.settled(uid)}
        self._asked = {grant_id: number for grant_id, number in self._asked.items() if grant_id in book.parked}
        self._asked_at = {grant_id: at for grant_id, at in self._asked_at.items() if grant_id in book.parked}
        self.cannot_checkpoint = {i: why for i, why in self.cannot_checkpoint.items() if i in book.grants}
        for grant_id in sorted(book.parked):
            held = book.grants[grant_id]
            state = book.pods.get(held.uid)
            if state is None or held.phase != "bound":
                continue
            if now - self._asked_at.get(grant_id, -ASK_AGAIN_S) < ASK_AGAIN_S:
                continue
            if self._is_over(held, open_checkpoints, whatever_is_ordered=True):
                self._asked_at[grant_id] = now
                if held.uid in self._ordered:
                    out.append(m.SendPatches((touch(state, term),)))
                else:
                    orders = self._nodes.granted(held, now)
                    self.told(held, orders, now)
                    out += orders
        return out

    def _rehearsed(self, grant_id: str, why: str) -> None:
        self.cannot_checkpoint.pop(grant_id, None)
        if why:
            self.cannot_checkpoint[grant_id] = why

    def _moved(self, uid: str) -> bool:
        return self._book.pods[uid].pod.metadata.resource_version != self._ordered[uid]

    def _is_over(
        self, held: GrantState, open_checkpoints: Collection[str], *, whatever_is_ordered: bool = False
    ) -> bool:
        """Whether nothing wants the checkpoint any more, or may still come to."""
        state = self._book.pods.get(held.uid)
        if state is None or held.grant_id in open_checkpoints or goes_to_host(held.suspension):
            return False
        ordered = held.uid in self._ordered and not self._moved(held.uid)
        return not goes_to_host(state.suspension) and (whatever_is_ordered or not ordered)
