"""A gang among small pods that arrive for ever: without a reservation it starves, with one it starts within a bound."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from services.placement.scheduling.backfill.reservations import LOOK_S
from services.placement.scheduling.pauses import PAUSE_MOST_S
from shared.model.objects import Pod, PodStatus
from tests.support import build
from tests.support.whatif import time_of
from tests.unit.services.placement.scheduling.backfill.site import AFTER_S, Site

LONGEST_S = 300.0
"""How long a small pod runs at most."""
BOUND_S = AFTER_S + LOOK_S + LONGEST_S + PAUSE_MOST_S
"""The gang waits for so long until capacity is reserved, then for the pods that have it, then for its next attempt."""
HORIZON_S = 10 * LONGEST_S


class World:
    """Small pods run for a random time. Whenever one starts, another one arrives, so that some always wait."""

    def __init__(
        self, seed: int, *, reserve_after_s: float, gpus: int, step_s: float = 1.0, deadlines: bool = False
    ) -> None:
        """`deadlines`: each small pod says when it ends."""
        self.rng, self.numbers, self.step_s = random.Random(seed), itertools.count(), step_s
        self.site = Site({f"n{i}": gpus for i in range(4)}, reserve_after_s=reserve_after_s)
        self.deadlines, self.let_in = deadlines, 0
        self.lives: dict[str, int] = {}
        self.waiting: dict[str, Pod] = {}
        self.running: dict[str, tuple[float, Pod]] = {}
        for _ in range(4 * gpus):
            self.arrive()
        self.start()

    @property
    def now(self) -> float:
        return self.site.placement.now

    def arrive(self) -> None:
        number, life_s = next(self.numbers), round(self.rng.uniform(0.1, 1.0) * LONGEST_S)
        says = {"active_deadline_seconds": life_s} if self.deadlines else {}
        pod = self.site.arrives(f"small{number}", at=round(self.now) + 1, **says)
        self.waiting[pod.metadata.uid], self.lives[pod.metadata.uid] = pod, life_s

    def start(self) -> None:
        """What was bound runs, and for each one more arrives."""
        binds = self.site.placement.binds()
        for uid in [uid for uid in self.waiting if uid in binds]:
            pod = self.site.placement.bind(self.waiting.pop(uid))
            status = PodStatus(phase="Running", start_time=time_of(-self.now))
            self.site.placement.facts(msgspec.structs.replace(build.newer(pod), status=status))
            self.running[uid] = (self.now + self.lives[uid], pod)
            self.let_in += any(binds[uid].node in kept.nodes for kept in self.site.kept)
            self.arrive()

    def step(self) -> None:
        self.site.wait(self.step_s, step_s=self.step_s)
        for uid in [uid for uid, (end, _) in self.running.items() if end <= self.now]:
            self.site.ends(self.running.pop(uid)[1])
        self.start()

    @property
    def idle_gpu_seconds(self) -> float:
        return self.site.placement.core.backfill.idle_gpu_seconds

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
    assert world.let_in == 0
    assert world.idle_gpu_seconds <= 8 * LONGEST_S


@pytest.mark.parametrize("seed", range(3))
def test_pods_that_say_when_they_end_use_what_is_reserved_and_do_not_delay_the_gang(seed: int) -> None:
    world = World(seed, reserve_after_s=AFTER_S, gpus=4, deadlines=True)
    for _ in range(round(LONGEST_S)):
        world.step()
    waited = world.start_of(world.site.gang(count=2, gpus=4, at=0))
    assert waited is not None
    assert waited <= BOUND_S
    assert world.let_in > 0


@pytest.mark.parametrize("seed", range(2))
def test_without_one_it_starves(seed: int) -> None:
    world = World(seed, reserve_after_s=0, gpus=4, step_s=10.0)
    assert world.start_of(world.site.gang(count=2, gpus=4, at=0)) is None
