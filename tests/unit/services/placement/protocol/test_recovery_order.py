"""What tests/model showed: a sync before the touching is a sync too early."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.placement import messages as m
from services.placement.queries.reader import status
from shared.contracts.node_commands import NodeSyncAnswer
from shared.contracts.queries import StatusQuery
from tests.support import build
from tests.support.harness.placement import Placement, only


def test_no_node_is_synced_before_every_pending_pod_has_been_touched() -> None:
    pod = build.gpu_pod("p", gpus=1)
    placement = Placement(build.node("n"), pod)
    placement.send(m.InventorySeen(build.inventory("n")))
    assert only(placement.commands, m.SendSync) == []
    placement.facts(build.newer(pod))
    assert [c.sync.node for c in only(placement.commands, m.SendSync)] == ["n"]


def test_a_removed_node_is_neither_asked_nor_believed() -> None:
    """What its agent reports in the meantime does not apply to the time after: grants there are freed because the node
    was deleted. When it returns it gets a sync, and nothing else before it has answered. Found by the simulation."""
    placement = Placement().nodes("n", gpus=1)
    placement.answer = False
    asked = NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, number=50)
    placement.gone(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", gpus=1, boot="boot-2")))
    assert only(placement.tick(5.0), m.SendSync) == []
    placement.send(m.SyncAnswered(msgspec.structs.replace(asked, boot_id="boot-2")))
    commands = placement.facts(build.node("n"))
    assert [c.sync.node for c in only(commands, m.SendSync)] == ["n"]
    placement.facts(build.gpu_pod("p", gpus=1))
    assert not placement.core.holds
    placement.send(m.SyncAnswered(msgspec.structs.replace(asked, boot_id="boot-2")))
    assert set(placement.core.holds) == {"uid-team-p"}


def gets_a_place_after_a_late_answer(placement: Placement, *, before: Callable[[Placement], object]) -> bool:
    """The answer to the first sync arrives again, after something else has happened."""
    placement.answer = False
    before(placement)
    placement.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, number=1)))
    placement.facts(build.gpu_pod("p", gpus=1))
    return bool(placement.core.holds)


def test_an_answer_of_another_boot_does_not_open_the_node() -> None:
    def boots(placement: Placement) -> None:
        placement.send(m.InventorySeen(build.inventory("n", gpus=1, boot="boot-2")))

    assert not gets_a_place_after_a_late_answer(Placement().nodes("n", gpus=1), before=boots)
    assert gets_a_place_after_a_late_answer(Placement().nodes("n", gpus=1), before=lambda _: None), (
        "the test sees a place where there is one"
    )


def test_an_answer_of_the_time_before_the_node_was_deleted_does_not_open_it() -> None:
    def away_and_back(placement: Placement) -> None:
        placement.gone(build.node("n"))
        placement.facts(build.node("n"))

    assert not gets_a_place_after_a_late_answer(Placement().nodes("n", gpus=1), before=away_and_back)


def test_an_answer_under_another_term_does_not_open_a_node() -> None:
    placement = Placement(build.node("n"))
    placement.answer = False
    placement.send(m.InventorySeen(build.inventory("n", gpus=1)))
    for term in (99, 101):
        placement.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=term, accepted=True, number=1)))
    placement.facts(build.gpu_pod("p", gpus=1))
    assert not placement.core.holds


def test_a_new_leader_reports_no_double_booking_for_grants_released_before_its_term() -> None:
    """A pod has ended, its GPU is another's since, and only the node knows."""
    first = Placement().nodes("n", gpus=1)
    ended, later = build.gpu_pod("ended", gpus=1), build.gpu_pod("later", gpus=1)
    first.facts(ended)
    ended = build.newer(first.bind(ended), phase="Succeeded")
    first.facts(ended)
    (grant_id,) = first.core.book.grants
    first.send(m.ReleaseSeen("n", grant_id))
    first.facts(later)
    second = Placement(build.node("n"), ended, first.bind(later), term=500, records=tuple(first.log), answer=False)
    second.send(m.InventorySeen(build.inventory("n", gpus=1)))
    second.send(m.SnapshotSeen(second.objects, 0))
    assert len(second.core.book.overbooked()) == 1
    assert status(second.core, StatusQuery(), leader=True).double_bookings == 0
