"""When a Binding that has not been seen is sent again."""

from __future__ import annotations

from services.placement.protocol.binding_time import LEAST_S, MOST_S
from services.placement.protocol.holds import Hold, Holds
from shared.contracts.commands import Answer
from shared.contracts.log import Decision, DecisionBatch


def decision(uid: str) -> Decision:
    return Decision(uid=uid, namespace="default", name=uid, resource_version="1", node="n", grant=None)


def sent(holds: Holds, uid: str, at: float) -> None:
    holds[uid] = Hold(decision(uid), at)
    assert holds.logged(DecisionBatch(term=1, decisions=(holds[uid].decision,)), 2, at)


def late(holds: Holds, now: float) -> list[str]:
    return [hold.decision.uid for hold in holds.late(now)]


def test_a_binding_that_is_not_seen_is_sent_again_every_few_seconds() -> None:
    holds = Holds()
    sent(holds, "p", 100.0)
    assert late(holds, 100.0 + LEAST_S - 0.1) == []
    assert late(holds, 100.0 + LEAST_S) == ["p"]
    assert late(holds, 100.0 + LEAST_S + 0.1) == []
    assert late(holds, 100.0 + 2 * LEAST_S) == ["p"]


def test_while_bindings_take_longer_they_are_waited_for_longer() -> None:
    holds = Holds()
    for number in range(20):
        sent(holds, f"p{number}", 0.0)
        assert holds.bound(f"p{number}", 9.0) is not None
    assert 9.0 < holds.binding_time.limit_s < 15.0
    sent(holds, "slow", 100.0)
    assert late(holds, 100.0 + 9.0) == []
    assert late(holds, 100.0 + holds.binding_time.limit_s) == ["slow"]
    for number in range(50):
        sent(holds, f"p{number}", 0.0)
        holds.bound(f"p{number}", 0.1)
    assert holds.binding_time.limit_s == LEAST_S


def test_one_that_was_sent_again_counts_from_the_first_time() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    assert late(holds, 6.0) == ["p"]
    holds.bound("p", 8.0)
    assert holds.binding_time.limit_s == 8.0 + 4 * 4.0


def test_no_binding_is_waited_for_for_ever() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    holds.bound("p", 3600.0)
    assert holds.binding_time.limit_s == MOST_S


def test_one_that_was_never_sent_says_nothing_of_how_long_bindings_take() -> None:
    holds = Holds()
    holds["p"] = Hold(decision("p"), 0.0)
    assert holds.bound("p", 20.0) is not None
    assert holds.bound("p", 20.0) is None
    assert holds.binding_time.limit_s == LEAST_S


def test_an_unknown_outcome_is_asked_for_soon_however_long_bindings_take() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    holds.bound("p", 20.0)
    sent(holds, "q", 100.0)
    found = holds.of(Answer(uid="q", outcome="unknown", resource_version="1"))
    assert found is not None
    holds.unknown(found, 101.0)
    assert late(holds, 101.9) == []
    assert late(holds, 102.0) == ["q"]
