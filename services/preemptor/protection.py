"""Protects the replacements of preempted pods from preemption for a while, which prevents thrashing.

Only replacements are protected, not all pods of their controller. Otherwise one eviction would protect a Deployment
of hundreds of pods from all pods of higher priority. A pod's creation time says whether it is a replacement. Pods of
the first generation are created after the first eviction of one of their owner's pods. When a pod of the first
generation is evicted, pods that are created later belong to the second generation. Each generation is protected for
twice as long as the one before it.

All that is known of one owner is one record. Records outlive this process: the next one reads all of them first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import msgspec

from shared.book.states import PodState
from shared.contracts.preemption import Spared
from shared.model.life import created_at

_HOUR_S = 3600.0
_CREATION_PRECISION_S = 1.0
"""Creation timestamps are in whole seconds."""
_MAX_CLOCK_SKEW_S = 5.0
"""How far the API server's clock may be behind. Without it a replacement could look older than the eviction before
it."""


def not_ahead(record: Spared, now: float) -> Spared:
    """Returns the record without times that are yet to come: the clock by which it was written was ahead. Otherwise
    pods would be protected, and budgets spent, until this one has come as far."""
    return msgspec.structs.replace(
        record,
        since=tuple(min(at, now) for at in record.since),
        asked={uid: (min(at, now), generation) for uid, (at, generation) in record.asked.items()},
        ended=tuple(min(at, now) for at in record.ended),
        disturbed={plan: (min(at, now), gpu_ms) for plan, (at, gpu_ms) in record.disturbed.items()},
    )


class Protection:
    def __init__(self, first_s: float, evictions_per_hour: int) -> None:
        """`first_s`: protection of the first generation. `evictions_per_hour`: per namespace; 0 for no limit."""
        self._first_s, self._per_hour = first_s, evictions_per_hour
        self._of: dict[str, Spared] = {}
        """By owner."""
        self._owner_of: dict[str, str] = {}
        """By uid, the owners of pods whose eviction was requested and that have not been seen to end."""
        self._evicted: dict[str, deque[float]] = {}
        """By namespace: the times of evictions in the last hour."""
        self._changed: dict[str, None] = {}

    def is_exempt(self, state: PodState, now: float) -> bool:
        """Whether a pod may not be evicted now: it is protected, or its namespace's hourly budget is spent."""
        return self.is_protected(state, now) or self.evictions_left(state.pod.metadata.namespace, now) == 0

    def is_protected(self, state: PodState, now: float) -> bool:
        """Whether a pod replaces a preempted one and its protection has not expired."""
        known = self._of.get(owner_of(state))
        return known is not None and bool(known.since) and self._until(known, state) > now

    def evictions_left(self, namespace: str, now: float) -> int | None:
        """Returns what is left of a namespace's hourly eviction budget; None where there is no budget."""
        if not self._per_hour:
            return None
        recent = self._evicted.get(namespace, deque())
        while recent and recent[0] <= now - _HOUR_S:
            recent.popleft()
        return max(0, self._per_hour - len(recent))

    def count_protected(self, now: float) -> int:
        """Returns how many owners may have protected pods now."""
        return sum(bool(known.since) and self._protected_until(known) > now for known in self._of.values())

    def eviction_requested(self, state: PodState, now: float) -> None:
        """Records that a pod's eviction is requested.

        Only the pod's end shows that the eviction happened: an answer may be lost, or come after the controller's next
        pod.
        """
        owner = owner_of(state)
        known = self._of.get(owner) or Spared(owner=owner, namespace=state.pod.metadata.namespace)
        self._put(msgspec.structs.replace(known, asked={**known.asked, state.uid: (now, _generation(known, state))}))

    def pod_ended(self, uid: str, now: float) -> None:
        """Records that a pod is ending or gone. If its eviction was requested, the eviction caused it."""
        known = self._of.get(self._owner_of.pop(uid, ""))
        if known is None or uid not in known.asked:
            return
        _, generation = known.asked[uid]
        asked = {other: at for other, at in known.asked.items() if other != uid}
        ended = (*(at for at in known.ended if now - at < _HOUR_S), now)
        since = (*known.since, now) if generation == len(known.since) else known.since
        self._put(msgspec.structs.replace(known, asked=asked, since=since, ended=ended))
        self._evicted.setdefault(known.namespace, deque()).append(now)

    def end_missing(self, uids: Container[str], now: float) -> None:
        """Records the end of all pods but these."""
        for uid in [uid for uid in self._owner_of if uid not in uids]:
            self.pod_ended(uid, now)

    def tick(self, now: float) -> None:
        """Forgets expired records, and evictions that were requested an hour ago of pods that did not end."""
        for owner, known in list(self._of.items()):
            late = [uid for uid, (at, _) in known.asked.items() if now - at >= _HOUR_S]
            for uid in late:
                # The pod may have got another owner meanwhile, with an eviction requested under that one.
                if self._owner_of.get(uid) == owner:
                    del self._owner_of[uid]
            if late:
                self._of[owner] = msgspec.structs.replace(
                    known, asked={uid: asked for uid, asked in known.asked.items() if uid not in late}
                )
            if self.expires_at(known) <= now:
                del self._of[owner]

    def restore(self, record: Spared) -> None:
        """Takes over a record that another instance has written, if it is newer than the one that is known."""
        known = self._of.get(record.owner)
        if known is None or _newest(record) > _newest(known):
            self._put(record)
            self._changed.pop(record.owner, None)
            self._evicted[record.namespace] = deque(
                sorted(at for one in self._of.values() if one.namespace == record.namespace for at in one.ended)
            )

    def take_changed(self) -> list[Spared]:
        """Returns the records that changed since the last call, to be persisted."""
        found = [self._of[owner] for owner in self._changed if owner in self._of]
        self._changed.clear()
        return found

    def expires_at(self, known: Spared) -> float:
        """Returns when a record expires, in seconds since 1970.

        The record outlives the last protection by as long as the next generation would be protected.
        """
        protected_until = self._protected_until(known) + self._for_s(len(known.since) + 1) if known.since else 0.0
        return max([protected_until, *(at + _HOUR_S for at in (*known.ended, *(at for at, _ in known.asked.values())))])

    def _protected_until(self, known: Spared) -> float:
        """Until when replacements of the pods that ended last are protected, if they were created at once."""
        return max(known.ended, default=0.0) + self._for_s(len(known.since))

    def _until(self, known: Spared, state: PodState) -> float:
        generation, created = _generation(known, state), created_at(state.pod)
        return created + _CREATION_PRECISION_S + self._for_s(generation) if generation and created is not None else 0.0

    def _for_s(self, generation: int) -> float:
        return self._first_s * 2.0 ** (generation - 1)

    def _put(self, record: Spared) -> None:
        self._of[record.owner] = record
        self._owner_of |= dict.fromkeys(record.asked, record.owner)
        self._changed[record.owner] = None


def _generation(known: Spared, state: PodState) -> int:
    """Returns a pod's generation; 0 if it was created before any of its owner's pods was preempted."""
    created = created_at(state.pod)
    return 0 if created is None else sum(begun <= created + _MAX_CLOCK_SKEW_S for begun in known.since)


def _newest(record: Spared) -> float:
    return max((*record.ended, *(at for at, _ in record.asked.values())), default=0.0)


def owner_of(state: PodState) -> str:
    """Returns the uid of what replaces a pod: its controller's.

    A pod without a controller is its own owner.
    """
    return state.controller_uid or state.uid
