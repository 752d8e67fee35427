"""Checkpointed pods resume on other GPUs of their node: what is booked, logged and ordered when, and new leaders."""

from __future__ import annotations

from typing import Any

import pytest

from services.placement import messages as m
from shared.contracts.commands import SuspendPod
from shared.contracts.events import PreemptionExecuted
from shared.contracts.log import DecisionBatch
from shared.contracts.preemption import Reserved
from shared.model.grant import decode_grant
from tests.support import build
from tests.support.harness.turns import Site

FIRST, SECOND = "n-gpu-0", "n-gpu-1"


def parked_beside(**site: Any) -> Site:
    """`long` is checkpointed from one of two GPUs, which `new` has; `beside` has the other one."""
    found = Site(gpus=2, park=4, any_gpu=True, **site)
    found.run("long")
    found.run("beside")
    found.wait(3_600)
    found.create("new")
    assert found.propose(found.plan(("long",), ("new",))).ok
    found.settle(3)
    found.bind("new")
    assert found.gpus_of("new") == found.gpus_of("long") == [FIRST]
    assert found.runs() == ["beside", "new"]
    return found


def moves(site: Site) -> list[SuspendPod]:
    return [patch for patch in site.unwritten if patch.grant]


def test_it_resumes_on_a_gpu_that_is_free_while_another_pod_has_its_own() -> None:
    site = parked_beside()
    before = site.state("long").grant_id
    site.end("beside")
    site.settle(8)
    assert site.runs() == ["long", "new"]
    assert site.gpus_of("long") == [SECOND]
    grant = site.grants[before]
    assert (grant.grant_id, grant.amendment, grant.any_gpu) == (before, 1, True)
    assert site.free_milli() == [0, 0]
    assert site.free_host() == 4, "the node has confirmed that all of it is back"
    site.end("new")
    site.settle(1)
    assert site.free_milli() == [1000, 0], "on its former GPU nothing is left of it"


def test_its_own_gpu_is_preferred() -> None:
    site = parked_beside()
    site.end("beside")
    site.end("new")
    site.settle(8)
    assert site.gpus_of("long") == [FIRST]
    assert site.grants[site.state("long").grant_id].amendment == 0


def test_the_move_is_booked_and_logged_before_it_is_ordered_and_the_node_is_told_when_it_is_seen() -> None:
    site = parked_beside()
    site.end("beside")
    site.placement.log.clear()
    site.unanswered.clear()
    site.wait(7)
    [order] = moves(site)
    [record] = [one for _, one in site.placement.log if isinstance(one, DecisionBatch) and one.amendments]
    [amendment] = record.amendments
    assert (order.suspension, decode_grant(order.grant), order.resource_version) == (
        "",
        amendment.grant,
        amendment.resource_version,
    )
    assert site.free_milli() == [0, 0], "the place is booked"
    assert not [c for c in site.unanswered if c.grant.uid == order.uid], "nothing is told before the pod is seen"
    site.create("waiter")
    assert "uid-team-waiter" not in site.placement.binds()
    site.write()
    told = [c.grant for c in site.unanswered if c.grant.uid == order.uid]
    assert told
    assert all((grant.suspension, grant.grant) == (None, amendment.grant) for grant in told)


def test_a_node_that_restores_to_no_other_gpu_gets_its_pod_back_on_its_own() -> None:
    site = parked_beside()
    site.cannot_move[site.state("long").grant_id] = "the driver is too old"
    site.new_leader()
    site.end("beside")
    site.settle(10)
    assert site.runs() == ["new"]
    site.end("new")
    site.settle(8)
    assert (site.runs(), site.gpus_of("long")) == (["long"], [FIRST])


def test_a_grant_of_a_node_that_cannot_do_it_says_so() -> None:
    site = Site(gpus=1)
    site.run("pod")
    assert not decode_grant(site.api["uid-team-pod"].metadata.annotations["kerf.dev/grant"]).any_gpu


def test_a_pod_that_takes_no_turns_keeps_its_gpus() -> None:
    site = Site(gpus=1, any_gpu=True)
    site.run("pod", turns="never")
    assert not decode_grant(site.api["uid-team-pod"].metadata.annotations["kerf.dev/grant"]).any_gpu


def test_an_order_for_an_earlier_version_gives_its_place_back_and_another_follows() -> None:
    site = parked_beside()
    site.end("beside")
    site.wait(7)
    [order] = moves(site)
    site.touch()
    site.write()
    assert site.runs() == ["new"], "the API server refuses it"
    assert site.free_milli() == [0, 1000]
    site.settle(8)
    assert (site.runs(), site.gpus_of("long")) == (["long", "new"], [SECOND])
    assert site.api[order.uid].metadata.resource_version > order.resource_version


def test_a_pod_that_ends_before_it_moves_leaves_no_place_booked() -> None:
    site = parked_beside()
    site.end("beside")
    site.wait(7)
    site.end("long")
    site.settle(2)
    assert site.free_milli() == [0, 1000]


@pytest.mark.parametrize("written", [True, False])
def test_a_new_leader_keeps_the_place_until_the_pod_is_seen_at_another_version(written: bool) -> None:
    site = parked_beside()
    site.end("beside")
    site.wait(7)
    site.new_leader(touched=False)
    site.create("waiter")
    site.wait(2)
    assert "uid-team-waiter" not in site.placement.binds()
    assert site.free_milli()[1] == 0
    if written:
        site.write("long")
        site.settle(3)
        assert (site.runs(), site.gpus_of("long")) == (["long", "new"], [SECOND])
        assert site.free_milli() == [0, 0]
    else:
        site.unwritten.clear()
        site.touch()
        site.settle(10)
        assert len(site.runs()) == 1 + (site.state("waiter").charged == ""), "one of them has it, and not both"


def test_the_leader_after_the_next_one_knows_the_move_too() -> None:
    site = parked_beside()
    site.end("beside")
    site.wait(7)
    order, late = moves(site)[0], list(site.unwritten)
    site.new_leader(touched=False)
    first = next(i for i, (_, one) in enumerate(site.placement.log) if getattr(one, "amendments", ()))
    del site.placement.log[: first + 1]
    site.new_leader(touched=False)
    site.create("waiter")
    site.wait(1)
    assert site.free_milli()[1] == 0
    assert "uid-team-waiter" not in site.placement.binds()
    site.unwritten = late
    site.write("long")
    site.settle(2)
    assert (site.gpus_of("long"), site.free_milli()) == ([SECOND], [0, 0])
    assert order.uid in site.placement.core.book.pods


def incomplete(site: Site) -> None:
    """Another leader, before which one died that had not written its `ready`."""
    site.placement.sequence += 1
    site.placement.next_term()
    site.placement.succeed(build.node("n"), *site.api.values())
    site.unanswered.clear()
    site.send(site.placement.next_term())
    site.send(m.InventorySeen(site.inventory()))


def test_without_a_complete_log_nothing_of_the_node_is_given_until_the_pod_has_moved() -> None:
    site = parked_beside()
    site.end("beside")
    site.wait(7)
    late = list(site.unwritten)
    site.placement.log = [(at, one) for at, one in site.placement.log if not getattr(one, "amendments", ())]
    incomplete(site)
    site.wait(2)
    site.create("waiter")
    site.wait(2)
    assert "uid-team-waiter" not in site.placement.binds()
    assert "earlier leader" in site.placement.core.book.nodes["n"].agent_trouble
    site.new_leader(touched=False)
    site.wait(2)
    assert "uid-team-waiter" not in site.placement.binds(), "the next leader knows it by the log"
    site.unwritten = late
    site.write("long")
    site.settle(3)
    assert (site.runs(), site.gpus_of("long"), site.free_milli()) == (["long", "new"], [SECOND], [0, 0])


def test_a_node_of_which_nothing_was_given_is_used_again_when_the_pod_was_touched() -> None:
    site = parked_beside()
    site.end("beside")
    incomplete(site)
    site.touch()
    site.settle(10)
    assert site.placement.core.book.nodes["n"].agent_trouble == ""
    assert (site.runs(), site.gpus_of("long")) == (["long", "new"], [SECOND])


def test_two_pods_that_resume_at_once_get_different_gpus() -> None:
    site = Site(gpus=3, park=8, any_gpu=True)
    for name in ("a", "b", "beside"):
        site.run(name)
    site.wait(3_600)
    for name in ("c", "d"):
        site.create(name)
    for victim, gains in (("a", "c"), ("b", "d")):
        assert site.propose(site.plan((victim,), (gains,), plan_id=victim)).ok
        site.settle(3)
        site.bind(gains)
    site.end("beside")
    site.settle(10)
    assert len(site.runs()) == 3
    [back] = {"a", "b"} & set(site.runs())
    assert site.gpus_of(back) == ["n-gpu-2"]
    site.end("c")
    site.settle(10)
    assert {"a", "b"} <= set(site.runs())


def test_a_gang_moves_as_a_whole_or_not_at_all() -> None:
    site = Site(gpus=4, park=8, any_gpu=True)
    for name in ("one", "two"):
        site.create(name, gang="g")
    site.bind("one", "two")
    for name in ("x", "y"):
        site.run(name)
    site.wait(3_600)
    for name in ("c", "d"):
        site.create(name, gang="h")
    assert site.propose(site.plan(("one", "two"), ("c", "d"))).ok
    site.settle(3)
    site.bind("c", "d")
    site.end("x")
    site.settle(10)
    assert site.runs() == ["c", "d", "y"]
    site.end("d")
    site.settle(10)
    assert site.runs() == ["c", "one", "two", "y"]
    assert len({*site.gpus_of("one"), *site.gpus_of("two"), *site.gpus_of("c"), *site.gpus_of("y")}) == 4


# --- by a plan ------------------------------------------------------------------------------------------------------


def by_plan(site: Site, *, onto: str = SECOND) -> Reserved:
    """`long` takes the turn of `beside`, on another GPU than its own."""
    site.wait(3_600)
    return site.propose(site.plan(("beside",), ("long",), plan_id="back", onto={"long": {FIRST: onto}}))


def test_a_plan_lets_a_suspended_pod_resume_on_another_gpu() -> None:
    site = parked_beside()
    assert by_plan(site).ok
    site.settle(4)
    assert (site.runs(), site.gpus_of("long")) == (["long", "new"], [SECOND])
    assert len(site.placement.events(PreemptionExecuted)) == 2
    assert site.free_milli() == [0, 0]


@pytest.mark.parametrize("onto", [FIRST, "n-gpu-7"])
def test_a_plan_names_a_gpu_to_which_the_pod_can_come_back(onto: str) -> None:
    site = parked_beside()
    assert not by_plan(site, onto=onto).ok


def test_placement_says_of_a_refused_plan_which_pods_resume_on_their_own_gpus_alone() -> None:
    site = parked_beside()
    site.cannot_move[site.state("long").grant_id] = "the driver is too old"
    site.new_leader()
    site.settle(2)
    answer = by_plan(site)
    assert (answer.ok, answer.cannot_move) == (False, ("uid-team-long",))


@pytest.mark.parametrize("crash", ["before the move", "after it was ordered", "after it was written"])
def test_a_new_leader_finishes_a_plan_that_moves_a_pod(crash: str) -> None:
    site = parked_beside()
    assert by_plan(site).ok
    site.wait(1)
    site.write()
    if crash != "before the move":
        site.answer()
        site.wait(1)
        assert moves(site)
    if crash == "after it was written":
        site.write("long")
    site.new_leader()
    site.create("waiter", turns="never")
    site.settle(12)
    assert (site.runs(), site.gpus_of("long")) == (["long", "new"], [SECOND])
    assert site.free_milli() == [0, 0]
    assert "uid-team-waiter" not in site.placement.binds()


def test_the_place_of_a_plan_is_kept_while_the_pod_changes_for_other_reasons() -> None:
    site = parked_beside()
    assert by_plan(site).ok
    site.wait(1)
    site.write()
    site.answer()
    site.wait(1)
    [order] = moves(site)
    site.create("waiter", turns="never")
    site.touch()
    assert site.free_milli() == [0, 0]
    site.unwritten = [order]
    site.write()
    assert site.gpus_of("long") == [FIRST], "it was for the version before"
    site.settle(8)
    assert (site.runs(), site.gpus_of("long")) == (["long", "new"], [SECOND])
    assert "uid-team-waiter" not in site.placement.binds()
