"""What placement believes of nodes, and what it sends to them (R6): outdated answers, answers of other nodes, and
repeated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.protocol import nodes
from services.placement.protocol.hearing import HEARD_FIRST_S
from services.placement.protocol.nodes import LOOK_S, RESEND_S, SILENT_S
from services.placement.queries import reader
from shared.contracts.commands import AnnounceEvent, DeletePod
from shared.contracts.node_commands import LiveSlice, NodeSync, NodeSyncAnswer
from shared.contracts.queries import GrantQuery
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement, only
from tests.unit.services.placement.protocol.test_suspension import suspended

WHOLE = {"n-gpu-0": (81920, 1000)}
BY_A_JOB = (OwnerReference(kind="Job", name="train", uid="uid-train", controller=True),)


def asked(placement: Placement, node: str = "n") -> NodeSync:
    """The newest question to a node."""
    return [c.sync for c in only(placement.commands, m.SendSync) if c.sync.node == node][-1]


def answered(sync: NodeSync, boot: str = "boot-1", **how: Any) -> m.SyncAnswered:
    return m.SyncAnswered(
        NodeSyncAnswer(
            **({"node": sync.node, "boot_id": boot, "term": sync.term, "accepted": True, "number": sync.number} | how)
        )
    )


def boots(placement: Placement, node: str = "n", boot: str = "boot-2") -> NodeSync:
    """The node comes up again; the sync that it gets and has not answered yet."""
    placement.answer = False
    placement.send(m.InventorySeen(build.inventory(node, gpus=1, boot=boot)))
    return asked(placement, node)


def gets_a_place(placement: Placement) -> bool:
    placement.answer = False
    placement.tick(HEARD_FIRST_S)  # after a new log nothing at all is placed before
    placement.facts(build.gpu_pod("late", gpus=1))
    placement.tick()
    return "uid-team-late" in placement.core.holds


def node_events(placement: Placement) -> list[AnnounceEvent]:
    patches = (patch for sent in only(placement.commands, m.SendPatches) for patch in sent.patches)
    return [patch for patch in patches if isinstance(patch, AnnounceEvent) and patch.kind == "Node"]


def test_an_agent_that_finds_no_gpu_is_told_on_its_node_once_and_when_it_finds_some() -> None:
    """Such an agent is ready; without the Event nothing says why the node gets no pod."""
    placement = Placement().nodes("n", gpus=1)
    nothing = msgspec.structs.replace(build.inventory("n", gpus=0), problem="NVML: Driver Not Loaded")
    for _ in range(3):
        placement.send(m.InventorySeen(nothing))
    (event,) = node_events(placement)
    assert (event.namespace, event.name, event.type, event.reason) == ("default", "n", "Warning", "NoGpuFound")
    assert event.uid == placement.core.book.nodes["n"].object.metadata.uid  # type: ignore[union-attr]
    assert "Driver Not Loaded" in event.note
    placement.send(m.InventorySeen(build.inventory("n", gpus=1)))
    assert [(event.type, event.reason) for event in node_events(placement)][1:] == [("Normal", "GpusFound")]


def bound(placement: Placement) -> Pod:
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    return placement.bind(pod)


# --- when a node may be used ------------------------------------------------------------------------------------


def test_a_rebooted_node_gets_nothing_before_it_has_answered_a_sync() -> None:
    placement = Placement().nodes("n", gpus=1)
    sync = boots(placement)
    assert not gets_a_place(placement)
    placement.send(answered(sync, "boot-2"))
    assert "uid-team-late" in placement.core.holds, "and then it does"


def test_a_heartbeat_alone_does_not_open_a_node_that_has_not_answered() -> None:
    placement = Placement().nodes("n", gpus=1)
    boots(placement)
    placement.tick(SILENT_S + 1)
    placement.send(m.BeatSeen(("n",)))
    assert not gets_a_place(placement)


def test_a_deleted_node_that_returns_must_sync_before_it_is_used() -> None:
    """While it was deleted, its grants were freed. A heartbeat does not show what runs there."""
    placement = Placement().nodes("n", gpus=1)
    placement.answer = False
    before = asked(placement)
    placement.gone(build.node("n"))
    placement.facts(build.node("n"))
    assert asked(placement).number > before.number
    placement.tick(SILENT_S + 1)
    placement.send(m.BeatSeen(("n",)))
    assert not gets_a_place(placement)


def test_a_node_without_a_node_object_is_not_synced() -> None:
    placement = Placement()
    assert only(placement.send(m.InventorySeen(build.inventory("n", gpus=1))), m.SendSync) == []
    assert [c.sync.node for c in only(placement.facts(build.node("n")), m.SendSync)] == ["n"]


def test_an_answer_that_does_not_count_is_of_the_present_boot_or_of_none() -> None:
    """An agent of an earlier version repeats no number, so its boot alone identifies what it refers to."""
    placement = Placement().nodes("n", gpus=1)
    sync = boots(placement)
    placement.send(answered(sync, "boot-1", number=0))
    assert not gets_a_place(placement)
    placement.send(answered(sync, "boot-2", number=0))
    assert "uid-team-late" in placement.core.holds


def test_a_node_that_refuses_this_term_gets_nothing_before_it_has_accepted_it() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.send(answered(asked(placement), term=101, accepted=False))
    assert not gets_a_place(placement)


def test_a_lost_agent_must_sync_when_it_returns_even_with_the_same_boot() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.send(m.AgentLost("n"))
    boots(placement, boot="boot-1")
    assert not gets_a_place(placement)


def test_an_agent_that_has_lost_its_checkpoint_must_sync_even_in_the_same_boot() -> None:
    """It knows no grant of its node, and is told all of them before it gets another."""
    placement = Placement().nodes("n", gpus=1)
    before, placement.answer = asked(placement), False
    inventory = msgspec.structs.replace(build.inventory("n", gpus=1), checkpoint_id="b")
    placement.send(m.InventorySeen(inventory))
    assert not gets_a_place(placement)
    placement.send(answered(before))
    assert "uid-team-late" not in placement.core.holds, "that is what the earlier one said"
    placement.send(answered(asked(placement)))
    assert "uid-team-late" in placement.core.holds
    sent = asked(placement)
    placement.send(m.InventorySeen(msgspec.structs.replace(inventory, generation=2)))
    assert asked(placement) is sent, "the same agent again"


# --- which answers are believed ---------------------------------------------------------------------------------


def test_a_repeated_sync_answer_books_nothing_that_has_ended_since() -> None:
    """Two copies of one sync have two answers, and between them a slice is released."""
    placement = Placement(build.node("n"))
    placement.answer = False
    placement.send(m.InventorySeen(build.inventory("n", gpus=1)))
    live = LiveSlice(
        uid="x", namespace="old", name="ghost", container="c", grant_id="1-1", strategy="exclusive", gpus=WHOLE
    )
    answer = answered(asked(placement), live=(live,))
    placement.send(answer)
    assert list(placement.core.book.grants) == ["1-1"]
    placement.send(m.ReleaseSeen("n", "1-1"))
    placement.send(answer)
    assert placement.core.book.grants == {}


def test_a_release_that_overtakes_the_answer_to_a_sync_ends_its_slice_there_too() -> None:
    """They come by two subscriptions. The slice was booked again, beside the pod that had got its GPU since: by the
    book's own audit a double booking, which the alert told."""
    answers = True

    def respond(command: m.Command, usual: Callable[[m.Command], list[m.Input]]) -> list[m.Input]:
        return usual(command) if answers or not isinstance(command, m.SendSync) else []

    placement = Placement(respond=respond).nodes("n", gpus=1)
    pod = bound(placement)
    (held,) = placement.core.book.grants.values()
    waits = build.gpu_pod("waits", gpus=1)
    placement.facts(waits)
    placement.tick(HEARD_FIRST_S)
    placement.gone(pod)
    answers = False
    placement.send(m.TermRenewed(term=900))
    sync = asked(placement)
    placement.send(m.ReleaseSeen("n", held.grant_id))
    placement.tick(1.0)
    assert waits.metadata.uid in placement.core.holds
    live = LiveSlice(
        uid=held.uid, namespace=held.namespace, name=held.name, container="main", grant_id=held.grant_id,
        strategy="exclusive", gpus=WHOLE,
    )  # fmt: skip
    placement.send(answered(sync, live=(live,)))
    assert placement.core.nodes.is_synced("n")
    assert placement.core.book.overbooked() == []
    assert [one.uid for one in placement.core.book.grants.values()] == [waits.metadata.uid]


def test_a_node_has_released_none_but_its_own_grants() -> None:
    placement = Placement().nodes("n", gpus=1)
    bound(placement)
    placement.nodes("other", gpus=1)
    (grant_id,) = placement.core.book.grants
    placement.send(answered(boots(placement, "other"), "boot-2", tombstones=(grant_id,)))
    assert list(placement.core.book.grants) == [grant_id]
    placement.send(answered(boots(placement, "n"), "boot-2", tombstones=(grant_id,)))
    assert placement.core.book.grants == {}, "its own word counts"


def test_a_node_reports_suspensions_only_of_its_own_pods() -> None:
    """The pod has taken back everything, and its node has not reported it; another node's report does not count."""
    gpu = suspended()
    placement = gpu.placement.nodes("other", gpus=1)
    suspension = placement.core.book.grants[gpu.grant_id].suspension
    assert suspension is not None
    placement.core.book.suspend(gpu.grant_id, None)
    placement.send(answered(boots(placement, "other"), "boot-2", suspension={gpu.grant_id: suspension}))
    assert placement.core.book.grants[gpu.grant_id].suspension is None
    sync = boots(placement, "n")
    placement.send(answered(sync, "boot-2", suspension={gpu.grant_id: suspension}))
    assert placement.core.book.grants[gpu.grant_id].suspension == suspension, "its own node's word is"


def test_suspensions_in_an_outdated_answer_are_ignored() -> None:
    gpu = suspended()
    suspension = gpu.placement.core.book.grants[gpu.grant_id].suspension
    assert suspension is not None
    gpu.placement.core.book.suspend(gpu.grant_id, None)
    late = answered(asked(gpu.placement), suspension={gpu.grant_id: suspension})
    boots(gpu.placement)
    gpu.placement.send(late)
    assert gpu.placement.core.book.grants[gpu.grant_id].suspension is None


# --- grants that will never be handed over ----------------------------------------------------------------------


@pytest.mark.parametrize(("owners", "kind"), [(BY_A_JOB, DeletePod), ((), AnnounceEvent)], ids=["of a Job", "bare"])
def test_a_grant_that_a_node_refuses_for_good_is_free_and_its_pod_cannot_start(owners: Any, kind: type) -> None:
    """A pod with a controller is recreated elsewhere; the creator of a bare pod reads why it waits."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owners))
    placement.facts(pod)
    placement.bind(pod)
    (grant_id,) = placement.core.book.grants
    commands = placement.send(m.GrantAcknowledged("n", grant_id, ok=False, reason="void", dead=True))
    assert placement.core.book.grants == {}
    assert [type(patch) for c in only(commands, m.SendPatches) for patch in c.patches] == [kind]
    assert gets_a_place(placement)


def test_no_node_refuses_grants_of_another_node_for_good() -> None:
    placement = Placement().nodes("n", gpus=1)
    bound(placement)
    (grant_id,) = placement.core.book.grants
    placement.nodes("other", gpus=1)
    placement.send(m.GrantAcknowledged("other", grant_id, ok=False, reason="void", dead=True))
    assert list(placement.core.book.grants) == [grant_id]


def test_a_refusal_that_is_not_for_good_frees_nothing() -> None:
    placement = Placement().nodes("n", gpus=1)
    bound(placement)
    (grant_id,) = placement.core.book.grants
    placement.send(m.GrantAcknowledged("n", grant_id, ok=False, reason="term 99 is over"))
    assert list(placement.core.book.grants) == [grant_id]


# --- what nodes are sent ---------------------------------------------------------------------------------------


def test_a_sync_names_decided_grants_as_not_seen_bound() -> None:
    placement = Placement().nodes("n", gpus=2)
    pods = [build.gpu_pod(name, gpus=1) for name in ("seen", "decided")]
    placement.facts(*pods)
    placement.bind(pods[0])
    assert {g.name: g.unbound for g in boots(placement).grants} == {"seen": False, "decided": True}


def test_orders_to_a_node_have_rising_numbers() -> None:
    """Otherwise an agent could not determine which of a sync and a grant is older."""
    placement = Placement().nodes("n", gpus=2)
    first = asked(placement).number
    bound(placement)
    (grant,) = only(placement.commands, m.SendGrant)
    assert 0 < first < grant.grant.number
    assert not grant.grant.unbound
    sync = boots(placement)
    assert sync.number > grant.grant.number
    assert {g.number for g in sync.grants} == {sync.number}


def test_a_void_grant_that_a_node_knows_is_revoked_there_until_it_answers() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    (heard,) = boots(placement).grants
    commands = placement.facts(build.newer(pod))
    (release,) = only(commands, m.SendRelease)
    assert (release.node, release.release.uid, release.release.grant_id) == ("n", "uid-team-p", heard.grant.grant_id)
    assert release in only(placement.tick(RESEND_S), m.SendRelease)
    placement.send(m.ReleaseSeen("n", heard.grant.grant_id))
    assert only(placement.tick(RESEND_S), m.SendRelease) == []


def test_a_void_grant_that_no_node_knows_is_sent_to_no_node() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    assert only(placement.facts(build.newer(pod)), m.SendRelease) == []


def test_an_unanswered_grant_is_sent_again_under_the_renewed_term() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.facts(pod := build.gpu_pod("p", gpus=1))
    placement.answer = False
    placement.bind(pod)
    placement.send(m.TermRenewed(term=900))
    assert [c.grant.term for c in only(placement.tick(RESEND_S), m.SendGrant)] == [900]


def test_an_unanswered_grant_that_a_sync_has_overtaken_is_sent_again_as_a_newer_order() -> None:
    """A node does nothing by an order that is older than what it has heard of the grant."""
    placement = Placement().nodes("n", gpus=1)
    placement.facts(pod := build.gpu_pod("p", gpus=1))
    placement.answer = False
    placement.bind(pod)
    (sync,) = only(placement.core.nodes.sync_all(placement.now), m.SendSync)
    (again,) = only(placement.tick(RESEND_S), m.SendGrant)
    assert again.grant.number > sync.sync.number
    assert only(placement.tick(RESEND_S), m.SendGrant)[-1].grant.number >= again.grant.number


def test_the_syncs_of_a_large_cluster_are_spread_over_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new or renewed term asks every node. In one go, thousands of them would take longer than a lease lasts."""
    placement = Placement().nodes("a", "b", "c", "d", "e")
    monkeypatch.setattr(nodes, "SYNCS_AT_ONCE", 2)

    def synced(said: list[m.Command]) -> list[str]:
        return [command.sync.node for command in only(said, m.SendSync)]

    assert synced(placement.send(m.TermRenewed(term=900))) == ["a", "b"]
    assert placement.core.nodes.synced_count == 2
    assert synced(placement.tick(0.1)) == ["c", "d"]
    assert synced(placement.tick(0.1)) == ["e"]
    assert placement.core.nodes.synced_count == 5


def test_a_node_that_does_not_answer_its_sync_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement().nodes("a", "b", "c")
    monkeypatch.setattr(nodes, "SYNCS_AT_ONCE", 1)
    placement.answer = False
    first = only(placement.send(m.TermRenewed(term=900)), m.SendSync)
    placement.send(m.Appended(placement.sequence + 1))
    later = [command.sync.node for _ in range(3) for command in only(placement.tick(RESEND_S), m.SendSync)]
    assert [first[0].sync.node, *later] == ["a", "b", "c", "a"]


def test_what_is_due_is_looked_for_not_at_every_tick() -> None:
    """All grants are walked through for it."""
    placement = Placement().nodes("n", gpus=1)
    placement.facts(pod := build.gpu_pod("p", gpus=1))
    placement.answer = False
    placement.bind(pod)
    placement.tick(RESEND_S - LOOK_S / 4)
    assert only(placement.tick(LOOK_S / 2), m.SendGrant) == []
    assert len(only(placement.tick(LOOK_S / 2), m.SendGrant)) == 1


def test_an_agent_that_asks_gets_its_own_grants_that_were_seen_bound() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    asks = GrantQuery(uid=pod.metadata.uid, node="n")
    assert reader.grant(placement.core, asks).found is None, "its Binding may never come true"
    placement.bind(pod)
    found = reader.grant(placement.core, asks).found
    assert found is not None
    assert (found.uid, found.unbound) == (pod.metadata.uid, False)
    assert reader.grant(placement.core, msgspec.structs.replace(asks, node="other")).found is None
