"""From a term to leadership (R5): replay, list, re-adopt; and if the log may lack decisions, touch every pending pod
first.

The log has every decision of the past if all of this is true:
1. A term of it wrote its own `ready`: its leader knew every decision before, or had touched every pending pod. Leaders
   that were elected later and wrote none have decided nothing.
2. The record that the NATS servers remember as the last one acted on (the mark) is in the log.
3. No pod and no watcher has seen a sequence as high as the first term that a leader was elected to since that `ready`:
   none has sent an order since. This session's own term would not do: each takeover that ends early makes it higher.
If 2 or 3 fails, acknowledged records are lost, and their sequences, terms among them, would be given a second time.
Such a log is deleted: the next one begins with higher sequences.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.book.states import PodState
from shared.contracts.commands import TouchPod
from shared.contracts.log import (
    Amendment,
    Decision,
    DecisionBatch,
    LogMark,
    ReadyRecord,
    ReservationRecord,
    TermRecord,
)

TOUCH_AGAIN_S = 2.0
EXCLUDED_TOUCH_AGAIN_S = 30.0
"""At most; an excluded pod is touched again after `TOUCH_AGAIN_S` at first, and ever more rarely: what refuses touches,
such as a webhook that does not answer, may be back soon."""
MOST_DOUBLED = 4
TOUCHES_AT_ONCE = 1000
"""The most touches under way. All of a large cluster's at once would be repeated before they are answered."""
EXCLUDE_AFTER_REFUSALS = 3
"""A pod is excluded after its touch was refused this often. A single refusal may be temporary."""


class Touching(msgspec.Struct):
    """A pod that has to be seen at another version than `version`."""

    version: str
    sent_at: float = float("-inf")
    since: float = 0.0
    """When it was touched first, since a watcher runs."""
    tries: int = 0
    refusals: int = 0
    tries_excluded: int = 0

    @property
    def again_at(self) -> float:
        """When it is touched again."""
        doubled = min(max(0, self.tries_excluded - 1), MOST_DOUBLED)
        return self.sent_at + min(EXCLUDED_TOUCH_AGAIN_S, TOUCH_AGAIN_S * (1 << doubled))


class Recovery:
    def __init__(self) -> None:
        self._replayed: dict[tuple[str, str], tuple[int, Decision]] = {}
        """By uid and resourceVersion: a repeated append comes after younger decisions, and must not hide them."""
        self.ready = False
        """Whether a term of the log wrote its own `ready`."""
        self.to_hear: frozenset[str] | None = frozenset()
        """The nodes that may run pods which are pending, by that record; None: any may, also where there is none."""
        self.mark: LogMark | None = None
        self._newest_term = 0
        self._elected_since = 0
        """The first term since the last complete `ready` that was not a renewal; 0: none."""
        self._records: dict[int, tuple[int, str]] = {}
        """By sequence: the term of the record, and of a term's own record its session."""
        self._reserved: dict[str, ReservationRecord] = {}
        self._amended: dict[tuple[str, str], Amendment] = {}
        """Growths, by uid and resourceVersion."""
        self._touching: dict[str, Touching] = {}
        self._excluded: dict[str, Touching] = {}
        self._excluded_before: dict[str, str] = {}
        """By the leader before."""

    @property
    def touched(self) -> bool:
        """Whether every pod that had to move has been seen to have moved, or is excluded."""
        return not self._touching

    @property
    def excluded(self) -> dict[str, str]:
        """Pods that could not be touched, by uid, with their version. They are not placed until they are seen at
        another version. If one is instead seen bound, by a Binding of the past, its grant is void."""
        return {uid: asked.version for uid, asked in self._excluded.items()}

    def replay(
        self, records: Iterable[tuple[int, TermRecord | DecisionBatch | ReadyRecord]], mark: LogMark | None
    ) -> None:
        """The log before this term, and its mark: the newest record that was acted on, None if that is unknown."""
        self.mark, self.to_hear = mark, None
        excluded: dict[str, str] = {}
        for sequence, record in records:
            if isinstance(record, TermRecord):
                self._newest_term, excluded = sequence, {}
                if record.reason != "renewed":
                    self._elected_since = self._elected_since or sequence
                self._records[sequence] = (sequence, record.session)
                continue
            self._records[sequence] = (record.term, "")
            if isinstance(record, ReadyRecord):
                excluded |= record.excluded
                if record.term == self._newest_term and not record.more:
                    self.ready, self._excluded_before, self._elected_since = True, excluded, 0
                    self.to_hear = None if record.hear_first else frozenset(record.hear_nodes)
                continue
            for decision in record.decisions:
                self._replayed[decision.uid, decision.resource_version] = (sequence, decision)
            for amendment in record.amendments:
                self._amended[amendment.uid, amendment.resource_version] = amendment
            for kept in record.reservations:
                self._reserved.pop(kept.plan.plan_id, None)
                if not kept.over:
                    self._reserved[kept.plan.plan_id] = kept

    def lost(self, term: int, sequence_seen: int) -> str:
        """Why acknowledged records must be missing from the log; empty if there is no sign of it. `sequence_seen`: the
        highest sequence that any pod or watcher has seen."""
        if sequence_seen >= (since := self._elected_since or term):
            return f"sequence {sequence_seen} has been acted on, and nothing was since term {since} was taken"
        if self.mark is not None and self.mark.sequence >= term:
            return f"sequence {self.mark.sequence} has been acted on, and the term taken now is {term}"
        if self.mark is None:
            return (
                "the NATS servers do not remember which record was the last: all of them were restarted, or the "
                "store is restored"
            )
        if self.mark.term and not self._has(self.mark):
            return (
                f"record {self.mark.sequence} of term {self.mark.term} has been acted on, and the log does not have it"
            )
        return ""

    def above(self, term: int, sequence_seen: int) -> int:
        """A sequence above all that are known to have been given."""
        return max(term, sequence_seen, self.mark.sequence if self.mark is not None else 0) + 1

    def _has(self, mark: LogMark) -> bool:
        """Whether the marked record is in the log, and not another one that got its sequence after a loss."""
        term, session = self._records.get(mark.sequence, (-1, ""))
        return term == mark.term and session in ("", mark.session)

    def decided(self, state: PodState) -> tuple[int, Decision] | None:
        """A decision of the past for the pod's present version: its Binding may be on the way."""
        return self._replayed.get((state.uid, state.pod.metadata.resource_version))

    def reserved(self) -> list[ReservationRecord]:
        """Reservations of the past that are not over."""
        return list(self._reserved.values())

    def amended(self, state: PodState) -> Amendment | None:
        """A growth of the past for the running pod's present version: it may be written at any time."""
        return self._amended.get((state.uid, state.pod.metadata.resource_version))

    def forget_log(self) -> None:
        self._replayed, self._reserved, self._records, self._amended = {}, {}, {}, {}

    def must_move(self, pods: Iterable[PodState], now: float) -> None:
        """No forgotten Binding can succeed on these pods once they are at another version."""
        self._touching = {s.uid: Touching(s.pod.metadata.resource_version, since=now) for s in pods}

    def seen(self, state: PodState) -> None:
        """A pod that is still not bound."""
        for asked in (self._touching, self._excluded):
            if state.uid in asked and asked[state.uid].version != state.pod.metadata.resource_version:
                del asked[state.uid]

    def settled(self, uid: str) -> None:
        """The pod was seen bound, or is gone."""
        self._touching.pop(uid, None)
        self._excluded.pop(uid, None)

    def is_excluded(self, state: PodState, now: float) -> bool:
        """Whether the previous leader could not touch this pending pod and it has not been touched since: then this
        session has to."""
        version = state.pod.metadata.resource_version
        if self._excluded_before.get(state.uid) != version:
            return False
        self._excluded[state.uid] = Touching(version, since=now)
        return True

    def was_excluded(self, state: PodState) -> bool:
        """Whether an order that the log does not have may still be carried out at this version of the pod."""
        return self._excluded_before.get(state.uid) == state.pod.metadata.resource_version

    def refused(self, uid: str) -> bool:
        """The API server refused the touch of this pod. True when the pod is excluded from now on."""
        asked = self._touching.get(uid)
        if asked is None:
            return False
        asked.refusals += 1
        if asked.refusals < EXCLUDE_AFTER_REFUSALS:
            return False
        self._excluded[uid] = self._touching.pop(uid)
        return True

    def not_sent(self, uids: Iterable[str], now: float) -> None:
        """These touches were not carried out, so they say nothing of their pods: the time until exclusion starts
        again."""
        for uid in uids:
            if uid in self._touching:
                self._touching[uid].since = now
            elif uid in self._excluded:
                self._excluded[uid].tries_excluded = max(0, self._excluded[uid].tries_excluded - 1)

    def overdue(self, now: float, after_s: float) -> list[str]:
        """Pods that are excluded from now on: `after_s` of touches, of both kinds, have not moved them."""
        late = [uid for uid, asked in self._touching.items() if asked.tries > 1 and now - asked.since >= after_s]
        for uid in late:
            self._excluded[uid] = self._touching.pop(uid)
        return late

    def due(self, now: float) -> list[tuple[str, bool]]:
        """Pods to touch now, and whether by their status alone. That comes first: no webhook on pods can hold it up.
        Then both ways take turns: one of them may be undone before it moves the pod."""
        late, excluded = _due(self._touching, now), _due(self._excluded, now)
        for uid in excluded:
            self._excluded[uid].tries_excluded += 1
        out = []
        for asked_of, uids in ((self._touching, late), (self._excluded, excluded)):
            for uid in uids:
                asked = asked_of[uid] = asked_of.pop(uid)  # to the end of the list, so that each is touched in turn
                asked.sent_at, asked.tries = now, asked.tries + 1
                out.append((uid, asked.tries % 2 == 1))
        return out


def _due(of: dict[str, Touching], now: float) -> list[str]:
    room = TOUCHES_AT_ONCE - sum(1 for asked in of.values() if now - asked.sent_at < TOUCH_AGAIN_S)
    return [uid for uid, asked in of.items() if asked.again_at <= now][: max(0, room)]


def touch(state: PodState, term: int, *, by_status: bool = False) -> TouchPod:
    meta = state.pod.metadata
    return TouchPod(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        token=f"{term}-{meta.resource_version}",
        by_status=by_status,
    )
