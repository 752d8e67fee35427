"""When a Binding that has not been seen is sent again."""

from __future__ import annotations

from services.placement.protocol.binding_time import HOLDS_S, LEAST_S, MOST_S
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
        sent(holds, f"p{number}", 91.0)
        assert holds.bound(f"p{number}", 100.0) is not None
    assert 9.0 < holds.binding_time.limit_s(100.0) < 15.0
    sent(holds, "slow", 100.0)
    assert late(holds, 100.0 + 9.0) == []
    assert late(holds, 100.0 + holds.binding_time.limit_s(100.0)) == ["slow"]
    for number in range(50):
        sent(holds, f"p{number}", 110.0)
        holds.bound(f"p{number}", 110.1)
    assert holds.binding_time.limit_s(110.1) == LEAST_S


def test_one_that_was_sent_again_counts_from_the_first_time() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    assert late(holds, 6.0) == ["p"]
    holds.bound("p", 7.0)
    assert holds.binding_time.limit_s(7.0) == 7.0 + 4 * 3.5


def test_one_that_a_renewed_term_logged_again_counts_from_the_first_time() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    assert holds.logged(DecisionBatch(term=9, decisions=(holds["p"].decision,)), 9, 6.0)
    holds.bound("p", 7.0)
    assert holds.binding_time.limit_s(7.0) == 7.0 + 4 * 3.5


def test_one_of_an_earlier_leader_counts_from_when_this_one_sent_it() -> None:
    holds = Holds()
    holds["p"] = Hold(decision("p"), 0.0, sequence=2)
    assert [hold.decision.uid for hold in holds.late(100.0, at_once=True)] == ["p"]
    holds.bound("p", 107.0)
    assert holds.binding_time.limit_s(107.0) == 7.0 + 4 * 3.5


def test_an_outage_does_not_slow_down_what_comes_after_it() -> None:
    holds = Holds()
    for number in range(250):
        sent(holds, f"p{number}", 0.0)
        holds.bound(f"p{number}", 600.0)
    assert holds.binding_time.limit_s(600.0) == MOST_S
    assert holds.binding_time.limit_s(600.0 + HOLDS_S) == LEAST_S
    sent(holds, "q", 700.0)
    holds.bound("q", 700.1)
    assert holds.binding_time.limit_s(700.1) == LEAST_S


def test_no_binding_is_waited_for_for_ever() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    holds.bound("p", 3600.0)
    assert holds.binding_time.limit_s(3600.0) == MOST_S


def test_one_that_was_never_sent_says_nothing_of_how_long_bindings_take() -> None:
    holds = Holds()
    holds["p"] = Hold(decision("p"), 0.0)
    assert holds.bound("p", 20.0) is not None
    assert holds.bound("p", 20.0) is None
    assert holds.binding_time.limit_s(20.0) == LEAST_S


def test_an_unknown_outcome_is_asked_for_soon_however_long_bindings_take() -> None:
    holds = Holds()
    sent(holds, "p", 0.0)
    holds.bound("p", 20.0)
    sent(holds, "q", 30.0)
    found = holds.of(Answer(uid="q", outcome="unknown", resource_version="1"))
    assert found is not None
    holds.unknown(found, 31.0)
    assert late(holds, 31.9) == []
    assert late(holds, 32.0) == ["q"]
