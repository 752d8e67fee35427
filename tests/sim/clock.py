"""Simulated time: scheduled actions, in order of their time and then of their scheduling."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Poll(NamedTuple):
    """Something that looks whether there is anything to do, over and over."""

    every_s: float
    idle: Callable[[float], bool]
    """Whether it would find nothing at this time, and so would only look again."""
    look: Callable[[], None]


class Clock:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1_000.0
        self.steps = 0
        self._things: list[tuple[float, int, Callable[[], None] | Poll]] = []
        self._order = 0
        self.story: list[str] = []

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._things, (self.now + seconds, self._order, do))

    def poll(self, poll: Poll) -> None:
        self._order += 1
        heapq.heappush(self._things, (self.now + poll.every_s, self._order, poll))

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now - 1_000.0:9.3f}  {text}")

    def step(self) -> bool:
        """Runs the next action. Returns False if none is left."""
        if not self._things:
            return False
        self.now, _, do = heapq.heappop(self._things)
        self.steps += 1
        (do.look if isinstance(do, Poll) else do)()
        return True

    def skip_idle(self, until: float, stride: int) -> bool:
        """Takes the steps of polls that find nothing, up to the next multiple of `stride`. Returns whether there were
        any. They are most steps of a world at rest, and change nothing but time."""
        things, began = self._things, self.steps
        while things:
            at, _, do = things[0]
            if at >= until or not isinstance(do, Poll) or not do.idle(at):
                break
            self.now = at
            self.steps += 1
            self._order += 1
            heapq.heapreplace(things, (at + do.every_s, self._order, do))
            if not self.steps % stride:
                break
        return self.steps > began

    @property
    def next_at(self) -> float:
        return self._things[0][0] if self._things else float("inf")


def first_only(do: Callable[[T], None]) -> Callable[[T], None]:
    """Does it for the first call alone: a request has one answer, and none after its time-out."""
    waits = [True]

    def answered(answer: T) -> None:
        if waits:
            waits.pop()
            do(answer)

    return answered


class Network:
    """Delays, drops and doubles messages between parts. `calm` ends all faults."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calm = False
        self._last: dict[str, float] = {}
        self.lost_orders = False
        """Whether orders of leaders to watchers are lost; see `World._lose_bindings`."""
        self.cut: set[str] = set()
        """Parts that are isolated: they reach no other part, and no other part reaches them."""

    def send(self, source: str, target: str, deliver: Callable[[], None], *, ordered: str = "") -> None:
        """`ordered` names a connection whose messages keep their order."""
        if source in self.cut or target in self.cut:
            return
        rng = self.clock.rng
        if self.calm:
            self._later(0.001, target, deliver, ordered)
            return
        if rng.random() < 0.02:
            return
        delay = rng.choice((0.001, 0.001, 0.005, 0.02)) * (1 + rng.random())
        if not ordered and rng.random() < 0.05:
            delay = rng.uniform(0.1, 20.0)  # a late message, such as a POST of a frozen process
        self._later(delay, target, deliver, ordered)
        if not ordered and rng.random() < 0.03:
            self._later(rng.uniform(0.001, 5.0), target, deliver, "")

    def _later(self, delay: float, target: str, deliver: Callable[[], None], ordered: str) -> None:
        def arrive() -> None:
            if target not in self.cut:
                deliver()

        if ordered:
            last = self._last.get(ordered, 0.0)
            at = max(self.clock.now + delay, last + 1e-6)
            self._last[ordered] = at
            delay = at - self.clock.now
        self.clock.after(delay, arrive)
