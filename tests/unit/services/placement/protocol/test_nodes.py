"""What placement believes of nodes, and what it sends to them (R6): outdated answers, answers of other nodes, and
repeated ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.protocol.nodes import RESEND_S, SILENT_S
from services.placement.queries import reader
from shared.contracts.commands import AnnounceEvent, DeletePod
from shared.contracts.node_commands import LiveSlice, NodeSync, NodeSyncAnswer
from shared.contracts.queries import GrantQuery
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from tests.support import build
from tests.support.leader import Leader, only
from tests.unit.services.placement.preemption.test_suspension import suspension_world

WHOLE = {"n-gpu-0": (81920, 1000)}
BY_A_JOB = (OwnerReference(kind="Job", name="train", uid="uid-train", controller=True),)


def asked(leader: Leader, node: str = "n") -> NodeSync:
    """The newest question to a node."""
    return [c.sync for c in only(leader.said, m.SendSync) if c.sync.node == node][-1]


def answered(sync: NodeSync, boot: str = "boot-1", **how: Any) -> m.SyncAnswered:
    return m.SyncAnswered(
        NodeSyncAnswer(
            **({"node": sync.node, "boot_id": boot, "term": sync.term, "accepted": True, "number": sync.number} | how)
        )
    )


def boots(leader: Leader, node: str = "n", boot: str = "boot-2") -> NodeSync:
    """The node comes up again; the sync that it gets and has not answered yet."""
    leader.answer = False
    leader.send(m.InventorySeen(build.inventory(node, gpus=1, boot=boot)))
    return asked(leader, node)


def gets_a_place(leader: Leader) -> bool:
    leader.answer = False
    leader.facts(build.gpu_pod("late", gpus=1))
    return "uid-team-late" in leader.core.holds


def bound(leader: Leader) -> Pod:
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    return leader.bind(pod)


# --- when a node may be used ------------------------------------------------------------------------------------


def test_a_rebooted_node_gets_nothing_before_it_has_answered_a_sync() -> None:
    leader = Leader().nodes("n", gpus=1)
    sync = boots(leader)
    assert not gets_a_place(leader)
    leader.send(answered(sync, "boot-2"))
    assert "uid-team-late" in leader.core.holds, "and then it does"


def test_a_heartbeat_alone_does_not_open_a_node_that_has_not_answered() -> None:
    leader = Leader().nodes("n", gpus=1)
    boots(leader)
    leader.tick(SILENT_S + 1)
    leader.send(m.BeatSeen(("n",)))
    assert not gets_a_place(leader)


def test_a_deleted_node_that_returns_must_sync_before_it_is_used() -> None:
    """While it was deleted, its grants were freed. A heartbeat does not show what runs there."""
    leader = Leader().nodes("n", gpus=1)
    leader.answer = False
    before = asked(leader)
    leader.gone(build.node("n"))
    leader.facts(build.node("n"))
    assert asked(leader).number > before.number
    leader.tick(SILENT_S + 1)
    leader.send(m.BeatSeen(("n",)))
    assert not gets_a_place(leader)


def test_a_node_without_a_node_object_is_not_synced() -> None:
    leader = Leader()
    assert only(leader.send(m.InventorySeen(build.inventory("n", gpus=1))), m.SendSync) == []
    assert [c.sync.node for c in only(leader.facts(build.node("n")), m.SendSync)] == ["n"]


def test_an_answer_that_does_not_count_is_of_the_present_boot_or_of_none() -> None:
    """An agent of an earlier version repeats no number, so its boot alone identifies what it refers to."""
    leader = Leader().nodes("n", gpus=1)
    sync = boots(leader)
    leader.send(answered(sync, "boot-1", number=0))
    assert not gets_a_place(leader)
    leader.send(answered(sync, "boot-2", number=0))
    assert "uid-team-late" in leader.core.holds


def test_a_node_that_refuses_this_term_gets_nothing_before_it_has_accepted_it() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.send(answered(asked(leader), term=101, accepted=False))
    assert not gets_a_place(leader)


def test_a_lost_agent_must_sync_when_it_returns_even_with_the_same_boot() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.send(m.AgentLost("n"))
    boots(leader, boot="boot-1")
    assert not gets_a_place(leader)


# --- which answers are believed ---------------------------------------------------------------------------------


def test_a_repeated_sync_answer_books_nothing_that_has_ended_since() -> None:
    """Two copies of one sync have two answers, and between them a slice is released."""
    leader = Leader(build.node("n"))
    leader.answer = False
    leader.send(m.InventorySeen(build.inventory("n", gpus=1)))
    live = LiveSlice(
        uid="x", namespace="old", name="ghost", container="c", grant_id="1-1", strategy="exclusive", gpus=WHOLE
    )
    said = answered(asked(leader), live=(live,))
    leader.send(said)
    assert list(leader.core.book.grants) == ["1-1"]
    leader.send(m.ReleaseSeen("n", "1-1"))
    leader.send(said)
    assert leader.core.book.grants == {}


def test_a_node_has_released_none_but_its_own_grants() -> None:
    leader = Leader().nodes("n", gpus=1)
    bound(leader)
    leader.nodes("other", gpus=1)
    (grant_id,) = leader.core.book.grants
    leader.send(answered(boots(leader, "other"), "boot-2", tombstones=(grant_id,)))
    assert list(leader.core.book.grants) == [grant_id]
    leader.send(answered(boots(leader, "n"), "boot-2", tombstones=(grant_id,)))
    assert leader.core.book.grants == {}, "its own word counts"


def test_a_node_reports_suspensions_only_of_its_own_pods() -> None:
    """The pod has taken back everything, and its node has not reported it; another node's report does not count."""
    world = suspension_world()
    leader = world.leader.nodes("other", gpus=1)
    suspension = leader.core.book.grants[world.grant_id].suspension
    assert suspension is not None
    leader.core.book.suspend(world.grant_id, None)
    leader.send(answered(boots(leader, "other"), "boot-2", suspension={world.grant_id: suspension}))
    assert leader.core.book.grants[world.grant_id].suspension is None
    sync = boots(leader, "n")
    leader.send(answered(sync, "boot-2", suspension={world.grant_id: suspension}))
    assert leader.core.book.grants[world.grant_id].suspension == suspension, "its own node's word is"


def test_suspensions_in_an_outdated_answer_are_ignored() -> None:
    world = suspension_world()
    suspension = world.leader.core.book.grants[world.grant_id].suspension
    assert suspension is not None
    world.leader.core.book.suspend(world.grant_id, None)
    late = answered(asked(world.leader), suspension={world.grant_id: suspension})
    boots(world.leader)
    world.leader.send(late)
    assert world.leader.core.book.grants[world.grant_id].suspension is None


# --- grants that will never be handed over ----------------------------------------------------------------------


@pytest.mark.parametrize(("owners", "kind"), [(BY_A_JOB, DeletePod), ((), AnnounceEvent)], ids=["of a Job", "bare"])
def test_a_grant_that_a_node_refuses_for_good_is_free_and_its_pod_cannot_start(owners: Any, kind: type) -> None:
    """A pod with a controller is recreated elsewhere; the creator of a bare pod reads why it waits."""
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owners))
    leader.facts(pod)
    leader.bind(pod)
    (grant_id,) = leader.core.book.grants
    said = leader.send(m.GrantAcknowledged("n", grant_id, ok=False, reason="void", dead=True))
    assert leader.core.book.grants == {}
    assert [type(patch) for c in only(said, m.SendPatches) for patch in c.patches] == [kind]
    assert gets_a_place(leader)


def test_no_node_refuses_grants_of_another_node_for_good() -> None:
    leader = Leader().nodes("n", gpus=1)
    bound(leader)
    (grant_id,) = leader.core.book.grants
    leader.nodes("other", gpus=1)
    leader.send(m.GrantAcknowledged("other", grant_id, ok=False, reason="void", dead=True))
    assert list(leader.core.book.grants) == [grant_id]


def test_a_refusal_that_is_not_for_good_frees_nothing() -> None:
    leader = Leader().nodes("n", gpus=1)
    bound(leader)
    (grant_id,) = leader.core.book.grants
    leader.send(m.GrantAcknowledged("n", grant_id, ok=False, reason="term 99 is over"))
    assert list(leader.core.book.grants) == [grant_id]


# --- what nodes are sent ---------------------------------------------------------------------------------------


def test_a_sync_names_decided_grants_as_not_seen_bound() -> None:
    leader = Leader().nodes("n", gpus=2)
    pods = [build.gpu_pod(name, gpus=1) for name in ("seen", "decided")]
    leader.facts(*pods)
    leader.bind(pods[0])
    assert {g.name: g.unbound for g in boots(leader).grants} == {"seen": False, "decided": True}


def test_orders_to_a_node_have_rising_numbers() -> None:
    """Otherwise an agent could not determine which of a sync and a grant is older."""
    leader = Leader().nodes("n", gpus=2)
    first = asked(leader).number
    bound(leader)
    (grant,) = only(leader.said, m.SendGrant)
    assert 0 < first < grant.grant.number
    assert not grant.grant.unbound
    sync = boots(leader)
    assert sync.number > grant.grant.number
    assert {g.number for g in sync.grants} == {sync.number}


def test_a_void_grant_that_a_node_knows_is_revoked_there_until_it_answers() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    (heard,) = boots(leader).grants
    said = leader.facts(build.newer(pod))
    (release,) = only(said, m.SendRelease)
    assert (release.node, release.release.uid, release.release.grant_id) == ("n", "uid-team-p", heard.grant.grant_id)
    assert release in only(leader.tick(RESEND_S), m.SendRelease)
    leader.send(m.ReleaseSeen("n", heard.grant.grant_id))
    assert only(leader.tick(RESEND_S), m.SendRelease) == []


def test_a_void_grant_that_no_node_knows_is_sent_to_no_node() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    assert only(leader.facts(build.newer(pod)), m.SendRelease) == []


def test_an_unanswered_grant_is_sent_again_under_the_renewed_term() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.facts(pod := build.gpu_pod("p", gpus=1))
    leader.answer = False
    leader.bind(pod)
    leader.send(m.TermRenewed(term=900))
    assert [c.grant.term for c in only(leader.tick(RESEND_S), m.SendGrant)] == [900]


def test_an_agent_that_asks_gets_its_own_grants_that_were_seen_bound() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    asks = GrantQuery(uid=pod.metadata.uid, node="n")
    assert reader.grant(leader.core, asks).found is None, "its Binding may never come true"
    leader.bind(pod)
    found = reader.grant(leader.core, asks).found
    assert found is not None
    assert (found.uid, found.unbound) == (pod.metadata.uid, False)
    assert reader.grant(leader.core, msgspec.structs.replace(asks, node="other")).found is None
