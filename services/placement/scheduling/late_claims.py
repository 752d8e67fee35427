"""Volume claims that bind late need the node of their pod before the pod can be bound."""

from __future__ import annotations

from collections.abc import Iterable

from services.placement import messages as m
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.commands import SelectNode
from shared.scheduling.filters.volumes import choose_volumes, claim_names, waits_for_consumer

REPEAT_S = 10.0


class LateClaims:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._asked: dict[str, tuple[tuple[SelectNode, ...], float]] = {}
        """By uid of pods: what was ordered last, and when."""

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

    def forget(self, uid: str) -> None:
        self._asked.pop(uid, None)

    def _is_unbound(self, order: SelectNode) -> bool:
        claim = self._book.others.get("PersistentVolumeClaim", {}).get(f"{order.namespace}/{order.claim}")
        return claim is not None and not claim.spec.volume_name
