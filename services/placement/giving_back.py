"""What comes back (R6): a grant ends when its node says so, or when its node is gone; never because its pod is."""

from __future__ import annotations

from services.placement import messages as m
from services.placement.freed import Freed
from services.placement.nodes import Nodes
from services.placement.parking import Parking
from shared.book.book import Book
from shared.book.states import GrantState
from shared.contracts.events import GrantEnded


class GivingBack:
    def __init__(self, book: Book, nodes: Nodes, parking: Parking, freed: Freed) -> None:
        self._book, self._nodes, self._parking, self._freed = book, nodes, parking, freed

    def pod_ended(self, grant_id: str, now: float) -> list[m.Command]:
        """Its node is asked to give back what it had; a node that is gone has given back all."""
        self._freed.note()
        held = self._book.grants.get(grant_id)
        if held is None:
            return []
        if held.node not in self._book.nodes or self._book.nodes[held.node].object is None:
            return [self._end(held, "its node is gone")]
        return self._nodes.leaving(held, now)

    def synced(self, event: m.SyncAnswered, now: float) -> list[m.Command]:
        """A node's word on all that runs there, of this term."""
        self._freed.note()
        self._parking.synced(event.answer.parked)
        ended = (self._book.grants.get(grant_id) for grant_id in self._nodes.synced(event.answer, now))
        return [self._end(held, "given back before this term") for held in ended if held is not None]

    def released(self, event: m.ReleaseSeen) -> list[m.Command]:
        """A node's word on one grant. What has not been seen bound yet the agent says again until it has; and no node gives back
        what is another's."""
        held = self._book.grants.get(event.grant_id)
        if held is not None and (held.phase == "holding" or held.node != event.node):
            return []
        out = [] if held is None else [self._end(held, event.reason)]
        self._nodes.acknowledged(event.grant_id)
        return [*out, m.SendReleasesSeen(event.node, (event.grant_id,))]

    def _end(self, held: GrantState, reason: str) -> m.Command:
        self._freed.note()
        self._book.release(held.grant_id)
        self._nodes.acknowledged(held.grant_id)
        ended = GrantEnded(uid=held.uid, namespace=held.namespace, name=held.name, node=held.node, grant_id=held.grant_id, reason=reason)
        return m.Publish(ended, namespace=held.namespace, uid=held.uid)
