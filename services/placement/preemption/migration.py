"""Reserves places for the replacements of migrated pods.

A migrated pod loses its run, but not its turn.

The controller of a migrated pod creates a replacement. Its place is reserved for the next pod of that controller with
an equal request, until that pod appears or the plan's deadline is over. A leader that dies loses the reservation;
then the replacement is placed like any other pod. So is a member of a gang that needs it by then: such members are
decided together or not at all.

The replacement may appear before its place is free, if another pod that migrates by the same plan still has it. Then
it is pending, and gets the place before any other pod is tried. One with volumes that bind late has its place kept by
`LateClaims` from then on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.placement import messages as m
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.commit import Committer
from services.placement.scheduling.late_claims import LateClaims
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.preemption import HeldPlace, Victim


class ReservedPlace(msgspec.Struct):
    victim: str
    placeholder: PodState
    place: HeldPlace
    until: float
    gang: str = ""
    """The key of the victim's gang."""
    comes: str = ""
    """The uid of the replacement that appeared before the place was free."""


class Migrations:
    def __init__(
        self,
        committer: Committer,
        book: Book,
        gangs: Gangs,
        capacity_changes: CapacityChanges,
        late_claims: LateClaims,
    ) -> None:
        self._committer, self._book, self._gangs, self._capacity_changes = committer, book, gangs, capacity_changes
        self._late_claims = late_claims
        self._kept: dict[str, list[ReservedPlace]] = {}
        """The reserved places by the uid of the controller."""
        self._cursor = 0
        """The position of the book when early replacements were last tried."""

    def keep(self, victim: Victim, place: HeldPlace, plan_id: str, until: float) -> None:
        """Reserves a place for a victim's replacement.

        Does nothing if the controller is unknown, as there is none.
        """
        state = self._book.pods.get(victim.uid)
        if state is None or not state.controller_uid:
            return
        placeholder = state.placeholder(f"moving/{plan_id}/{state.uid}")
        self._book.reserve(placeholder, place.node, place.grant)
        kept = ReservedPlace(victim.uid, placeholder, place, until, gang=self._gang(victim.uid))
        self._kept.setdefault(state.controller_uid, []).append(kept)

    def place_successor(self, state: PodState, now: float) -> list[m.Command]:
        """Gives a pending pod the place that is reserved for it, if there is one.

        Only a pod whose predecessor is terminating or gone is a replacement. Another pod of the same controller waits
        for a place of its own.
        """
        waiting = self._kept.get(state.controller_uid, []) if self._kept else []
        kept = next(
            (
                k
                for k in waiting
                if k.placeholder.request == state.request
                and k.placeholder.demand == state.demand
                and not k.comes
                and self._may_replace(state.uid, k)
                and self._ends(k.victim)
            ),
            None,
        )
        if kept is None or not state.wants_place or state.refusal or state.excluded or self._has_place(state):
            return []
        return self._hand_over(state, kept, now)

    def advance(self, now: float) -> list[m.Command]:
        """Tries the early replacements again if the book has changed. Called before other pods are tried."""
        if not self._kept or self._cursor == self._book.arrays.cursor:
            return []
        out: list[m.Command] = []
        for owner, many in list(self._kept.items()):
            for kept in [k for k in many if k.comes]:
                state = self._book.pods.get(kept.comes)
                if state is None:
                    kept.comes = ""
                elif self._has_place(state) or not state.wants_place or not self._may_replace(state.uid, kept):
                    self._drop(owner, kept)
                else:
                    out += self._hand_over(state, kept, now)
        self._cursor = self._book.arrays.cursor
        return out

    def release_unevicted(self, victims: Iterable[str]) -> None:
        """Releases the places of victims that were not evicted when their plan was cancelled."""
        for owner, many in list(self._kept.items()):
            for kept in [k for k in many if k.victim in victims and not self._ends(k.victim)]:
                self._drop(owner, kept)

    def tick(self, now: float) -> None:
        for owner, many in list(self._kept.items()):
            for kept in [k for k in many if k.until <= now or k.place.node not in self._book.nodes]:
                self._drop(owner, kept)

    def _gang(self, uid: str) -> str:
        gang = self._gangs.of(uid)
        return "" if gang is None else gang.key

    def _may_replace(self, uid: str, kept: ReservedPlace) -> bool:
        """Whether the pod belongs to the same gang, and that needs no more members: then it may be decided alone."""
        gang = self._gangs.of(uid)
        return self._gang(uid) == kept.gang and (gang is None or gang.satisfied)

    def _ends(self, uid: str) -> bool:
        state = self._book.pods.get(uid)
        return state is None or state.ended or state.pod.metadata.deletion_timestamp is not None

    def _has_place(self, state: PodState) -> bool:
        """Whether it holds a place, or one is kept for it while its volumes are made there."""
        return bool(state.charged or self._late_claims.node_of(state.uid))

    def _hand_over(self, state: PodState, kept: ReservedPlace, now: float) -> list[m.Command]:
        node, placeholder = kept.place.node, kept.placeholder
        if node not in self._book.nodes:
            return []
        ordered = self._committer.take([(state.uid, node)], now, lambda _: self._book.unreserve(placeholder))
        if ordered is None:
            self._book.reserve(placeholder, node, kept.place.grant)
            kept.comes = state.uid
            return []
        self._forget(state.controller_uid, kept)
        return ordered

    def _drop(self, owner: str, kept: ReservedPlace) -> None:
        self._capacity_changes.note()
        self._book.unreserve(kept.placeholder)
        self._forget(owner, kept)

    def _forget(self, owner: str, kept: ReservedPlace) -> None:
        self._kept[owner].remove(kept)
        if not self._kept[owner]:
            del self._kept[owner]
