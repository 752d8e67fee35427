"""Worlds with MIG show something, and would show a mistake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from shared.book.ledger import Ledger
from tests.sim.nats import Violation
from tests.sim.simulation import Simulation


def worlds(count: int) -> Iterator[Simulation]:
    return itertools.islice((world for seed in itertools.count() if (world := Simulation(seed)).mig.drawn), count)


def violated(count: int) -> str:
    """The first violation."""
    for simulation in worlds(count):
        try:
            simulation.run()
        except Violation as violation:
            return str(violation)
    return ""


def test_many_instances_are_in_use_at_once() -> None:
    seen = 0
    for simulation in worlds(12):
        simulation.run()
        seen += simulation.mig.seen
    assert seen >= 24


def test_instances_that_overlap_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The book does not look at what of a GPU is taken. The nodes' device gates do, so none of these instances runs."""
    monkeypatch.setattr(Ledger, "_mig_granted", staticmethod(lambda node, room: 0))
    assert violated(100).startswith("M1")
