"""Who is left alone for a while: a pod that comes in the stead of one that made room shall not be asked again at once. No thrashing.

It is the successors that are immune, not all pods of their controller: else one eviction would shut a Deployment of hundreds of
pods to everybody more important. Successors are told by their creation. The first come after the first eviction of one of their
owner's pods; when one of those is evicted in its turn, whoever comes after that is of the second generation, and is left alone for
twice as long, and so on.

What is known of an owner is one record, which outlives this process: whoever works next reads them all first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import msgspec

from shared.book.states import PodState
from shared.contracts.preemption import Spared
from shared.model.life import created_at

_HOUR_S = 3600.0
_WHOLE_S = 1.0
"""A creation is told in whole seconds."""
_CLOCKS_S = 5.0
"""The API server's clock may be behind ours by so much: a successor must not look older than the eviction before it."""


class Protection:
    def __init__(self, first_s: float, evictions_per_hour: int) -> None:
        self._first_s, self._per_hour = first_s, evictions_per_hour
        self._of: dict[str, Spared] = {}
        """By owner."""
        self._owner_of: dict[str, str] = {}
        """Of pods whose eviction is asked for and that have not been seen to end yet, by uid."""
        self._evicted: dict[str, deque[float]] = {}
        """By namespace: when, in the last hour."""
        self._changed: dict[str, None] = {}

    def spared(self, state: PodState, now: float) -> bool:
        """Whether it is not asked to end now: it is immune, or its namespace has given enough in this hour."""
        return self.immune(state, now) or self.left(state.pod.metadata.namespace, now) == 0

    def immune(self, state: PodState, now: float) -> bool:
        known = self._of.get(owner_of(state))
        return known is not None and bool(known.since) and self._until(known, state) > now

    def left(self, namespace: str, now: float) -> int | None:
        """How many evictions of pods of a namespace its hourly budget still has; None where it has none."""
        if not self._per_hour:
            return None
        recent = self._evicted.get(namespace, deque())
        while recent and recent[0] <= now - _HOUR_S:
            recent.popleft()
        return max(0, self._per_hour - len(recent))

    def count(self, now: float) -> int:
        """Owners of which pods may be left alone now."""
        return sum(bool(known.since) and self._protected_until(known) > now for known in self._of.values())

    def asked(self, state: PodState, now: float) -> None:
        """Its eviction is asked for. Whether it was done is seen by its end, for an answer may be lost, or come after its
        controller's next pod."""
        owner = owner_of(state)
        known = self._of.get(owner) or Spared(owner=owner, namespace=state.pod.metadata.namespace)
        self._put(msgspec.structs.replace(known, asked={**known.asked, state.uid: (now, _generation(known, state))}))

    def ended(self, uid: str, now: float) -> None:
        """The pod ends, or is gone: by the eviction, if one was asked for."""
        known = self._of.get(self._owner_of.pop(uid, ""))
        if known is None or uid not in known.asked:
            return
        _, generation = known.asked[uid]
        asked = {other: at for other, at in known.asked.items() if other != uid}
        ended = (*(at for at in known.ended if now - at < _HOUR_S), now)
        since = (*known.since, now) if generation == len(known.since) else known.since
        self._put(msgspec.structs.replace(known, asked=asked, since=since, ended=ended))
        self._evicted.setdefault(known.namespace, deque()).append(now)

    def only(self, uids: Container[str], now: float) -> None:
        """No other pods than these are left."""
        for uid in [uid for uid in self._owner_of if uid not in uids]:
            self.ended(uid, now)

    def tick(self, now: float) -> None:
        """Forgets owners that have been left alone for as long again as they were promised, and pods that did not end."""
        for owner, known in list(self._of.items()):
            late = [uid for uid, (at, _) in known.asked.items() if now - at >= _HOUR_S]
            for uid in late:
                if (
                    self._owner_of.get(uid) == owner
                ):  # it may have got another owner meanwhile, and been asked under that
                    del self._owner_of[uid]
            if late:
                self._of[owner] = msgspec.structs.replace(
                    known, asked={uid: asked for uid, asked in known.asked.items() if uid not in late}
                )
            if self.expires_at(known) <= now:
                del self._of[owner]

    def restore(self, record: Spared) -> None:
        """What whoever works, or worked before, has written. Of two records of an owner the later one stands."""
        known = self._of.get(record.owner)
        if known is None or _newest(record) > _newest(known):
            self._put(record)
            self._changed.pop(record.owner, None)
            self._evicted[record.namespace] = deque(
                sorted(at for one in self._of.values() if one.namespace == record.namespace for at in one.ended)
            )

    def changed(self) -> list[Spared]:
        """What has to be written down, once."""
        found = [self._of[owner] for owner in self._changed if owner in self._of]
        self._changed.clear()
        return found

    def expires_at(self, known: Spared) -> float:
        """Seconds since 1970: nothing hangs on the record from then on. Its owners' pods have been left alone for as long again as
        they were promised by then."""
        calm = self._protected_until(known) + self._for_s(len(known.since) + 1) if known.since else 0.0
        return max([calm, *(at + _HOUR_S for at in (*known.ended, *(at for at, _ in known.asked.values())))])

    def _protected_until(self, known: Spared) -> float:
        """Until when the successors of those that ended last are immune, if they came at once."""
        return max(known.ended, default=0.0) + self._for_s(len(known.since))

    def _until(self, known: Spared, state: PodState) -> float:
        generation, created = _generation(known, state), created_at(state.pod)
        return created + _WHOLE_S + self._for_s(generation) if generation and created is not None else 0.0

    def _for_s(self, generation: int) -> float:
        return self._first_s * 2.0 ** (generation - 1)

    def _put(self, record: Spared) -> None:
        self._of[record.owner] = record
        self._owner_of |= dict.fromkeys(record.asked, record.owner)
        self._changed[record.owner] = None


def _generation(known: Spared, state: PodState) -> int:
    """0: it was there before any of its owner's pods made room."""
    created = created_at(state.pod)
    return 0 if created is None else sum(begun <= created + _CLOCKS_S for begun in known.since)


def _newest(record: Spared) -> float:
    return max((*record.ended, *(at for at, _ in record.asked.values())), default=0.0)


def owner_of(state: PodState) -> str:
    """What makes another such pod: its controller; a bare pod is its own."""
    return state.controller_uid or state.uid
