"""What tests/model taught: a sync before the touching is a sync too early."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.placement import messages as m
from shared.contracts.node_commands import NodeSyncAnswer
from tests.support import build
from tests.support.leader import Leader, only


def test_no_node_is_synced_before_every_pending_pod_has_been_touched() -> None:
    pod = build.gpu_pod("p", gpus=1)
    leader = Leader(build.node("n"), pod)
    leader.send(m.InventorySeen(build.inventory("n")))
    assert only(leader.said, m.SendSync) == []
    leader.facts(build.newer(pod))
    assert [c.sync.node for c in only(leader.said, m.SendSync)] == ["n"]


def test_a_node_that_is_gone_is_neither_asked_nor_believed() -> None:
    """What its agent says meanwhile says nothing of the time after: grants there are freed because the node is gone. When it comes
    back it is asked, and gets nothing before it has answered. Found by the simulation."""
    leader = Leader().nodes("n", gpus=1)
    leader.answer = False
    asked = NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, number=50)
    leader.gone(build.node("n"))
    leader.send(m.InventorySeen(build.inventory("n", gpus=1, boot="boot-2")))
    assert only(leader.tick(5.0), m.SendSync) == []
    leader.send(m.SyncAnswered(msgspec.structs.replace(asked, boot_id="boot-2")))
    said = leader.facts(build.node("n"))
    assert [c.sync.node for c in only(said, m.SendSync)] == ["n"]
    leader.facts(build.gpu_pod("p", gpus=1))
    assert not leader.core.holds
    leader.send(m.SyncAnswered(msgspec.structs.replace(asked, boot_id="boot-2")))
    assert set(leader.core.holds) == {"uid-team-p"}


def gets_a_place_after_a_late_answer(leader: Leader, *, before: Callable[[Leader], object]) -> bool:
    """The answer to the first sync comes once more, when something has happened since."""
    leader.answer = False
    before(leader)
    leader.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, number=1)))
    leader.facts(build.gpu_pod("p", gpus=1))
    return bool(leader.core.holds)


def test_an_answer_of_another_boot_does_not_open_the_node() -> None:
    def boots(leader: Leader) -> None:
        leader.send(m.InventorySeen(build.inventory("n", gpus=1, boot="boot-2")))

    assert not gets_a_place_after_a_late_answer(Leader().nodes("n", gpus=1), before=boots)
    assert gets_a_place_after_a_late_answer(Leader().nodes("n", gpus=1), before=lambda _: None), "the test sees a place where there is one"


def test_an_answer_of_the_time_before_the_node_was_deleted_does_not_open_it() -> None:
    def away_and_back(leader: Leader) -> None:
        leader.gone(build.node("n"))
        leader.facts(build.node("n"))

    assert not gets_a_place_after_a_late_answer(Leader().nodes("n", gpus=1), before=away_and_back)


def test_an_answer_under_another_term_does_not_open_a_node() -> None:
    leader = Leader(build.node("n"))
    leader.answer = False
    leader.send(m.InventorySeen(build.inventory("n", gpus=1)))
    for term in (99, 101):
        leader.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=term, accepted=True, number=1)))
    leader.facts(build.gpu_pod("p", gpus=1))
    assert not leader.core.holds
