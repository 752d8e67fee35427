"""Tracks pods that do not fit: waiting times, refused nodes, expected capacity, and the order of planning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.model.life import created_at

AGAIN_S = 10.0
"""How long after a search without an option the pod is planned for again."""
SOON_S = 0.5
"""The same where a plan in progress may leave room for another on its nodes in a moment."""
KNOWN_WITHIN_S = 30.0
UNUSED_S = 10.0
"""Free capacity that placement does not use for so long does not suit the pod.

Placement uses capacity within milliseconds, unless a recovery is running.
"""


class PendingPod(msgspec.Struct):
    since: float
    """When its wait began."""
    known_since: float
    not_before: float
    excluded: set[str] = set()
    """Nodes on which placement refuses it."""
    expected_capacity: set[str] = set()
    """Nodes with capacity, free or being returned, that it expects to get. No other pod counts on it until the next
    check."""
    offered: dict[str, float] = {}
    """By node: since when it seems to fit there, without waiting for a terminating pod."""
    asked: set[str] = set()
    """uids of victims of cancelled plans for it: some may end all the same."""


class PendingPods(dict[str, PendingPod]):
    """The pending pods by uid."""

    def __init__(self, book: Book, gangs: Gangs, patience_s: float) -> None:
        super().__init__()
        self._book, self._gangs, self._patience_s = book, gangs, patience_s

    def rejected(self, uid: str, now: float, *, before: bool = False) -> None:
        """Records that a pod does not fit. `before`: it was rejected before this process listened.

        For a gang it holds for all members, which are placed together or not at all.
        """
        gang = None if uid in self else self._gangs.of(uid)
        for member in (uid, *(() if gang is None else gang.waiting)):
            since = self._began_at(member, now) if before else now
            self.setdefault(member, PendingPod(since, now, now + self._patience_s))

    def _began_at(self, uid: str, now: float) -> float:
        """When a pod's wait began, of which only its creation is known: a wait that began anew with each process would
        grow meanwhile, for the work that it is compared with does."""
        created = None if uid not in self._book.pods else created_at(self._book.pods[uid].pod)
        return now if created is None else min(created, now)  # the API server's clock may be ahead

    def rejected_before(self, now: float, *, first: bool) -> None:
        """Records the pods that placement rejected before this process listened, by their conditions. `first`: the book
        has just got its pods, and a pod that has been rejected since the start may have been before."""
        for state in self._book.pods.values():
            if state.wants_place and any(
                c.type == "PodScheduled" and c.status == "False" and c.reason != "SchedulingGated"
                for c in state.pod.status.conditions
            ):
                self.rejected(state.uid, now, before=True)
                if first:
                    self[state.uid].since = min(self[state.uid].since, self._began_at(state.uid, now))

    def tick(self, now: float) -> None:
        """Forgets pods that are not pending any more.

        A rejection may arrive before the feed has shown the pod.
        """
        for uid, waits in list(self.items()):
            state = self._book.pods.get(uid)
            if not (now - waits.known_since < KNOWN_WITHIN_S if state is None else state.wants_place):
                del self[uid]

    def due(self, planned: Collection[str], now: float) -> list[list[PodState]]:
        """Returns what to plan for, the highest priority first.

        A group is a single pod, or as many members of a gang as it needs at once. No pod is preempted for pods that
        need no GPU; one of a gang, such as a launcher, gets its place with those that do.
        """
        groups: dict[str, list[PodState]] = {}
        for uid, waits in self.items():
            state = self._book.pods.get(uid)
            if state is None or uid in planned or waits.not_before > now or state.refusal or state.never_preempts:
                continue
            gang = self._gangs.of(uid)
            if gang is not None and not gang.known.isdisjoint(planned):
                continue  # one plan per gang: where it begins decides where the other members go
            groups.setdefault(uid if gang is None else gang.key, []).append(state)
        whole = [found for members in groups.values() if (found := self._oldest_with_gpus(members))]
        return sorted(whole, key=lambda members: (-min(s.pod.spec.priority for s in members), *_age(members[0])))

    def _oldest_with_gpus(self, members: Sequence[PodState]) -> list[PodState]:
        """The same as `oldest_needed`, where one of them needs a GPU; else those of the others that do."""
        found = self.oldest_needed(members)
        if found and found[0].request is None:
            return self.oldest_needed([state for state in members if state.request is not None])
        return found

    def oldest_needed(self, members: Sequence[PodState]) -> list[PodState]:
        """Returns the oldest of these, as many as their gang needs; an empty list if there are fewer.

        Those that need GPUs come first.
        """
        gang = self._gangs.of(members[0].uid) if members else None
        ordered = sorted(members, key=_age)
        if gang is None:
            return ordered[:1]
        chosen = set(gang.together([state.uid for state in ordered]))
        return sorted((s for s in ordered if s.uid in chosen), key=lambda s: s.request is None)

    def nodes_with_expected_capacity(self, now: float) -> set[str]:
        return {node for waits in self.values() if waits.not_before > now for node in waits.expected_capacity}

    def excluded_for(self, members: Iterable[PodState]) -> frozenset[str]:
        return frozenset(node for state in members for node in self[state.uid].excluded)

    def waited_s(self, members: Iterable[PodState], now: float) -> float:
        return max(now - self[state.uid].since for state in members)

    def should_wait_for(
        self, ending: Collection[str], members: Sequence[PodState], leaving_s: float, now: float
    ) -> bool:
        """Whether the members wait for terminating pods (by uid) before other pods are preempted as well.

        They do for `leaving_s` after this process heard of them, or if one of these pods was evicted for them, which no
        other process knows.
        """
        return max(now - self[state.uid].known_since for state in members) < leaving_s or any(
            not self[state.uid].asked.isdisjoint(ending) for state in members
        )

    def note_cancelled_victims(self, uids: Iterable[str], victims: Collection[str]) -> None:
        """Records that a plan for these was cancelled; some of its victims may end all the same."""
        for uid in uids:
            if uid in self:
                self[uid].asked |= set(victims)

    def unused_nodes(self, members: Iterable[PodState], nodes: Collection[str], now: float) -> set[str]:
        """Returns the nodes on which the members have seemed to fit for `UNUSED_S` without being placed.

        Placement knows more and refuses them there, for example by a pod's affinity or a volume. `nodes`: where they
        seem to fit now; the times of other nodes are forgotten.
        """
        found = set()
        for state in members:
            waits = self[state.uid]
            waits.offered = {node: waits.offered.get(node, now) for node in nodes}
            found |= {node for node, since in waits.offered.items() if now - since >= UNUSED_S}
        return found

    def note_no_option(self, members: Iterable[PodState], now: float, *, soon: bool = False) -> None:
        """Records that nothing can be preempted for the members now; `soon`: that this may change in a moment."""
        if soon:
            for state in members:
                self[state.uid].not_before = now + SOON_S  # what placement has refused before stays excluded
            return
        self._delay(members, now + AGAIN_S)

    def expect_capacity(self, members: Iterable[PodState], nodes: Collection[str], now: float) -> None:
        """Records that the members fit, or will fit, on these nodes."""
        self._delay(members, now + self._patience_s, nodes)

    def _delay(self, members: Iterable[PodState], until: float, expected_capacity: Collection[str] = ()) -> None:
        for state in members:
            waits = self[state.uid]
            waits.not_before, waits.excluded, waits.expected_capacity = until, set(), set(expected_capacity)

    def retry(self, uids: Iterable[str], excluded: Collection[str], now: float) -> None:
        """Plans again for pods whose plan was cancelled; at once if the nodes `excluded` are to be avoided."""
        for uid in uids:
            if uid in self:
                self[uid].not_before = now if excluded else now + self._patience_s
                self[uid].excluded |= set(excluded)


def _age(state: PodState) -> tuple[str, str]:
    return state.pod.metadata.creation_timestamp, state.uid
