"""Pauses of pods that are not tried for a while. A repeated pause is twice as long, from 1 s to 10 s."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 10.0


class Pause(msgspec.Struct):
    until: float
    seconds: float


class Pauses:
    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether the pod has paused, even if its pause has ended."""
        return uid in self._pauses

    def until(self, uid: str) -> float:
        """When the pod's pause ends or has ended; minus infinity if it never paused."""
        pause = self._pauses.get(uid)
        return -math.inf if pause is None else pause.until

    def pause(self, uid: str, now: float) -> None:
        known = self._pauses.get(uid)
        seconds = min(PAUSE_MOST_S, known.seconds * 2 if known else PAUSE_FIRST_S)
        self._pauses[uid] = Pause(now + seconds, seconds)

    def pause_for(self, uid: str, now: float, seconds: float) -> None:
        """Pauses for so long; the next pause of unnamed length is the shortest."""
        self._pauses[uid] = Pause(now + seconds, PAUSE_FIRST_S / 2)

    def forget(self, uid: str) -> None:
        self._pauses.pop(uid, None)

    def first_end(self, counts: Callable[[str], bool]) -> float | None:
        """When the first pause of the pods that count ends or has ended; None if none of them has paused."""
        return min((pause.until for uid, pause in self._pauses.items() if counts(uid)), default=None)
