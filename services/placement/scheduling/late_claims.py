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
from shared.contracts.commands import SelectNode
from shared.model.grant import Grant
from shared.scheduling.filters.volumes import choose_volumes, claim_names, waits_for_consumer

REPEAT_S = 10.0
KEPT_S = 600.0
"""For how long a pod's place is kept, as by kube-scheduler. Then others may have it before the pod is tried again."""


class _Kept(msgspec.Struct):
    node: str
    since: float
    placeholder: PodState | None = None
    """On the book, except while the pod is tried."""


class LateClaims:
    def __init__(self, book: Book, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when a place is kept no more, so that other pods may fit."""
        self._book, self._changed = book, changed
        self._asked: dict[str, tuple[tuple[SelectNode, ...], float]] = {}
        """By uid of pods: what was ordered last, and when."""
        self._kept: dict[str, _Kept] = {}
        """By uid: the places of pods whose volumes are being made."""

    def of(self, state: PodState, node: str) -> tuple[SelectNode, ...]:
        """Claims of the pod that bind late and need the node before the pod can be bound."""
        if not state.pod.spec.volumes:
            return ()
        namespace = state.pod.metadata.namespace
        claims = self._book.others.get("PersistentVolumeClaim", {})
        late = [
            c
            for n in claim_names(state.pod)
            if (c := claims.get(f"{namespace}/{n}")) is not None and waits_for_consumer(c, self._book)
        ]
        chosen = choose_volumes(late, self._book.nodes[node], self._book)
        return tuple(
            SelectNode(namespace=namespace, claim=name, node=node, volume=volume) for name, volume in chosen.items()
        )

    def are_left(self, places: Iterable[tuple[str, str]]) -> bool:
        """Whether one of these pods, by uid, has claims that need its node before it can be bound there."""
        return any(self.of(self._book.pods[uid], node) for uid, node in places)

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

    def keep(self, state: PodState, node: str, grant: Grant | None, now: float) -> None:
        """Keeps this place for a pod while its volumes are made there."""
        known = self._kept.get(state.uid)
        kept = known if known is not None and known.node == node else _Kept(node, now)
        self._kept[state.uid] = kept
        kept.placeholder = state.placeholder(f"late/{state.uid}")
        named = None if grant is None else msgspec.structs.replace(grant, grant_id=f"late/{state.uid}")
        self._book.reserve(kept.placeholder, node, named)

    def give_up(self, uid: str) -> str:
        """Takes the pod's placeholder off the book, because the pod is tried now. Returns the node where its place was
        kept; empty if none was."""
        kept = self._kept.get(uid)
        if kept is None:
            return ""
        self._take_off(kept)
        return kept.node

    def placed(self, uid: str) -> None:
        """The pod has its place now."""
        self._kept.pop(uid, None)

    def node_of(self, uid: str) -> str:
        """The node where a place is kept for the pod; empty if none is."""
        kept = self._kept.get(uid)
        return "" if kept is None or kept.placeholder is None else kept.node

    def _take_off(self, kept: _Kept) -> None:
        if kept.placeholder is not None:
            self._book.unreserve(kept.placeholder)
            kept.placeholder = None

    def forget(self, uid: str) -> None:
        """The pod is bound or gone, or needs no place: none is kept for it."""
        self._asked.pop(uid, None)
        self.expire(uid)

    def expire(self, uid: str) -> None:
        """Keeps no place for the pod any more, and others may fit there."""
        kept = self._kept.pop(uid, None)
        if kept is not None:
            self._take_off(kept)
            self._changed()

    def tick(self, now: float) -> list[str]:
        """Gives back what was kept for too long: what makes the volume may never do so, or the pod is tried no more.
        Returns the uids of these pods."""
        overdue = [uid for uid, kept in self._kept.items() if now - kept.since >= KEPT_S]
        for uid in overdue:
            self.expire(uid)
        return overdue

    def _is_unbound(self, order: SelectNode) -> bool:
        claim = self._book.others.get("PersistentVolumeClaim", {}).get(f"{order.namespace}/{order.claim}")
        return claim is not None and not claim.spec.volume_name
