"""Worlds with migrations show something, and would show a mistake."""

from __future__ import annotations

from collections import Counter

import pytest

from services.preemptor.consolidation import Consolidation
from shared.book.gangs import Gangs
from tests.sim.simulation import Simulation
from tests.sim.worlds import violated, worlds


def _drawn(simulation: Simulation) -> bool:
    return simulation.migrations.drawn


def test_pods_are_migrated_and_their_replacements_run_where_they_were_to_go() -> None:
    happened = Counter[str]()
    for simulation in worlds(_drawn, 20):
        simulation.run()
        happened += simulation.migrations.happened
    assert happened["evictions"] >= 5
    assert happened["replacements where they were to go"] >= 3


def test_migrations_beyond_the_hourly_limit_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consolidation, "left_gpu_ms", lambda self, now: 10**9)
    assert violated(worlds(_drawn, 100, first=1_497)).startswith("D1")


def test_the_migration_of_members_that_their_gang_needs_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gangs, "can_spare", lambda self, uid, going=(): True)
    assert violated(worlds(_drawn, 100, first=2_100)).startswith("D2")
