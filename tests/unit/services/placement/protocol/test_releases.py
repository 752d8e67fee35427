"""R6 for grants that can never be handed over: the capacity is freed, and the pod that waits for it is replaced."""

from __future__ import annotations

from typing import Any

import msgspec

from services.placement import messages as m
from shared.contracts.commands import AnnounceEvent, DeletePod
from shared.contracts.events import GrantEnded
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement, only

OWNED = (OwnerReference(kind="Job", name="j", uid="j", controller=True),)


def bound(*, owned: bool = True) -> tuple[Placement, Pod, str]:
    """A leader, a pod that is bound to the only GPU of its node, and its grant."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    if owned:
        pod = build.newer(pod, owner_references=OWNED)
    placement.facts(pod)
    seen = placement.bind(pod)
    return placement, seen, placement.core.book.pods[seen.metadata.uid].grant_id


def dead(placement: Placement, grant_id: str, node: str = "n") -> list[m.Command]:
    return placement.send(m.GrantAcknowledged(node, grant_id, ok=False, reason="it was released", dead=True))


def patches(said: list[m.Command]) -> list[Any]:
    return [patch for command in only(said, m.SendPatches) for patch in command.patches]


def deletions(said: list[m.Command]) -> list[tuple[str, str]]:
    """Uid and version of each pod that is to be deleted; nothing else is ordered."""
    assert all(isinstance(patch, DeletePod) for patch in patches(said))
    return [(patch.uid, patch.resource_version) for patch in patches(said)]


def test_a_grant_that_its_node_will_never_hand_over_is_free_and_its_pod_is_replaced() -> None:
    placement, pod, grant_id = bound()
    commands = dead(placement, grant_id)
    assert deletions(commands) == [(pod.metadata.uid, pod.metadata.resource_version)]
    assert [event.grant_id for event in placement.events(GrantEnded)] == [grant_id]
    assert placement.place(build.gpu_pod("q", gpus=1)) == {"q": "n"}


def test_a_bare_pod_with_a_dead_grant_stays_with_a_message_on_what_to_do() -> None:
    placement, _, grant_id = bound(owned=False)
    said = patches(dead(placement, grant_id))
    assert [type(patch) for patch in said] == [AnnounceEvent]
    assert said[0].reason == "GrantVoid"


def test_a_pod_that_has_ended_is_not_replaced_for_its_dead_grant() -> None:
    """It has released its grant, as expected."""
    placement, pod, grant_id = bound()
    placement.facts(build.newer(pod, phase="Succeeded"))
    assert patches(dead(placement, grant_id)) == []
    assert placement.core.book.grants == {}


def test_a_terminating_pod_is_not_deleted_again() -> None:
    placement, pod, grant_id = bound()
    placement.facts(build.newer(pod, deletion_timestamp="2026-11-22T00:00:00Z"))
    assert patches(dead(placement, grant_id)) == []


def test_a_node_cannot_report_on_another_nodes_grant() -> None:
    placement, _, grant_id = bound()
    placement.nodes("other", gpus=1)
    assert dead(placement, grant_id, node="other") == []
    assert list(placement.core.book.grants) == [grant_id]


def test_a_dead_grant_stays_booked_while_its_binding_may_still_succeed() -> None:
    """Its pod may yet be bound with it: then the node reports it again, and the pod is replaced."""
    placement = Placement().nodes("n", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=1))
    (grant_id,) = placement.core.book.grants
    assert patches(dead(placement, grant_id)) == []
    assert list(placement.core.book.grants) == [grant_id]


def test_a_release_that_a_node_reports_in_its_sync_frees_the_grant() -> None:
    """Under an earlier leader; its successor has only the pod's annotation."""
    _, pod, grant_id = bound()
    placement = Placement(build.node("n"), pod, term=200, answer=False)
    placement.send(m.SnapshotSeen(placement.objects, 0))
    placement.send(m.Appended(201))
    (sync,) = [
        c.sync for c in placement.send(m.InventorySeen(build.inventory("n", gpus=1))) if isinstance(c, m.SendSync)
    ]
    answer = NodeSyncAnswer(
        node="n", boot_id="boot-1", term=200, accepted=True, number=sync.number, tombstones=(grant_id,)
    )  # fmt: skip
    commands = placement.send(m.SyncAnswered(answer))
    assert deletions(commands) == [(pod.metadata.uid, pod.metadata.resource_version)]
    assert placement.core.book.grants == {}


def test_a_hold_that_its_node_calls_released_stays_booked() -> None:
    """Its Binding may be on the way. If it succeeds, the node refuses the grant, and the pod is replaced."""
    placement = Placement(build.node("n"), term=200, answer=False)
    placement.send(m.SnapshotSeen(placement.objects, 0))
    placement.send(m.Appended(201))
    (sync,) = [
        c.sync for c in placement.send(m.InventorySeen(build.inventory("n", gpus=1))) if isinstance(c, m.SendSync)
    ]
    answer = NodeSyncAnswer(node="n", boot_id="boot-1", term=200, accepted=True, number=sync.number)
    placement.send(m.SyncAnswered(answer))
    placement.facts(build.gpu_pod("p", gpus=1))
    (grant_id,) = placement.core.book.grants
    placement.core.nodes.lost("n")
    (sync,) = [
        c.sync for c in placement.send(m.InventorySeen(build.inventory("n", gpus=1))) if isinstance(c, m.SendSync)
    ]
    assert [named.grant.grant_id for named in sync.grants] == [grant_id]
    placement.send(m.SyncAnswered(msgspec.structs.replace(answer, number=sync.number, tombstones=(grant_id,))))
    assert list(placement.core.book.grants) == [grant_id]


def test_a_release_is_acknowledged_to_its_node_as_often_as_the_node_repeats_it() -> None:
    placement, pod, grant_id = bound()
    placement.gone(pod)
    for _ in range(2):
        commands = placement.send(m.ReleaseSeen("n", grant_id))
        assert [(c.node, c.grant_ids) for c in only(commands, m.SendReleasesSeen)] == [("n", (grant_id,))]
    assert len(placement.events(GrantEnded)) == 1


def test_a_release_for_a_live_pod_replaces_the_pod() -> None:
    """Its node had released the grant for good before the pod was bound with it, and reports it again before it refuses
    the grant."""
    placement, pod, grant_id = bound()
    commands = placement.send(m.ReleaseSeen("n", grant_id))
    assert deletions(commands) == [(pod.metadata.uid, pod.metadata.resource_version)]
    assert placement.core.book.grants == {}
