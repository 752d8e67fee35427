"""Worlds with migrations show something, and would show a mistake."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from services.preemptor.consolidation import Consolidation
from shared.book.gangs import Gangs
from tests.sim.nats import Violation
from tests.sim.simulation import Simulation


def worlds(count: int, *, first: int = 0) -> Iterator[Simulation]:
    """So many worlds with migrations, from this seed on."""
    drawn = (world for seed in itertools.count(first) if (world := Simulation(seed)).migrations.drawn)
    return itertools.islice(drawn, count)


def violated(count: int, *, first: int = 0) -> str:
    """The first violation."""
    for simulation in worlds(count, first=first):
        try:
            simulation.run()
        except Violation as violation:
            return str(violation)
    return ""


def test_pods_are_migrated_and_their_replacements_run_where_they_were_to_go() -> None:
    happened = Counter[str]()
    for simulation in worlds(20):
        simulation.run()
        happened += simulation.migrations.happened
    assert happened["evictions"] >= 5
    assert happened["replacements where they were to go"] >= 3


def test_migrations_beyond_the_hourly_limit_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consolidation, "left_gpu_ms", lambda self, now: 10**9)
    assert violated(100).startswith("D1")


def test_the_migration_of_members_that_their_gang_needs_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gangs, "can_spare", lambda self, uid, going=(): True)
    assert violated(50, first=1_150).startswith("D2")
