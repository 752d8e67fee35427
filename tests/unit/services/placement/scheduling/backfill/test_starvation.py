"""A gang among small pods that arrive for ever: without a reservation it starves, with one it starts within a bound."""

from __future__ import annotations

import itertools
import random

import pytest

from services.placement.scheduling.backfill.reservations import LOOK_S
from services.placement.scheduling.pauses import PAUSE_MOST_S
from shared.model.objects import Pod
from tests.unit.services.placement.scheduling.backfill.site import AFTER_S, Site

LONGEST_S = 300.0
"""How long a small pod runs at most."""
BOUND_S = AFTER_S + LOOK_S + LONGEST_S + PAUSE_MOST_S
"""The gang waits for so long until capacity is reserved, then for the pods that have it, then for its next attempt."""
HORIZON_S = 10 * LONGEST_S


class World:
    """Small pods run for a random time. Whenever one starts, another one arrives, so that some always wait."""

    def __init__(self, seed: int, *, reserve_after_s: float, gpus: int, step_s: float = 1.0) -> None:
        self.rng, self.numbers, self.step_s = random.Random(seed), itertools.count(), step_s
        self.site = Site({f"n{i}": gpus for i in range(4)}, reserve_after_s=reserve_after_s)
        self.waiting: dict[str, Pod] = {}
        self.running: dict[str, tuple[float, Pod]] = {}
        for _ in range(4 * gpus):
            self.arrive()
        self.start()

    @property
    def now(self) -> float:
        return self.site.placement.now

    def arrive(self) -> None:
        number = next(self.numbers)
        pod = self.site.arrives(f"small{number}", at=round(self.now) + 1)
        self.waiting[pod.metadata.uid] = pod

    def start(self) -> None:
        """What was bound runs, and for each one more arrives."""
        binds = self.site.placement.binds()
        for uid in [uid for uid in self.waiting if uid in binds]:
            pod = self.site.placement.bind(self.waiting.pop(uid))
            self.running[uid] = (self.now + self.rng.uniform(0.1, 1.0) * LONGEST_S, pod)
            self.arrive()

    def step(self) -> None:
        self.site.wait(self.step_s, step_s=self.step_s)
        for uid in [uid for uid, (end, _) in self.running.items() if end <= self.now]:
            self.site.ends(self.running.pop(uid)[1])
        self.start()

    def start_of(self, gang: list[Pod]) -> float | None:
        """How long the gang waits; None if it has not started at the horizon."""
        arrived = self.now
        while self.now < arrived + HORIZON_S:
            self.step()
            placed = [bool(self.site.node_of(pod)) for pod in gang]
            assert all(placed) or not any(placed)
            if all(placed):
                return self.now - arrived
        return None


@pytest.mark.parametrize("seed", range(3))
def test_with_a_reservation_the_gang_starts_within_a_bound(seed: int) -> None:
    world = World(seed, reserve_after_s=AFTER_S, gpus=4)
    for _ in range(round(LONGEST_S)):
        world.step()
    before = len(world.waiting)
    assert before > 0
    waited = world.start_of(world.site.gang(count=2, gpus=4, at=0))
    assert waited is not None
    assert waited <= BOUND_S
    assert world.site.placement.core.backfill.idle_gpu_seconds <= 8 * LONGEST_S


@pytest.mark.parametrize("seed", range(2))
def test_without_one_it_starves(seed: int) -> None:
    world = World(seed, reserve_after_s=0, gpus=4, step_s=10.0)
    assert world.start_of(world.site.gang(count=2, gpus=4, at=0)) is None
