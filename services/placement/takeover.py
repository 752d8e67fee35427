"""From a term to the lead (R5): replay, list, re-adopt; and where the log is not complete, touch every pending pod first."""

from __future__ import annotations

from collections.abc import Iterable

from shared.book.states import PodState
from shared.contracts.commands import TouchPod
from shared.contracts.log import Decision, DecisionBatch, ReadyRecord, ReservationRecord

TOUCH_AGAIN_S = 2.0


class Takeover:
    def __init__(self) -> None:
        self._replayed: dict[tuple[str, str], tuple[int, Decision]] = {}
        """By uid and resourceVersion: an append that was repeated stands behind younger decisions, and must not hide them."""
        self._complete = False
        self._reserved: dict[str, ReservationRecord] = {}
        self._touching: dict[str, tuple[str, float]] = {}
        """By uid of a pod that has to be seen at another version: the version it was touched at, and when."""

    @property
    def touched(self) -> bool:
        """Whether every pod that had to move has been seen to have moved."""
        return not self._touching

    def replay(self, records: Iterable[tuple[int, DecisionBatch | ReadyRecord]]) -> None:
        """The log before this term. Without a `ready` in it, decisions of the past may be missing."""
        for sequence, record in records:
            if isinstance(record, ReadyRecord):
                self._complete = True
                continue
            for decision in record.decisions:
                self._replayed[decision.uid, decision.resource_version] = (sequence, decision)
            for kept in record.reservations:
                self._reserved.pop(kept.plan.plan_id, None)
                if not kept.over:
                    self._reserved[kept.plan.plan_id] = kept

    def is_complete(self, term: int, sequence_seen: int) -> bool:
        """`sequence_seen`: the highest that any watcher ever met. Before this term gave an order it must be below it; as high
        means that a record which once had our term's number was lost with the log's tail."""
        return self._complete and sequence_seen < term

    def decided(self, state: PodState) -> tuple[int, Decision] | None:
        """A decision of the past for the pod as it stands: its Binding may be on the way."""
        return self._replayed.get((state.uid, state.pod.metadata.resource_version))

    def reserved(self) -> list[ReservationRecord]:
        """Reservations of the past that are not over."""
        return list(self._reserved.values())

    def forget_log(self) -> None:
        self._replayed, self._reserved = {}, {}

    def must_move(self, pods: Iterable[PodState], now: float) -> None:
        """No Binding of a forgotten past can hit these once they are at another version."""
        self._touching = {s.uid: (s.pod.metadata.resource_version, now) for s in pods}

    def seen(self, state: PodState) -> None:
        asked = self._touching.get(state.uid)
        if asked is not None and asked[0] != state.pod.metadata.resource_version:
            del self._touching[state.uid]

    def settled(self, uid: str) -> None:
        """It was seen bound, or is gone."""
        self._touching.pop(uid, None)

    def again(self, now: float) -> list[str]:
        """Whom to touch once more."""
        late = [uid for uid, (_, at) in self._touching.items() if now - at >= TOUCH_AGAIN_S]
        self._touching |= {uid: (self._touching[uid][0], now) for uid in late}
        return late


def touch(state: PodState, term: int) -> TouchPod:
    meta = state.pod.metadata
    return TouchPod(uid=state.uid, namespace=meta.namespace, name=meta.name, token=f"{term}-{meta.resource_version}")
