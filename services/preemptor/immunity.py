"""Who is left alone for a while: whoever has made room shall not be asked again at once. No thrashing."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from shared.book.states import PodState

_HOUR_S = 3600.0


class Immunity:
    def __init__(self, first_s: float, evictions_per_hour: int) -> None:
        self._first_s, self._per_hour = first_s, evictions_per_hour
        self._of: dict[str, tuple[int, float]] = {}
        """By owner: how often, and until when."""
        self._evicted: dict[str, deque[float]] = {}
        """By namespace: when, in the last hour."""
        self._asked: dict[str, tuple[str, str, float]] = {}
        """By uid of pods that have not been seen to end yet: their owner and namespace, and when that was."""

    def spared(self, state: PodState, now: float) -> bool:
        times, until = self._of.get(owner_of(state), (0, 0.0))
        return (times > 0 and until > now) or self._spent(state.pod.metadata.namespace, now)

    def asked(self, uid: str, owner: str, namespace: str, now: float) -> None:
        """Its eviction is asked for. Whether it was done is seen by its end, for an answer may be lost, or come after its
        controller's next pod. `owner` as `owner_of` says it, while the pod was there."""
        self._asked[uid] = (owner, namespace, now)

    def ended(self, uid: str, now: float) -> None:
        """The pod ends, or is gone: by the eviction, if one was asked for."""
        owner, namespace, _ = self._asked.pop(uid, ("", "", 0.0))
        if owner:
            self._evicted_one(owner, namespace, now)

    def only(self, uids: Container[str], now: float) -> None:
        """No other pods than these are left."""
        for uid in [uid for uid in self._asked if uid not in uids]:
            self.ended(uid, now)

    def _evicted_one(self, owner: str, namespace: str, now: float) -> None:
        times, until = self._of.get(owner, (0, 0.0))
        if until <= now or not times:
            self._of[owner] = (times + 1, now + self._first_s * 2**times)
        self._evicted.setdefault(namespace, deque()).append(now)

    def tick(self, now: float) -> None:
        """Forgets owners that have been left alone for as long again as they were promised, and pods that did not end."""
        self._asked = {uid: asked for uid, asked in self._asked.items() if now - asked[2] < _HOUR_S}
        self._of = {owner: (times, until) for owner, (times, until) in self._of.items() if now < until + self._first_s * 2**times}

    def _spent(self, namespace: str, now: float) -> bool:
        recent = self._evicted.get(namespace)
        if not self._per_hour or recent is None:
            return False
        while recent and recent[0] <= now - _HOUR_S:
            recent.popleft()
        return len(recent) >= self._per_hour


def owner_of(state: PodState) -> str:
    """What makes another such pod: its controller; a bare pod is its own."""
    return state.controller_uid or state.uid
