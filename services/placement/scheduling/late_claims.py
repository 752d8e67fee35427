"""Volume claims that bind late need the node of their pod before the pod can be bound.

The volume is made on that node, and the pod can go nowhere else then. So its place is kept meanwhile, by a placeholder:
pods that come later do not get it, and of several such pods each gets a place of its own. No log has these places; a
new leader chooses anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from services.placement import messages as m
from shared.book.book import Book
from shared.book.states import PodState
from shared.book.volume_claims import claims_of
from shared.contracts.commands import SelectNode
from shared.model.grant import Grant
from shared.scheduling.filters.volumes import choose_volumes, waits_for_consumer

REPEAT_S = 10.0
KEPT_S = 600.0
"""For how long a pod's place is kept, as by kube-scheduler. Then others may have it before the pod is tried again."""


class Kept(msgspec.Struct, frozen=True):
    """A place that is kept at a node, for a pod with volumes that are being made there."""

    node: str
    since: float
    placeholder: PodState


class LateClaims:
    def __init__(self, book: Book, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when a place is kept no more, so that other pods may fit."""
        self._book, self._changed = book, changed
        self._asked: dict[str, tuple[tuple[SelectNode, ...], float]] = {}
        """By uid of pods: what was ordered last, and when."""
        self._kept: dict[str, Kept] = {}
        """By uid of pods."""

    def of(self, state: PodState, node: str) -> tuple[SelectNode, ...]:
        """Claims of the pod that bind late and need the node before the pod can be bound."""
        if not state.pod.spec.volumes:
            return ()
        namespace = state.pod.metadata.namespace
        late = [c for c in claims_of(state.pod, self._book).values() if waits_for_consumer(c, self._book)]
        chosen = choose_volumes(late, self._book.nodes[node], self._book)
        return tuple(
            SelectNode(namespace=namespace, claim=name, node=node, volume=volume) for name, volume in chosen.items()
        )

    def order(self, places: Iterable[tuple[str, str]], now: float) -> list[m.Command] | None:
        """Orders such claims of pods, by uid, to their nodes; None: there are none, or all are bound."""
        late = [(uid, claims) for uid, node in places if (claims := self.of(self._book.pods[uid], node))]
        return [order for uid, claims in late for order in self.select(uid, claims, now)] if late else None

    def select(self, uid: str, claims: tuple[SelectNode, ...], now: float) -> list[m.Command]:
        """Orders what `of` found, the same no more often than every REPEAT_S."""
        said = self._asked.get(uid)
        if said is not None and said[0] == claims and now - said[1] < REPEAT_S:
            return []
        self._asked[uid] = (claims, now)
        return [m.SendPatches(claims)]

    def repeat(self, now: float) -> list[m.Command]:
        """Orders again what has not arrived on its claims: a watcher that ends takes what it has not written with
        it."""
        lost: list[SelectNode] = []
        for uid, (claims, at) in self._asked.items():
            unbound = tuple(c for c in claims if self._is_unbound(c))
            state = self._book.pods.get(uid)
            if state is not None and state.wants_place and unbound and now - at >= REPEAT_S:
                lost += unbound
                self._asked[uid] = (claims, now)
        return [m.SendPatches(tuple(lost))] if lost else []

    def keep(self, state: PodState, node: str, grant: Grant | None, now: float, before: Kept | None) -> None:
        """Keeps this place for a pod while its volumes are made there. `before`: the place that was kept so far."""
        since = now if before is None or before.node != node else before.since
        placeholder = state.placeholder(f"late/{state.uid}")
        named = None if grant is None else msgspec.structs.replace(grant, grant_id=f"late/{state.uid}")
        self._book.reserve(placeholder, node, named)
        self._kept[state.uid] = Kept(node, since, placeholder)

    def take_off(self, uid: str) -> Kept | None:
        """Takes the pod's place off the book, because the pod is tried now. Returns the place; None: there was none.
        Then the pod has a place, or one is kept for it again, or it is `lost`."""
        kept = self._kept.pop(uid, None)
        if kept is not None:
            self._book.unreserve(kept.placeholder)
        return kept

    def lost(self, *kept: Kept | None) -> None:
        """Others may fit at these places now."""
        if any(kept):
            self._changed()

    def node_of(self, uid: str) -> str:
        """The node where a place is kept for the pod; empty if none is."""
        return self._kept[uid].node if uid in self._kept else ""

    def forget(self, uid: str) -> None:
        """The pod is bound or gone, or needs no place: none is kept for it."""
        self._asked.pop(uid, None)
        self.lost(self.take_off(uid))

    def tick(self, now: float) -> list[str]:
        """Gives back what was kept for too long: what makes the volume may never do so, or the pod is tried no more.
        Returns the uids of these pods."""
        overdue = [uid for uid, kept in self._kept.items() if now - kept.since >= KEPT_S]
        for uid in overdue:
            self.lost(self.take_off(uid))
        return overdue

    def _is_unbound(self, order: SelectNode) -> bool:
        claim = self._book.others.get("PersistentVolumeClaim", {}).get(f"{order.namespace}/{order.claim}")
        return claim is not None and not claim.spec.volume_name
