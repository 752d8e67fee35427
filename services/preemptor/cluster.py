"""Keeps the preemptor's copy of the cluster state: a book, gangs and queues. Pure.

The copy may be slightly stale. Nothing here is authoritative: placement checks every plan.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from services.preemptor import messages as m
from services.preemptor.planning.changed_nodes import ChangedNodes, nodes_of
from services.preemptor.protection import Protection
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.policy import PolicyError, read_queues
from shared.model.kinds import Object
from shared.model.objects import ConfigMap, Gang, Node, Pod
from shared.queues.queues import Queues, policy_text


class Cluster:
    def __init__(self, protection: Protection) -> None:
        """`protection` is notified of each pod that ends."""
        self.book = Book()
        self.gangs = Gangs(self.book)
        self.queues = Queues(self.book)
        self.changed_nodes = ChangedNodes(self.book)
        self._protection = protection
        self._policy: str | None = None
        """The text of the queue policy that was read last."""

    def apply(self, event: m.Input, now: float) -> None:
        """Applies an input about the cluster; ignores any other."""
        match event:
            case m.SnapshotSeen():
                known = set(self.book.grants)
                self.book.apply_snapshot(event.facts)
                self._release_ended(known)
                self.gangs.start_over(now)
                self._protection.end_missing(self.book.pods, now)
                for state in self.book.pods.values():
                    self._suspend(state)
                for name in self.book.nodes:
                    self._trust_agent(name)
                self.changed_nodes.note_all()
                self._read_policy()
            case m.FactsSeen():
                for fact in event.facts:
                    self.changed_nodes.note(self._nodes_of(fact.object))
                    self.book.apply(fact)
                    self._noted(fact.object, now)
                    self.changed_nodes.note(self._nodes_of(fact.object))
            case m.InventorySeen():
                self.book.put_inventory(event.inventory)
                self._trust_agent(event.inventory.node)
            case m.AgentLost():
                self.book.retire_agent(event.node)
            case m.GrantOver():
                # Where its GPU is gone the node's capacity stays as it was.
                if (held := self.book.release(event.grant_id)) is not None:
                    self.changed_nodes.note(held.nodes)

    def mark_victims(self, uids: set[str], now: float) -> None:
        """Counts these members of gangs as gone, and no others, as placement does with the victims of its plans:
        several plans together take no gang below its minimum."""
        changed, self.gangs.going = uids ^ self.gangs.going, uids
        for uid in sorted(changed & self.book.pods.keys()):
            self._see(uid, now)

    def _trust_agent(self, name: str) -> None:
        """Whether an agent may get something is placement's to judge. A node that comes back has the inventory that it
        had, and its agent need not say it again."""
        node = self.book.nodes[name]
        if node.inventory is not None:
            self.book.set_agent_trouble(name, "the node is gone" if node.object is None else "")

    def _release_ended(self, known: Collection[str]) -> None:
        """Releases the grants of pods that had ended before this process heard of them.

        Their nodes have said so already, and say it once; a finished pod's object may stay for weeks. Where a node is
        not that far, placement refuses what is planned too early.
        """
        for held in tuple(self.book.leaving.values()):
            if held.grant_id not in known:
                self.book.release(held.grant_id)

    def _nodes_of(self, seen: Object) -> tuple[str, ...]:
        """Returns the nodes that a pod of the book uses; none for another object."""
        state = self.book.pods.get(seen.metadata.uid) if isinstance(seen, Pod) else None
        return () if state is None else nodes_of(state, self.book)

    def _noted(self, seen: Object, now: float) -> None:
        match seen:
            case Pod():
                uid = seen.metadata.uid
                if uid not in self.book.pods or seen.metadata.deletion_timestamp is not None:
                    self._protection.pod_ended(uid, now)
                if uid in self.book.pods:
                    self._suspend(self.book.pods[uid])
                    self._see(uid, now)
                else:
                    self.gangs.forget(uid, now)
            case Node():
                if seen.metadata.name in self.book.nodes:
                    self._trust_agent(seen.metadata.name)
            case Gang():
                for uid in self.gangs.named_by(seen):
                    self._see(uid, now)
            case ConfigMap():
                self._read_policy()

    def _see(self, uid: str, now: float) -> None:
        state = self.book.pods[uid]
        self.gangs.see(state, now, able=not state.refusal)

    def _suspend(self, state: PodState) -> None:
        """Books a pod's suspension by its annotation. Placement waits for the node's confirmation."""
        held = self.book.grants.get(state.grant_id)
        if held is not None and held.suspension != state.suspension:
            self.book.suspend(held.grant_id, state.suspension)
            if state.suspension is None:
                self.book.park(held.grant_id, parked=False)

    def _read_policy(self) -> None:
        """Reads the queue policy. An unreadable text leaves the last good one in force; placement reports it."""
        text = policy_text(self.book)
        if text != self._policy:
            self._policy = text
            with suppress(PolicyError):
                self.queues.enact(None if text is None else read_queues(text))
