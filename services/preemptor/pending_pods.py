"""Those for whom placement found no room: how long each has waited, where it was refused, what it hopes for, whose turn it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState

AGAIN_S = 10.0
"""Where there is no way for them, they are looked at again so much later."""
KNOWN_WITHIN_S = 30.0
UNUSED_S = 10.0
"""Placement uses room within milliseconds, or is just taking over."""


class PendingPod(msgspec.Struct):
    since: float
    not_before: float
    excluded: set[str] = set()
    """Nodes that placement would not have it on."""
    expected_capacity: set[str] = set()
    """Nodes on which it counts on room that is there, or is being given back: nobody else does until it is looked at again."""
    offered: dict[str, float] = {}
    """By node: since when there has been room on it, by what we know, and nobody leaving who is waited for."""
    asked: set[str] = set()
    """Victims of plans for it that came to nothing, by uid: some may end all the same."""


class PendingPods(dict[str, PendingPod]):
    """By uid."""

    def __init__(self, book: Book, gangs: Gangs, patience_s: float) -> None:
        super().__init__()
        self._book, self._gangs, self._patience_s = book, gangs, patience_s

    def rejected(self, uid: str, now: float) -> None:
        """What is said of one member holds for all of its gang: they are placed together or not at all."""
        gang = None if uid in self else self._gangs.of(uid)
        for member in (uid, *(() if gang is None else gang.waiting)):
            self.setdefault(member, PendingPod(now, now + self._patience_s))

    def rejected_before(self, now: float) -> None:
        """By their conditions: placement said so before we listened."""
        for state in self._book.pods.values():
            if state.wants_place and any(
                c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
                for c in state.pod.status.conditions
            ):
                self.rejected(state.uid, now)

    def tick(self, now: float) -> None:
        """Forgets whoever waits no more. Placement's word may come before the feed has told of the pod."""
        for uid, waits in list(self.items()):
            state = self._book.pods.get(uid)
            if not (now - waits.since < KNOWN_WITHIN_S if state is None else state.wants_place):
                del self[uid]

    def due(self, planned: Collection[str], now: float) -> list[list[PodState]]:
        """Whom to plan for, the most important first: single pods, and of each gang as many as must be placed together."""
        groups: dict[str, list[PodState]] = {}
        for uid, waits in self.items():
            state = self._book.pods.get(uid)
            if (
                state is None
                or uid in planned
                or waits.not_before > now
                or state.refusal
                or state.request is None
                or state.never_preempts
            ):
                continue
            gang = self._gangs.of(uid)
            if gang is not None and not gang.known.isdisjoint(planned):
                continue  # one plan a gang: where it begins is where the others go
            groups.setdefault(uid if gang is None else gang.key, []).append(state)
        whole = [found for members in groups.values() if (found := self.enough(members))]
        return sorted(whole, key=lambda members: (-min(s.pod.spec.priority for s in members), *_age(members[0])))

    def enough(self, members: Sequence[PodState]) -> list[PodState]:
        """As many of these as their gang needs, the oldest; nobody where there are fewer."""
        gang = self._gangs.of(members[0].uid) if members else None
        need = 1 if gang is None else gang.need
        return sorted(members, key=_age)[:need] if need <= len(members) else []

    def nodes_with_expected_capacity(self, now: float) -> set[str]:
        return {node for waits in self.values() if waits.not_before > now for node in waits.expected_capacity}

    def excluded_for(self, members: Iterable[PodState]) -> frozenset[str]:
        return frozenset(node for state in members for node in self[state.uid].excluded)

    def waited_s(self, members: Iterable[PodState], now: float) -> float:
        return max(now - self[state.uid].since for state in members)

    def waits_for(self, ending: Collection[str], members: Sequence[PodState], leaving_s: float, now: float) -> bool:
        """Whether the members wait for these, by uid, before others are asked to go as well: for so long after their wait began, or
        where these end for their sake."""
        return self.waited_s(members, now) < leaving_s or any(
            not self[state.uid].asked.isdisjoint(ending) for state in members
        )

    def in_vain(self, uids: Iterable[str], victims: Collection[str]) -> None:
        """A plan for these came to nothing, and some of its victims may end."""
        for uid in uids:
            if uid in self:
                self[uid].asked |= set(victims)

    def unused(self, members: Iterable[PodState], nodes: Collection[str], now: float) -> set[str]:
        """Those of these nodes on which there has been room for them for so long that placement, which knows more, will not have
        them there: by a pod's affinity, say, or a volume. `nodes`: where room is there now. Others are not counted any more."""
        found = set()
        for state in members:
            waits = self[state.uid]
            waits.offered = {node: waits.offered.get(node, now) for node in nodes}
            found |= {node for node, since in waits.offered.items() if now - since >= UNUSED_S}
        return found

    def no_option(self, members: Iterable[PodState], now: float) -> None:
        self._rest(members, now + AGAIN_S)

    def expect_capacity(self, members: Iterable[PodState], nodes: Collection[str], now: float) -> None:
        """There is room for them, or there will be."""
        self._rest(members, now + self._patience_s, nodes)

    def _rest(self, members: Iterable[PodState], until: float, expected_capacity: Collection[str] = ()) -> None:
        for state in members:
            waits = self[state.uid]
            waits.not_before, waits.excluded, waits.expected_capacity = until, set(), set(expected_capacity)

    def again(self, uids: Iterable[str], shun: Collection[str], now: float) -> None:
        """Their plan came to nothing. They are looked at again; at once where other nodes than these may do."""
        for uid in uids:
            if uid in self:
                self[uid].not_before = now if shun else now + self._patience_s
                self[uid].excluded |= set(shun)


def _age(state: PodState) -> tuple[str, str]:
    return state.pod.metadata.creation_timestamp, state.uid
