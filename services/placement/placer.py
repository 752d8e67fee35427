"""Waiting pods and their turns: who may be placed, who is tried next, and what becomes of those who do not fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from services.placement import messages as m
from services.placement.engine import Engine, Place
from services.placement.explain import Explainer
from services.placement.honoured import refusal
from services.placement.queue import Queue
from services.placement.reports import Reports
from services.placement.settings import Stats
from shared.book.book import Book
from shared.book.states import PodState

_TIMINGS_KEPT = 20_000
_CLAIMS_PAUSE_S = 0.2
"""Volumes of a node are bound within milliseconds; bursts of other changes must not try the pod each time."""


class Placer:
    """`stopwatch` gives seconds and serves the figures alone; no decision looks at it."""

    def __init__(self, book: Book, policy: str, stats: Stats, stopwatch: Callable[[], float]) -> None:
        self.book = book
        self.stats = stats
        self.stopwatch = stopwatch
        self.engine = Engine(book, policy)
        self.queue = Queue()
        self.reports = Reports()
        self.explainer = Explainer(book, self.engine)
        self.decide_us: deque[float] = deque(maxlen=_TIMINGS_KEPT)
        self.first_seen: dict[str, float] = {}

    def admit(self, state: PodState, now: float) -> list[m.Command]:
        """A pod that is new or has changed, unbound and without a hold: into its line, or out of it, or refused by name."""
        if not state.wants_place:
            self.queue.remove(state.uid)
            return []
        self.first_seen.setdefault(state.uid, now)
        why = refusal(state)
        if why is not None:
            self.queue.remove(state.uid)
            return self.reports.refused(state, why)
        self.queue.add(state, self.engine.key_of(state), plain=self.engine.is_plain(state))
        if self.queue.waits(state.uid):
            self.reports.want_words((state.uid,))  # its line waits, so it is not tried; nobody may wait without a word
        return []

    def forget(self, uid: str) -> None:
        """It is bound, or gone."""
        self.queue.remove(uid, forget=True)
        self.engine.forget(uid)
        self.reports.forget(uid)
        self.first_seen.pop(uid, None)

    def wake(self) -> None:
        """Something changed: those whom it may help are tried again."""
        self.queue.wake(lambda uid: int(self.engine.row(self.book.pods[uid]).refresh().max(initial=-1)) >= 0)

    def waited_ms(self, uid: str, now: float) -> int:
        return round((now - self.first_seen.get(uid, now)) * 1000)

    def attempt(self, state: PodState, now: float) -> tuple[Place | None, list[m.Command]]:
        """One try. With a place the pod is out of the queue; without, its line waits for a change."""
        began = self.stopwatch()
        place = self.engine.decide(state)
        self.decide_us.append((self.stopwatch() - began) * 1e6)
        if place is None:
            self.stats.rejections += 1
            self._wait(state, now, alone=not self.engine.is_plain(state))
            self.reports.wants_word(state.uid)
            self.reports.want_words(self.queue.parked_with(state.uid))
            return None, []
        claims = self.reports.claims_first(state, place.node, self.book)
        if claims:
            # Volumes that bind late need the node first; the pod is tried again when its claims are bound.
            self.queue.add(state, self.engine.key_of(state), plain=False)
            self.queue.park(state.uid, now, pause_s=_CLAIMS_PAUSE_S)
            return None, self.reports.ask_claims(state.uid, claims, now)
        self.queue.remove(state.uid)
        return place, []

    def _wait(self, state: PodState, now: float, *, alone: bool) -> None:
        if alone:
            self.queue.add(state, self.engine.key_of(state), plain=False)
        self.queue.park(state.uid, now)

    def explain_one(self, now: float) -> list[m.Command]:
        """When there is nothing better to do: why one of them waits."""
        return self.reports.explain_one(self.explainer, self.queue, self.book, self.first_seen, now)
