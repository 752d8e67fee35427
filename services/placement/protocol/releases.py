"""Releases (R6): a grant ends when its node says so, or when its node is gone; never because its pod is."""

from __future__ import annotations

from services.placement import messages as m
from services.placement.pod_events import warn
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.nodes import Nodes
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.contracts.commands import DeletePod
from shared.contracts.events import GrantEnded
from shared.contracts.node_commands import NodeSyncAnswer

_FOR_GOOD = "its node has released it for good"


class Releases:
    def __init__(self, book: Book, nodes: Nodes, capacity_changes: CapacityChanges) -> None:
        self._book, self._nodes, self._capacity_changes = book, nodes, capacity_changes

    def pod_ended(self, grant_id: str, now: float) -> list[m.Command]:
        """Its node is asked to release its grant. A node that is gone has released everything."""
        self._capacity_changes.note()
        held = self._book.grants.get(grant_id)
        if held is None:
            return []
        if held.node not in self._book.nodes or self._book.nodes[held.node].object is None:
            return [self._end(held, "its node is gone")]
        return self._nodes.leaving(held, now)

    def serving_node_gone(self, held: GrantState, now: float) -> list[m.Command]:
        """The node of a grant's GPU is gone, and with it whatever was to be given back there."""
        return self._ended(held, f"node {held.node}, which has its GPU, is gone", now)

    def synced(self, answer: NodeSyncAnswer, now: float) -> list[m.Command] | None:
        """A node's answer on all that runs there. None, and no change, if it does not answer the present sync."""
        released = self._nodes.synced(answer, now)
        if released is None:
            return None
        self._capacity_changes.note()
        return [command for grant_id in released for command in self._void(grant_id, answer.node, now)]

    def dead(self, event: m.GrantAcknowledged, now: float) -> list[m.Command]:
        """A node will never hand this grant over, so its capacity is free."""
        self._nodes.acknowledged(event.grant_id, event.node)
        return self._void(event.grant_id, event.node, now)

    def _void(self, grant_id: str, node: str, now: float) -> list[m.Command]:
        """A hold keeps its capacity: its Binding may still succeed, and then the node repeats its answer."""
        held = self._book.grants.get(grant_id)
        if held is None or held.phase in ("holding", "reserved"):
            return []
        if node == held.client:
            return self._nodes.void_by_client(held, now)
        return self._ended(held, "its node had released it before", now)

    def _ended(self, held: GrantState, reason: str, now: float) -> list[m.Command]:
        """Its node has released it. If a bound, living pod has this grant, that pod can never start."""
        out, state = [self._end(held, reason)], self._book.pods.get(held.uid)
        if held.client and held.phase == "bound":
            out.append(self._nodes.release_at(held.client, held, now))
        if held.phase != "bound" or state is None or state.ended or state.pod.metadata.deletion_timestamp is not None:
            return out
        why = f"node {held.node}, which has its GPU, says: {reason}" if held.client else _FOR_GOOD
        return [*out, *self.dead_on_arrival(state, held.grant_id, why)]

    def dead_on_arrival(self, state: PodState, grant_id: str, why: str) -> list[m.Command]:
        """A bound pod whose grant can never be handed over. A pod with a controller is deleted, and the controller
        creates another. One without a controller stays, with an Event that says what to do."""
        meta, node = state.pod.metadata, state.pod.spec.node_name
        note = f"the pod's grant {grant_id} on node {node} is void: {why}"
        if state.controller is None:
            return [
                warn(
                    state, "GrantVoid", "Starting", f"{note}; the pod cannot start there: delete it and create it again"
                )
            ]
        return [
            m.SendPatches(
                (
                    DeletePod(
                        uid=state.uid,
                        namespace=meta.namespace,
                        name=meta.name,
                        reason=note,
                        resource_version=meta.resource_version,
                    ),
                )
            )
        ]

    def released(self, event: m.ReleaseSeen, now: float) -> list[m.Command]:
        """A node's release of one grant. The agent repeats it until the pod has been seen bound. A release of another
        node's grant is ignored."""
        held = self._book.grants.get(event.grant_id)
        if held is not None and (held.phase == "holding" or event.node not in held.nodes):
            return []
        self._nodes.gave_back(event.node, event.grant_id)
        out: list[m.Command] = []
        if held is not None and event.node == held.client:
            out = self._nodes.void_by_client(held, now) if held.phase == "bound" else []
        elif held is not None:
            out = self._ended(held, event.reason, now)
        self._nodes.acknowledged(event.grant_id, event.node)
        return [*out, m.SendReleasesSeen(event.node, (event.grant_id,))]

    def _end(self, held: GrantState, reason: str) -> m.Command:
        self._capacity_changes.note()
        self._book.release(held.grant_id)
        self._nodes.acknowledged(held.grant_id, held.node)
        ended = GrantEnded(
            uid=held.uid,
            namespace=held.namespace,
            name=held.name,
            node=held.node,
            grant_id=held.grant_id,
            reason=reason,
        )
        return m.Publish(ended, namespace=held.namespace, uid=held.uid)
