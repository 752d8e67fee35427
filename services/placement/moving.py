"""Places kept for those who are evicted and come again: whoever moves loses its run, and not its turn.

A pod that moves is made anew by its controller, so its place is kept for the next pod of that controller that asks for the
same. It is kept until that comes, or for as long as the plan may take. A leader that dies forgets it: then the pod is placed
like any other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.placement.deciding import Decider
from shared.book.states import PodState
from shared.contracts.preemption import HeldPlace, Victim


class Kept(msgspec.Struct):
    victim: str
    shadow: PodState
    node: str
    until: float


class Moves:
    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._kept: dict[str, list[Kept]] = {}
        """By the uid of the controller."""

    def keep(self, victim: Victim, place: HeldPlace, plan_id: str, until: float) -> None:
        """Nothing where its controller is not known: then nobody will come."""
        book = self._decider.placer.book
        state = book.pods.get(victim.uid)
        if state is None or not state.controller_uid:
            return
        shadow = state.shadow(f"moving/{plan_id}/{state.uid}")
        book.reserve(shadow, place.node, place.grant)
        self._kept.setdefault(state.controller_uid, []).append(Kept(victim.uid, shadow, place.node, until))

    def came(self, state: PodState, now: float) -> bool:
        """Whether this pod that wants a place got the one that was kept for it."""
        waiting = self._kept.get(state.controller_uid, []) if self._kept else []
        kept = next((k for k in waiting if k.shadow.request == state.request and k.shadow.demand == state.demand), None)
        if kept is None or not state.wants_place or state.refusal:
            return False
        self._drop(state.controller_uid, kept)
        return self._decider.take([(state.uid, kept.node)], now)

    def stay(self, victims: Iterable[str]) -> None:
        """The plan was given up: whoever has not been evicted keeps what it has, and needs no other place."""
        for owner, many in list(self._kept.items()):
            for kept in [k for k in many if k.victim in victims and k.victim in self._decider.placer.book.pods]:
                self._drop(owner, kept)

    def tick(self, now: float) -> None:
        for owner, many in list(self._kept.items()):
            for kept in [k for k in many if k.until <= now or k.node not in self._decider.placer.book.nodes]:
                self._drop(owner, kept)

    def _drop(self, owner: str, kept: Kept) -> None:
        self._decider.placer.book.unreserve(kept.shadow)
        self._kept[owner].remove(kept)
        if not self._kept[owner]:
            del self._kept[owner]
