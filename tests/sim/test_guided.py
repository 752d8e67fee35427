"""The search that is guided by states: what it keeps, and that what it finds can be replayed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count

import pytest

from tests.sim.guided import World, search
from tests.sim.simulation import FAULTY_S, Simulation


def _story(seed: int, *forks: tuple[float, int]) -> list[str]:
    simulation = Simulation(seed, forks)
    simulation.run()
    return simulation.clock.story


def test_a_fork_keeps_the_past_and_has_another_future() -> None:
    plain, forked = _story(3), _story(3, (1_020.0, 1))
    assert forked == _story(3, (1_020.0, 1))
    past = [line for line in plain if float(line.split()[0]) < 20.0]
    assert forked[: len(past)] == past
    assert forked != plain


def _worlds(limit: int) -> Callable[[], float]:
    """A clock that has run out when so many worlds have been begun."""
    looks = chain((0,), count())
    return lambda: next(looks)


def test_worlds_with_new_states_are_kept_and_forked() -> None:
    begun: list[World] = []
    made = Simulation.__init__

    def notes(self: Simulation, seed: int, forks: tuple[tuple[float, int], ...] = ()) -> None:
        begun.append(World(seed, forks))
        made(self, seed, forks)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Simulation, "__init__", notes)
        found = search(8, guided=True, clock=_worlds(8))
    assert found.failed == []
    assert found.worlds == len(begun) == 8
    assert found.states > 100
    forked = [world for world in begun if world.forks]
    assert forked
    assert all(1_000.0 - 2.0 < world.forks[-1][0] < 1_000.0 + FAULTY_S for world in forked)


def test_without_guidance_seeds_come_one_after_the_other() -> None:
    found = search(2, guided=False, first=5, clock=_worlds(2))
    assert (found.worlds, found.kept) == (2, 2)


def test_a_world_says_how_to_replay_it() -> None:
    assert World(7, ((1_012.25, 99),)).replay == "--seed 7 --fork 1012.25:99"
