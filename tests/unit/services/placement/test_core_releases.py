"""When capacity is free again, and what a node may release."""

from __future__ import annotations

from services.placement import messages as m
from shared.contracts.events import GrantEnded
from shared.model.grant import Grant, decode_grant
from tests.support import build
from tests.support.harness.placement import Placement, only
from tests.unit.services.placement.core_pods import HALF, show_bound


def test_no_node_releases_grants_of_another_node() -> None:
    """R6. All agents share one user on the bus, so the name of a node in a message is only the sender's claim."""
    placement = Placement().nodes("n", "other", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.bind(pod)
    (grant_id,) = placement.core.book.grants
    placement.send(m.ReleaseSeen("other" if placement.binds()[pod.metadata.uid].node == "n" else "n", grant_id))
    assert list(placement.core.book.grants) == [grant_id]


def test_a_bound_pods_grant_is_sent_to_its_node_until_the_node_answers() -> None:
    placement = Placement().nodes("n")
    pod = build.gpu_pod("p", **HALF)
    placement.facts(pod)
    placement.answer = False
    placement.bind(pod)
    sent = only(placement.commands, m.SendGrant)
    assert len(sent) == 1
    again = only(placement.tick(4.0), m.SendGrant)
    assert again == sent
    placement.send(m.GrantAcknowledged("n", sent[0].grant.grant.grant_id))
    assert only(placement.tick(4.0), m.SendGrant) == []


def test_a_deleted_pod_frees_its_cpu_immediately_and_its_gpu_only_when_the_node_releases_it() -> None:
    """R6"""
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    commands = placement.gone(pod)
    assert placement.core.book.nodes["n"].cpu_used == 0
    release = only(commands, m.SendRelease)[0].release
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}
    commands = placement.send(m.ReleaseSeen("n", release.grant_id))
    assert only(commands, m.SendReleasesSeen)[0].grant_ids == (release.grant_id,)
    assert "uid-team-q" in placement.binds()
    assert [e.grant_id for e in placement.events(GrantEnded)] == [release.grant_id]


def test_a_terminal_phase_alone_frees_no_gpu() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    placement.facts(build.newer(pod, phase="Succeeded"))
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}
    assert placement.core.book.nodes["n"].cpu_used == 0


def test_a_released_grant_stays_released_while_its_pod_lives_on() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    placement.send(m.ReleaseSeen("n", decode_grant(pod.metadata.annotations["kerf.dev/grant"]).grant_id))
    placement.facts(build.newer(pod, phase="Running"))
    assert placement.core.book.grants == {}


def test_a_hold_of_a_pod_that_vanished_unseen_is_released_only_by_the_node() -> None:
    """Its absence was found by comparing lists; the pod may have been bound and started in between."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.gone(pod, certain=False)
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}
    release = only(placement.commands, m.SendRelease)[0].release
    placement.send(m.ReleaseSeen("n", release.grant_id))
    assert "uid-team-q" in placement.binds()


def test_a_hold_of_a_pod_that_was_deleted_unbound_is_free_immediately() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.gone(pod)
    assert placement.place(build.gpu_pod("q", gpus=1)) == {"q": "n"}


def test_a_release_before_the_bound_pod_is_seen_waits_until_the_node_repeats_it() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    grant_id = next(iter(placement.core.book.grants))
    assert only(placement.send(m.ReleaseSeen("n", grant_id)), m.SendReleasesSeen) == []
    assert grant_id in placement.core.book.grants


def test_a_deleted_node_frees_grants_that_it_had_not_released() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    placement.gone(pod)
    assert len(placement.core.book.grants) == 1
    placement.gone(build.node("n"))
    assert placement.core.book.grants == {}


def test_a_hold_is_revoked_at_its_node_if_its_pod_is_bound_with_another_grant() -> None:
    """The node learned of it in a sync, and nothing else would remove it there."""
    placement = Placement().nodes("n", gpus=2)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    (decided,) = placement.core.book.grants
    placement.send(m.TermRenewed(term=placement.core.term + 50))
    other = Grant(grant_id="other", term=1, sequence=2, containers=placement.core.book.grants[decided].grant.containers)
    commands = placement.facts(build.bound(pod, "n", other))
    assert [command.release.grant_id for command in only(commands, m.SendRelease)] == [decided]


def test_the_grant_of_a_pod_that_ended_unseen_after_its_node_was_deleted_is_free() -> None:
    """The last state of a deleted pod may be one that was not seen before. Its release was ordered for ever."""
    placement = Placement().nodes("n")
    pod = show_bound(placement, build.gpu_pod("p", **HALF))
    placement.gone(build.node("n"))
    placement.gone(build.newer(pod, phase="Failed"))
    assert placement.core.book.grants == {}
    assert [event.reason for event in placement.events(GrantEnded)] == ["its node is gone"]


def test_a_node_is_asked_at_once_for_the_grant_of_a_pod_that_ended_unseen_and_is_gone() -> None:
    placement = Placement().nodes("n")
    pod = show_bound(placement, build.gpu_pod("p", **HALF))
    assert [order.node for order in only(placement.gone(build.newer(pod, phase="Failed")), m.SendRelease)] == ["n"]
