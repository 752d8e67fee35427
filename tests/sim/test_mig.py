"""Worlds with MIG show something, and would show a mistake."""

from __future__ import annotations

import pytest

from shared.book.ledger import Ledger
from tests.sim.simulation import Simulation
from tests.sim.worlds import violated, worlds


def _drawn(simulation: Simulation) -> bool:
    return simulation.mig.drawn


def test_many_instances_are_in_use_at_once() -> None:
    seen = 0
    for simulation in worlds(_drawn, 12):
        simulation.run()
        seen += simulation.mig.seen
    assert seen >= 24


def test_instances_that_overlap_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The book does not look at what of a GPU is taken. The nodes' device gates do, so none of these instances runs."""
    monkeypatch.setattr(Ledger, "_mig_granted", staticmethod(lambda node, room: 0))
    assert violated(worlds(_drawn, 100)).startswith("M1")
