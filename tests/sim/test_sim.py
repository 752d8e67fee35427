"""A thousand worlds with faults, and proof that a world without a rule would show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.placement.core import Core
from services.placement.journal import Journal
from services.placement.messages import Command
from services.placement.nodes import Nodes
from services.placement.reports import Reports
from shared.book.book import Book
from shared.book.gangs import GangState
from shared.contracts.log import DecisionBatch
from tests.sim.log import Violation
from tests.sim.world import World

SEEDS, PARTS = 1000, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_the_properties_hold_under_faults_drawn_from_a_seed(part: int) -> None:
    """P1 to P4 after every step, P5 and P6 when all is calm. Replay: python -m tests.sim --seed N --story"""
    size = SEEDS // PARTS
    bound = 0
    for seed in range(part * size, (part + 1) * size):
        world = World(seed)
        try:
            world.run()
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}\n" + "\n".join(world.clock.story[-60:]))
        bound += world.bound
    assert bound > size, "hardly a pod was bound: this world proves nothing"


def test_a_seed_replays_exactly() -> None:
    first, second = World(3), World(3)
    first.run()
    second.run()
    assert first.clock.story == second.clock.story
    assert first.clock.steps == second.clock.steps


def _violated(seeds: range) -> str:
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Violation as violation:
            return str(violation)
    return ""


def test_freeing_on_deletion_alone_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6 left out of the real book: capacity comes back when the pod is gone."""
    ended = Book._end

    def frees_at_once(self: Book, state: object) -> object:
        changes = ended(self, state)  # type: ignore[arg-type]
        for change in changes:
            self.release(change.grant_id)
        return changes

    monkeypatch.setattr(Book, "_end", frees_at_once)
    assert _violated(range(300)).startswith(("P1", "P6", "P4"))


def test_a_hold_that_ends_by_time_out_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4 left out of the real core."""
    tick = Core._tick

    def forgets(self: Core, now: float) -> None:
        for uid, hold in list(self.holds.items()):
            if now - hold.decided_at > 1.0 and hold.sequence:
                del self.holds[uid]
                self.book.unhold(uid)
                self._pending(self.book.pods[uid], now)
        tick(self, now)

    monkeypatch.setattr(Core, "_tick", forgets)
    assert _violated(range(300))


def test_using_a_node_before_it_has_synced_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6's sync left out of the real core."""
    inventory = Nodes.inventory

    def trusts(self: Nodes, seen: object, now: float) -> object:
        out = inventory(self, seen, now)  # type: ignore[arg-type]
        self.book.set_agent_trouble(seen.node, "")  # type: ignore[attr-defined]
        return out

    monkeypatch.setattr(Nodes, "inventory", trusts)
    monkeypatch.setattr(Nodes, "_sync", lambda self, node, now: [])
    assert _violated(range(300))


def test_the_reports_are_not_what_keeps_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said to people may fail to be said, and nothing else changes."""
    monkeypatch.setattr(Reports, "explain_one", lambda *args: [])
    assert _violated(range(20)) == ""


def test_a_gang_that_is_decided_member_by_member_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All or none left out of the real core: a gang is content with one member at a time."""
    monkeypatch.setattr(GangState, "need", property(lambda self: 1))
    assert "members that it needs" in _violated(range(20))


def test_a_gang_in_several_records_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record left out of the real journal: each decision is appended by itself."""
    monkeypatch.setattr(Journal, "due", _one_at_a_time(Journal.due))
    assert "members that it needs" in _violated(range(20))


def _one_at_a_time(due: Callable[[Journal, int, float], list[Command]]) -> Callable[[Journal, int, float], list[Command]]:
    def alone(self: Journal, term: int, now: float) -> list[Command]:
        if self.in_flight is not None or self.owed or len(self._gathering) < 2:
            return due(self, term, now)
        first = self._gathering.pop(0)
        return [self.append(DecisionBatch(term=term, decisions=(first,)))]

    return alone
