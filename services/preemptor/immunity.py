"""Who is left alone for a while: whoever has made room shall not be asked again at once. No thrashing.

What is known of an owner is one record, which outlives this process: whoever works next reads them all first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import msgspec

from shared.book.states import PodState
from shared.contracts.preemption import Spared

_HOUR_S = 3600.0


class Immunity:
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
        known = self._of.get(owner_of(state))
        return (known is not None and known.times > 0 and known.until > now) or self._spent(state.pod.metadata.namespace, now)

    def count(self, now: float) -> int:
        """Owners that are left alone now."""
        return sum(known.times > 0 and known.until > now for known in self._of.values())

    def now_spared(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Owners and namespaces of whose pods nobody is asked now."""
        owners = tuple(owner for owner, known in self._of.items() if known.times > 0 and known.until > now)
        return owners, tuple(namespace for namespace in list(self._evicted) if self._spent(namespace, now))

    def asked(self, uid: str, owner: str, namespace: str, now: float) -> None:
        """Its eviction is asked for. Whether it was done is seen by its end, for an answer may be lost, or come after its
        controller's next pod. `owner` as `owner_of` says it, while the pod was there."""
        known = self._of.get(owner) or Spared(owner=owner, namespace=namespace)
        self._put(msgspec.structs.replace(known, asked={**known.asked, uid: now}))

    def ended(self, uid: str, now: float) -> None:
        """The pod ends, or is gone: by the eviction, if one was asked for."""
        known = self._of.get(self._owner_of.get(uid, ""))
        if known is None:
            return
        asked = {other: at for other, at in known.asked.items() if other != uid}
        del self._owner_of[uid]
        times, until = known.times, known.until
        if until <= now or not times:
            times, until = times + 1, now + self._first_s * 2**times
        ended = (*(at for at in known.ended if now - at < _HOUR_S), now)
        self._put(msgspec.structs.replace(known, asked=asked, times=times, until=until, ended=ended))
        self._evicted.setdefault(known.namespace, deque()).append(now)

    def only(self, uids: Container[str], now: float) -> None:
        """No other pods than these are left."""
        for uid in [uid for uid in self._owner_of if uid not in uids]:
            self.ended(uid, now)

    def tick(self, now: float) -> None:
        """Forgets owners that have been left alone for as long again as they were promised, and pods that did not end."""
        for owner, known in list(self._of.items()):
            late = [uid for uid, at in known.asked.items() if now - at >= _HOUR_S]
            for uid in late:
                del self._owner_of[uid]
            if late:
                self._of[owner] = msgspec.structs.replace(known, asked={uid: at for uid, at in known.asked.items() if uid not in late})
            if self.forgotten_at(known) <= now:
                del self._of[owner]

    def remembered(self, record: Spared) -> None:
        """What whoever works, or worked before, has written. Of two records of an owner the later one stands."""
        known = self._of.get(record.owner)
        if known is None or _newest(record) > _newest(known):
            self._put(record)
            self._changed.pop(record.owner, None)
            self._evicted[record.namespace] = deque(sorted(at for one in self._of.values() if one.namespace == record.namespace for at in one.ended))

    def changed(self) -> list[Spared]:
        """What has to be written down, once."""
        found = [self._of[owner] for owner in self._changed if owner in self._of]
        self._changed.clear()
        return found

    def forgotten_at(self, known: Spared) -> float:
        """Seconds since 1970: nothing hangs on the record from then on."""
        calm = known.until + self._first_s * 2**known.times if known.times else 0.0
        return max([calm, *(at + _HOUR_S for at in (*known.asked.values(), *known.ended))])

    def _put(self, record: Spared) -> None:
        self._of[record.owner] = record
        self._owner_of |= dict.fromkeys(record.asked, record.owner)
        self._changed[record.owner] = None

    def _spent(self, namespace: str, now: float) -> bool:
        recent = self._evicted.get(namespace)
        if not self._per_hour or recent is None:
            return False
        while recent and recent[0] <= now - _HOUR_S:
            recent.popleft()
        return len(recent) >= self._per_hour


def _newest(record: Spared) -> float:
    return max((*record.asked.values(), *record.ended), default=0.0)


def owner_of(state: PodState) -> str:
    """What makes another such pod: its controller; a bare pod is its own."""
    return state.controller_uid or state.uid
