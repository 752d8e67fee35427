"""The checker of grants: histories that it refuses, and weakened code that it notices without any other property."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from services.node_agent import gate
from services.node_agent.state import KnownGrant
from shared.book.states import GrantState
from tests.sim import leaders, simulation
from tests.sim.checker import Fault, GrantChecker, Use
from tests.sim.nats import Violation
from tests.sim.simulation import Simulation
from tests.sim.weakened import free_at_once

WHOLE, HALF = (80, 1000), (40, 500)


class History:
    """What happened, in its order."""

    def __init__(self) -> None:
        self.checker = GrantChecker(WHOLE)
        self.found: list[Fault] = []
        self._nodes: dict[str, dict[tuple[str, str], Use]] = {}

    def bound(self, uid: str, grant: str, amounts: tuple[int, int] = WHOLE, *, node: str = "n", on: str = "n") -> None:
        share = {"node": on, "uuid": "gpu", "memory_mib": amounts[0], "compute_milli": amounts[1]}
        text = json.dumps({"grant_id": grant, "containers": {"c": {"gpus": [share]}}})
        self.found += self.checker.stored(uid, node, {"kerf.dev/grant": text})

    def runs(self, uid: str, grant: str, amounts: tuple[int, int] = WHOLE, *, node: str = "n") -> None:
        running = self._nodes.setdefault(node, {})
        running[uid, "c"] = Use(grant, {"gpu": amounts})
        self.found += self.checker.ran(node, running)

    def ends(self, uid: str, *, node: str = "n") -> None:
        del self._nodes[node][uid, "c"]
        self.found += self.checker.ran(node, self._nodes[node])

    def rules(self) -> list[str]:
        return [fault.rule for fault in (*self.found, *self.checker.linearize())]


def test_one_after_the_other_is_accepted() -> None:
    history = History()
    history.bound("a", "g1")
    history.runs("a", "g1")
    history.ends("a")
    history.runs("a", "g1")  # its container restarts
    history.ends("a")
    history.bound("b", "g2")
    history.runs("b", "g2")
    assert history.rules() == []


def test_a_grant_that_never_runs_again_counts_for_nothing() -> None:
    """Its pod was deleted by force, or bound by a Binding of the past."""
    history = History()
    history.bound("a", "g1")
    history.bound("b", "g2")
    history.runs("b", "g2")
    history.ends("b")
    history.bound("c", "g3")
    history.runs("c", "g3")
    assert history.rules() == []


def test_c1_two_on_one_gpu() -> None:
    history = History()
    history.bound("a", "g1", HALF)
    history.bound("b", "g2")
    history.runs("a", "g1", HALF)
    history.runs("b", "g2")
    assert history.rules()[0] == "C1"


@pytest.mark.parametrize(
    "bind",
    [
        lambda history: None,
        lambda history: history.bound("b", "g1"),
        lambda history: history.bound("a", "g1", node="other", on="other"),
        lambda history: history.bound("a", "g1", on="other"),
    ],
    ids=["never bound", "to another pod", "to another node", "with a GPU of another node"],
)
def test_c2_what_was_not_bound_there_runs(bind: Callable[[History], None]) -> None:
    history = History()
    bind(history)
    history.runs("a", "g1")
    assert history.rules() == ["C2"]


def test_c3_more_than_was_granted() -> None:
    history = History()
    history.bound("a", "g1", HALF)
    history.runs("a", "g1")
    assert history.rules() == ["C3"]


def test_c3_what_an_amendment_took_back_may_be_used_until_the_node_has_heard_of_it() -> None:
    history = History()
    history.bound("a", "g1")
    history.bound("a", "g1", HALF)
    history.runs("a", "g1")
    assert history.rules() == []


def test_c4_one_pod_by_two_grants_and_one_grant_on_two_pods() -> None:
    history = History()
    history.bound("a", "g1", node="n", on="n")
    history.bound("a", "g2", node="m", on="m")
    history.runs("a", "g1")
    history.runs("a", "g2", node="m")
    history.bound("b", "g1")
    assert history.rules() == ["C4", "C4"]


def test_c5_a_gpu_is_granted_before_its_last_use_has_ended() -> None:
    history = History()
    history.bound("a", "g1")
    history.runs("a", "g1")
    history.bound("b", "g2")  # while a runs
    history.ends("a")
    history.runs("b", "g2")
    assert history.rules() == ["C5"]


def test_c5_a_gpu_is_granted_while_a_container_restarts() -> None:
    history = History()
    history.bound("a", "g1")
    history.runs("a", "g1")
    history.ends("a")
    history.bound("b", "g2")
    history.runs("b", "g2")
    history.ends("b")
    history.runs("a", "g1")
    assert history.rules() == ["C5"]


# --- weakened code --------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the checker looks while the world runs."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(Simulation, "_check", nothing)
    monkeypatch.setattr(leaders, "check", nothing)
    monkeypatch.setattr(Simulation, "_finish", lambda self: simulation.raise_first(self.checker.linearize()))


def _finds(rule: str, seeds: Iterable[int]) -> bool:
    """Whether the checker finds this. What else is violated on the way is passed over."""
    for seed in seeds:
        world = Simulation(seed)
        try:
            world.run()
        except Violation as violation:
            if str(violation).startswith(rule):
                return True
    return False


@pytest.mark.usefixtures("alone")
def test_capacity_that_is_freed_on_deletion_alone_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6 left out: the device gate still refuses, so no two run at once, and the next grant is given too early."""
    free_at_once(monkeypatch)
    assert _finds("C5", range(100))


@pytest.mark.usefixtures("alone")
def test_a_node_without_a_device_gate_shows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6 and R7 left out."""
    free_at_once(monkeypatch)
    monkeypatch.setattr(gate, "occupied", lambda shares, node: {})
    assert _finds("C1", range(25, 100))


@pytest.mark.usefixtures("alone")
def test_starting_by_a_hold_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """*Bound first* left out: a server starts for a decision whose pod is not bound."""
    monkeypatch.setattr(KnownGrant, "unbound", property(lambda self: False))
    assert _finds("C2", range(750, 850))


@pytest.mark.usefixtures("alone")
def test_a_growth_that_a_node_hears_of_before_its_pod_has_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrantState, "given", property(lambda self: self.whole or self.grant))
    assert _finds("C3", range(300))
