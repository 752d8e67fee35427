"""What the core makes of a rehearsal, and which pods are rehearsed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent import rehearsals
from services.node_agent.core import Agent
from services.node_agent.state import read, write
from shared.contracts.events import SliceImpaired
from shared.contracts.node_commands import Accepted, NodeGrant, NodeHold, NodeHoldAnswer, NodeSyncAnswer
from shared.model.suspension import Suspension
from shared.model.turn_terms import SignalHook, TurnTerms
from tests.unit.services.node_agent.make import NODE, answer, sync
from tests.unit.services.node_agent.test_suspensions import CHECKPOINT, PAUSE, share, slices

TERMS = TurnTerms(rehearse=True)


def asked(name: str, suspension: Suspension | None = None, **changes: Any) -> NodeGrant:
    return msgspec.structs.replace(share(name, suspension, term=changes.pop("term", 1)), turns=TERMS, **changes)


def due(core: Agent) -> list[str]:
    return [known.grant.name for known in core.store.known if rehearsals.is_due(known)]


def rehearsed(core: Agent, name: str, why: str) -> list[m.Command]:
    return core.handle(m.Rehearsed(f"g-{name}", why), 1.0)


@pytest.fixture
def core() -> Agent:
    made = slices("a")
    made.handle(m.GrantReceived(asked("a", number=1)), 0.0)
    return made


def test_a_pod_that_allows_turns_is_rehearsed_once_whatever_comes_of_it(core: Agent) -> None:
    assert due(core) == ["a"]
    assert [type(order) for order in rehearsed(core, "a", "")] == [m.Save]
    assert due(core) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": None},
        {"turns": TurnTerms()},
        {"turns": TurnTerms(rehearse=True, hook=SignalHook(signal="SIGUSR1", file="/slept"))},
        {"unbound": True},
    ],
)
def test_other_pods_are_not(changes: dict[str, Any]) -> None:
    made = slices()
    made.handle(m.GrantReceived(msgspec.structs.replace(asked("a"), **changes)), 0.0)
    assert due(made) == []


def test_a_suspended_pod_is_not_rehearsed(core: Agent) -> None:
    core.handle(m.GrantReceived(asked("a", PAUSE, number=2)), 0.0)
    assert due(core) == []


def test_a_program_that_cannot_be_checkpointed_is_said_on_its_pod_and_to_placement_and_survives_a_restart(
    core: Agent,
) -> None:
    said = next(order for order in rehearsed(core, "a", "it uses managed memory") if isinstance(order, m.Publish))
    assert isinstance(said.event, SliceImpaired)
    assert (said.namespace, said.event.name, said.event.reason) == ("ns", "a", "cannot-checkpoint")
    assert said.event.sentence == (
        "it takes no turns by a checkpoint, because its programs cannot be checkpointed: it uses managed memory"
    )
    restarted = Agent(NODE, read(write(core.checkpoint()), NODE))
    told = answer(restarted.handle(sync(asked("a", term=2), term=2), 2.0))
    assert isinstance(told, NodeSyncAnswer)
    assert told.cannot_checkpoint == {"g-a": "it uses managed memory"}
    refused = answer(restarted.handle(m.GrantReceived(asked("a", CHECKPOINT, term=2, number=3)), 2.0))
    assert isinstance(refused, Accepted)
    assert (refused.ok, refused.suspension, refused.cannot_checkpoint) == (True, None, "it uses managed memory")
    assert refused.reason == "its programs cannot be checkpointed: it uses managed memory"
    orders = restarted.handle(m.GrantReceived(asked("a", PAUSE, term=2, number=4)), 2.0)
    assert any(isinstance(order, m.SuspendSlices) for order in orders), "a pause needs no checkpoint"


def test_a_rehearsal_of_a_pod_that_has_left_changes_nothing(core: Agent) -> None:
    assert core.handle(m.Rehearsed("g-other", "why"), 1.0) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"term": 0}, "term 0 is over"),
        ({"grant_ids": ("g-a", "g-x")}, "does not know all"),
        ({"grant_ids": ("g-x",), "hold_s": 0}, ""),
    ],
)
def test_members_of_a_gang_are_held_only_under_the_newest_term_and_if_all_are_known(
    core: Agent, changes: dict[str, Any], why: str
) -> None:
    asked = msgspec.structs.replace(NodeHold(term=1, node=NODE, grant_ids=("g-a",), hold_s=10), **changes)
    (order,) = core.handle(m.HoldReceived(asked), 1.0)
    if why:
        assert isinstance(order, m.Answer)
        assert isinstance(order.body, NodeHoldAnswer)
        assert not order.body.ok
        assert why in order.body.reason
    else:
        assert isinstance(order, m.HoldPods)
        assert (order.uids, order.hold_s) == (("u-a",) if "g-a" in asked.grant_ids else (), asked.hold_s)


def test_a_program_that_sleeps_by_itself_is_not_held_because_it_could_not() -> None:
    core = slices("a")
    terms = TurnTerms(hook=SignalHook(signal="SIGUSR1", file="/slept"))
    core.handle(m.GrantReceived(msgspec.structs.replace(share("a"), turns=terms, number=1)), 0.0)
    (order,) = core.handle(m.HoldReceived(NodeHold(term=1, node=NODE, grant_ids=("g-a",), hold_s=10)), 0.0)
    assert isinstance(order, m.HoldPods)
    assert order.uids == ()


@pytest.mark.parametrize("hold_s", [-1, 61])
def test_a_hold_is_bounded(hold_s: float) -> None:
    with pytest.raises(ValueError, match="hold_s"):
        NodeHold(term=1, node=NODE, grant_ids=(), hold_s=hold_s)
