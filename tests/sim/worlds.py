"""Worlds that can show something, and the first that violates a property."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from tests.sim.nats import Violation
from tests.sim.simulation import Simulation


def worlds(where: Callable[[Simulation], bool], count: int, *, first: int = 0) -> Iterator[Simulation]:
    """So many of these worlds, from this seed on."""
    return itertools.islice(filter(where, map(Simulation, itertools.count(first))), count)


def violated(simulations: Iterable[Simulation]) -> str:
    """The first violation; empty if there is none."""
    for simulation in simulations:
        try:
            simulation.run()
        except Violation as violation:
            return str(violation)
    return ""
