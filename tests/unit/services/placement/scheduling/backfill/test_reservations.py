"""What is reserved for the head of the queue, whom it keeps off, and when it ends. Through the real core."""

from __future__ import annotations

import pytest

from services.placement import messages as m
from services.placement.scheduling.backfill.reservations import LOOK_S, START_S, HeadReservation
from shared.model import names
from shared.model.grant import GpuShare
from shared.model.life import STUCK_S
from tests.support import build
from tests.support.whatif import when, why
from tests.unit.services.placement.scheduling.backfill.site import AFTER_S, Site, created
from tests.unit.services.placement.scheduling.gangs.members import member, members


def half_free() -> Site:
    """Two nodes of two GPUs, one GPU of each free; a gang that needs all four has waited for a while."""
    site = Site({"a": 2, "b": 2})
    site.runs("old-a", on="a")
    site.runs("old-b", on="b")
    site.gang()
    site.wait()
    return site


_HALVES = {"x": "20Gi", "y": "30Gi"}
_FIFTY = {names.RESOURCE_SLOT: "1", names.RESOURCE_GPU_MEMORY: "50Gi"}


def _shares(kept: HeadReservation) -> list[GpuShare]:
    grants = [place.grant for place in kept.places.values() if place.grant is not None]
    return [share for grant in grants for part in grant.containers.values() for share in part.gpus]


def _gpus(kept: HeadReservation) -> list[str]:
    return sorted(share.uuid for share in _shares(kept))


def _starts(kept: HeadReservation) -> list[int]:
    return [share.mig.start for share in _shares(kept) if share.mig is not None]


# --- when there is one ----------------------------------------------------------------------------------------------


def test_a_gang_that_has_waited_long_has_the_gpus_reserved_that_it_waits_for() -> None:
    site = half_free()
    (kept,) = site.kept
    assert (kept.name, kept.nodes, kept.gpu_milli) == ("gang team/train", ["a", "b"], 4000)


def test_a_gang_of_which_the_oldest_pod_needs_no_gpu_has_them_reserved_too() -> None:
    site = Site({"a": 2})
    site.runs("old")
    launcher, worker = (member(name, gpus=gpus, created=created(at)) for name, gpus, at in (("l", 0, 0), ("w", 2, 1)))
    site.placement.facts(launcher, worker)
    site.wait()
    assert [(kept.name, sorted(kept.places)) for kept in site.kept] == [("gang team/g", ["uid-team-l", "uid-team-w"])]


def test_a_pod_of_several_gpus_has_them_reserved_too() -> None:
    site = Site({"a": 2})
    site.runs("old")
    site.arrives("large", gpus=2, at=0)
    site.wait()
    assert [kept.name for kept in site.kept] == ["team/large"]
    assert site.node_of(site.arrives("small")) == ""


def test_nothing_is_reserved_before_that_time() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("old-a", on="a")
    site.gang()
    site.wait(AFTER_S - 2)
    assert site.kept == []
    site.wait(LOOK_S + 2)
    assert len(site.kept) == 1


def test_nothing_is_ever_reserved_by_default() -> None:
    site = Site({"a": 2, "b": 2}, reserve_after_s=0)
    site.runs("old-a", on="a")
    site.gang()
    site.wait(3 * AFTER_S)
    assert site.kept == []
    assert site.node_of(site.arrives("small")) != ""


def test_a_gang_that_would_not_even_fit_in_the_empty_cluster_has_none() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("old-a", on="a")
    site.gang(count=3)
    site.wait()
    assert site.kept == []


def test_a_gang_that_is_not_complete_has_none() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("old-a", on="a")
    site.placement.facts(*members(2, gpus=2)[:1])
    site.wait()
    assert site.kept == []


def test_pods_without_gpus_have_none() -> None:
    site = Site({"a": 2})
    site.placement.facts(build.pod("cpus", requests={"cpu": "100"}))
    site.wait()
    assert site.kept == []


def test_no_more_than_the_allowed_share_of_the_cluster_is_reserved() -> None:
    site = Site({"a": 2, "b": 2}, max_reserved_share=0.75)
    site.runs("old-a", on="a")
    site.gang()
    site.wait()
    assert site.kept == []
    assert site.node_of(site.arrives("small")) != ""
    assert when(site.placement, "g0").sentence.endswith(
        "no capacity is reserved for it: it takes 4 GPUs, and at most 3 may be (max_reserved_share)"
    )


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_than_the_allowed_number_is_reserved_the_most_important_first(most: int) -> None:
    site = Site({"a": 2, "b": 2, "c": 2}, max_reservations=most)
    for node in "abc":
        site.runs(f"old-{node}", on=node)
    for second, name in ((2, "third"), (0, "first"), (1, "second")):
        site.arrives(name, gpus=2, at=second, annotations={"kerf.dev/gpu-model": f"NVIDIA-H100|{name}"})
    site.wait()
    assert [kept.name for kept in site.kept] == ["team/first", "team/second"][:most]
    assert len({node for nodes in site.nodes_kept for node in nodes}) == most


def test_one_that_becomes_the_head_of_the_queue_displaces_a_less_important_one() -> None:
    site = half_free()
    site.arrives("vip", gpus=2, priority=10)
    site.wait()
    assert [kept.name for kept in site.kept] == ["team/vip"]


# --- which pods it keeps off ----------------------------------------------------------------------------------------


def test_a_pod_that_comes_later_gets_no_reserved_gpu_and_is_told_for_which_gang() -> None:
    site = half_free()
    small = site.arrives("small")
    assert site.node_of(small) == ""
    told = why(site.placement, "small")
    assert [reason.code for reason in told.summary] == ["capacity-reserved"]
    assert "is reserved for gang team/train, which comes before it" in told.sentence


def test_a_less_important_gang_is_kept_off_and_told_for_which_one() -> None:
    site = half_free()
    site.placement.facts(*members(2, prefix="h", gang="later", gpus=1, created=created(3600)))
    assert site.placement.binds().keys() == {"uid-team-old-a", "uid-team-old-b"}
    told = why(site.placement, "h0")
    assert told.summary[-1].code == "capacity-reserved"
    assert told.sentence.endswith("capacity on a, b is reserved for gang team/train, which comes before it")


def test_a_pod_of_lower_priority_is_kept_off_however_old_it_is() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("old-a", on="a")
    site.runs("old-b", on="b")
    site.gang(priority=5, at=100)
    site.wait()
    assert site.node_of(site.arrives("lower", at=0)) == ""


def test_a_pod_fits_beside_the_reserved_gpus() -> None:
    site = Site({"a": 2, "b": 4, "c": 1})
    for node in "abc":
        site.runs(f"old-{node}", on=node)
    site.gang()
    site.wait()
    assert site.nodes_kept == [["a", "b"]]
    assert site.node_of(site.arrives("first")) == "b"
    assert site.node_of(site.arrives("second")) == ""


def test_a_slice_fits_on_what_a_reserved_slice_leaves_of_its_gpu() -> None:
    site = Site({"a": 1, "b": 1})
    site.runs("old", on="a", memory="60Gi")
    site.placement.facts(*members(2, prefix="g", gpus=0, limits=_FIFTY, created=created(0)))
    site.wait()
    assert site.nodes_kept == [["a", "b"]]
    assert site.node_of(site.arrives("too-much", memory="31Gi")) == ""
    assert site.node_of(site.arrives("fits", memory="30Gi")) == "b"


def test_a_more_important_pod_takes_reserved_gpus_and_others_are_reserved_instead() -> None:
    site = Site({"a": 2, "b": 2, "c": 2})
    site.runs("old-a", on="a", started_s_ago=10)
    site.runs("old-b", on="b", started_s_ago=20)
    site.runs("old-c", on="c", started_s_ago=30)
    site.runs("also-c", on="c", started_s_ago=40)
    site.gang()
    site.wait()
    assert site.nodes_kept == [["a", "b"]]
    vip = site.arrives("vip", priority=10, node_selector={"kubernetes.io/hostname": "a"}, annotations={
        "kerf.dev/expected-duration": "10d"
    })  # fmt: skip
    assert site.node_of(vip) == "a"
    site.placement.bind(vip)
    site.wait(LOOK_S)
    assert site.nodes_kept == [["b", "c"]]


def test_a_more_important_pod_is_not_held_up_by_a_kept_off_pod_of_its_shape() -> None:
    site = half_free()
    assert site.node_of(site.arrives("small")) == ""
    assert site.node_of(site.arrives("same-shape", priority=10)) != ""


def test_an_older_pod_of_the_same_priority_is_not_kept_off() -> None:
    site = half_free()
    older = build.gpu_pod("older", gpus=1, created="2026-11-20T00:00:00Z")
    site.placement.facts(older)
    assert site.node_of(older) != ""


def test_an_older_pod_of_the_same_shape_is_not_kept_off() -> None:
    """They are in one equivalence group, which has one head."""
    site = Site({"a": 2, "b": 2}, max_reservations=2)
    site.runs("old-a", on="a")
    site.runs("old-b", on="b")
    first, second = site.arrives("first", gpus=2, at=0), site.arrives("second", gpus=2, at=1)
    site.wait()
    backfill = site.placement.core.backfill
    assert [kept.name for kept in backfill.against(second.metadata.uid)] == ["team/first"]
    assert backfill.against(first.metadata.uid) == []


def test_kept_off_pods_stay_so_when_other_capacity_changes() -> None:
    site = half_free()
    small = site.arrives("small")
    site.placement.facts(build.node("elsewhere"))
    site.wait(3 * LOOK_S)
    assert site.node_of(small) == ""


# --- pods that end in time ------------------------------------------------------------------------------------------

GRACE_S = 30
MARGIN_S = START_S + GRACE_S + STUCK_S


def ends_known(*, seconds: int) -> Site:
    site = Site({"a": 2, "b": 2})
    site.runs("old-a", on="a", annotations={"kerf.dev/expected-duration": f"{seconds}s"})
    site.runs("old-b", on="b", active_deadline_seconds=seconds + 100)
    site.gang()
    site.wait()
    return site


def test_a_pod_that_ends_before_the_gang_can_start_is_let_in() -> None:
    site = ends_known(seconds=3600)
    starts_in = round(3600 + 100 - site.placement.now - MARGIN_S)
    late = site.arrives("late", active_deadline_seconds=starts_in + 10)
    soon = site.arrives("soon", active_deadline_seconds=starts_in - 10)
    unbounded = site.arrives("unbounded")
    assert (site.node_of(late), site.node_of(unbounded)) == ("", "")
    assert site.node_of(soon) in ("a", "b")
    site.placement.bind(soon)
    kept = site.kept[0]
    site.wait(2 * LOOK_S)
    assert site.kept == [kept]


def test_no_pod_is_let_in_while_the_end_of_one_that_is_waited_for_is_unknown() -> None:
    site = half_free()
    assert site.node_of(site.arrives("soon", active_deadline_seconds=1)) == ""


# --- when it ends ---------------------------------------------------------------------------------------------------


def test_the_gang_starts_when_what_it_waits_for_has_ended_and_its_reservation_is_over() -> None:
    site = half_free()
    small = site.arrives("small")
    site.ends(site.placement.core.book.pods["uid-team-old-a"].pod)
    site.wait(2)
    assert site.node_of(small) == ""
    site.ends(site.placement.core.book.pods["uid-team-old-b"].pod)
    site.wait(12)
    gang = [site.placement.core.book.pods[f"uid-team-g{i}"].pod for i in range(2)]
    assert sorted(map(site.node_of, gang)) == ["a", "b"]
    assert site.kept == []


def test_what_was_reserved_for_a_gang_that_is_deleted_goes_to_those_that_were_kept_off() -> None:
    site = half_free()
    small = site.arrives("small")
    site.placement.gone(*(site.placement.core.book.pods[f"uid-team-g{i}"].pod for i in range(2)))
    site.wait(1)
    assert site.kept == []
    assert site.node_of(small) != ""


@pytest.mark.parametrize("queues", ["", "queues: [{name: team}]"])
def test_a_snapshot_may_end_the_gang_and_bring_others_at_once(queues: str) -> None:
    site = Site({"a": 2, "b": 2}, queues=queues)
    site.runs("old-a", on="a")
    site.runs("old-b", on="b")
    site.gang()
    site.wait()
    small = site.arrives("small")
    book = site.placement.core.book
    kept = [state.pod for state in book.pods.values() if state.gang is None]
    others = [found for objects in book.others.values() for found in objects.values()]
    new = build.gpu_pod("new", gpus=1, created=created(1))
    objects = [*kept, new, *others, *(node.object for node in book.nodes.values())]
    site.placement.send(m.SnapshotSeen(build.put(*objects), 0))
    assert site.kept == []
    assert "" not in (site.node_of(small), site.node_of(new))


def test_a_reservation_on_a_node_that_is_gone_is_made_elsewhere() -> None:
    site = Site({"a": 2, "b": 2, "c": 2})
    for age, node in enumerate("abc"):
        site.runs(f"old-{node}", on=node, started_s_ago=10 * age)
    site.gang()
    site.wait()
    assert site.nodes_kept == [["a", "b"]]
    site.ends(site.placement.core.book.pods["uid-team-old-a"].pod)
    site.placement.gone(site.placement.core.book.nodes["a"].object)
    site.wait(LOOK_S)
    assert site.nodes_kept == [["b", "c"]]


def test_pods_that_were_kept_off_places_which_are_others_now_are_tried_again() -> None:
    """A pod of 20 GiB ends. What is left there suits the smaller pod of the gang best, and the GPU where it was to go
    is for others."""
    site = Site({"a": 3})
    ends, _, _ = (
        site.runs(name, memory=memory, active_deadline_seconds=7200)
        for name, memory in (("ends", "20Gi"), ("beside", "60Gi"), ("stays", "50Gi"))
    )
    site.runs("awaited", active_deadline_seconds=600)
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    site.arrives("whole", gpus=1, annotations=notes, at=0)
    site.arrives("part", memory="20Gi", annotations=notes, at=0)
    site.wait()
    small = site.arrives("small", memory="25Gi")
    assert [_gpus(kept) for kept in site.kept] == [["a-gpu-1", "a-gpu-2"]]
    site.ends(ends)
    assert site.node_of(small) == ""
    site.wait(2 * LOOK_S)
    assert [_gpus(kept) for kept in site.kept] == [["a-gpu-0", "a-gpu-2"]]
    assert site.node_of(small) == "a"


def test_pods_that_were_kept_off_an_instance_which_is_elsewhere_now_are_tried_again() -> None:
    """The amounts of the reserved instance are the same: only its place on the GPU makes room for the smaller one."""
    site = Site({})
    site.mig_node("n")
    ends = site.runs("ends", mig="1g.5gb", active_deadline_seconds=9000)
    site.runs("awaited-first", mig="1g.5gb", active_deadline_seconds=600)
    site.runs("awaited", mig="2g.10gb", active_deadline_seconds=1200)
    site.arrives("head", mig="3g.20gb", at=0)
    site.wait()
    small = site.arrives("small", mig="2g.10gb")
    assert [_starts(kept) for kept in site.kept] == [[0]]
    site.ends(ends)
    assert site.node_of(small) == ""
    site.wait(2 * LOOK_S)
    assert [_starts(kept) for kept in site.kept] == [[4]]
    assert site.node_of(small) == "n"


def test_a_pod_for_which_a_plan_reserves_a_place_has_no_other_reservation() -> None:
    site = half_free()
    core = site.placement.core
    core.backfill.tick(site.placement.now + LOOK_S, site.placement.now, core.scheduler.first_seen, {"uid-team-g1"})
    assert site.kept == []


def test_a_new_leader_reserves_anew_and_needs_no_record_of_it() -> None:
    site = half_free()
    placement = site.placement
    assert not any(getattr(record, "reservations", ()) for _, record in placement.log)
    nodes = [node.object for node in placement.core.book.nodes.values()]
    pods = [state.pod for state in placement.core.book.pods.values()]
    inventories = [node.inventory for node in placement.core.book.nodes.values()]
    placement.succeed(*nodes, *pods)
    placement.send(placement.next_term())
    for inventory in inventories:
        assert inventory is not None
        placement.send(m.InventorySeen(inventory))
    site.wait(AFTER_S - 2)
    assert site.kept == []
    site.wait(2 * LOOK_S)
    assert site.nodes_kept == [["a", "b"]]


# --- what sees it ---------------------------------------------------------------------------------------------------


def test_nothing_is_booked_between_two_inputs() -> None:
    site = half_free()
    before = site.placement.core.book.digest()
    site.arrives("small")
    site.wait(LOOK_S)
    assert site.placement.core.book.digest() == before
    assert site.placement.core.backfill.shown == ()


def test_a_queue_does_not_use_what_is_reserved_for_it() -> None:
    """Two pods are tried in one turn: for the second one what is reserved is booked already."""
    site = Site({"a": 2, "b": 2, "c": 1}, queues="queues: [{name: team, limit: {gpus: 6.5}}]")
    site.runs("old-a", on="a")
    site.runs("old-b", on="b")
    site.gang()
    site.wait()
    assert site.nodes_kept == [["a", "b"]]
    half = {name: build.gpu_pod(name, memory=amount, created=created(3600)) for name, amount in _HALVES.items()}
    site.placement.facts(*half.values())
    assert [site.node_of(pod) for pod in half.values()] == ["c", "c"]
    core = site.placement.core
    assert core.fair.tree is not None
    assert core.fair.tree.queues["team"].used.gpu_milli == 2000 + 250 + 375


def test_when_says_what_is_reserved_for_the_gang_and_since_when() -> None:
    site = half_free()
    site.wait(10)
    told = when(site.placement, "g0")
    assert told.reserved is not None
    assert (told.reserved.nodes, told.reserved.gpu_milli, told.reserved.idle_gpu_milli) == (("a", "b"), 4000, 2000)
    assert 10 <= told.reserved.since_s <= 12
    assert told.reserved.awaits == 2
    assert (
        f"4 GPUs on a, b have been reserved for it for {told.reserved.since_s} s: 2 of them are free" in told.sentence
    )
    assert "have been reserved for it" in why(site.placement, "g1").sentence


def test_when_does_not_promise_reserved_capacity_to_another_pod() -> None:
    site = half_free()
    site.arrives("small")
    told = when(site.placement, "small")
    assert (told.state, told.reserved) == ("unknown", None)
    assert "capacity that is reserved now stays reserved" in told.assumptions


def test_idle_gpu_time_is_counted() -> None:
    site = half_free()
    before = site.placement.core.backfill.idle_gpu_seconds
    site.wait(10)
    assert site.placement.core.backfill.idle_gpu_seconds - before == pytest.approx(20)


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_may_have_its_own_patience_or_none() -> None:
    text = "queues: [{name: never, reserve_after_s: 0}, {name: soon, reserve_after_s: 5}]"
    site = Site({"a": 2, "b": 2}, queues=text, max_reservations=2)
    site.runs("old-a", on="a", labels={"kerf.dev/queue": "soon"})
    site.runs("old-b", on="b", labels={"kerf.dev/queue": "soon"})
    site.arrives("x", gpus=2, at=0, labels={"kerf.dev/queue": "never"})
    site.arrives("y", gpus=2, at=1, labels={"kerf.dev/queue": "soon"})
    site.wait(5 + LOOK_S + 1)
    assert [kept.name for kept in site.kept] == ["team/y"]
    site.wait()
    assert [kept.name for kept in site.kept] == ["team/y"]


def test_a_queue_alone_may_reserve_where_the_setting_does_not() -> None:
    text = "queues: [{name: soon, reserve_after_s: 5}]"
    site = Site({"a": 2}, queues=text, reserve_after_s=0)
    site.runs("old-a", on="a")
    site.arrives("y", gpus=2, at=1, labels={"kerf.dev/queue": "soon"})
    site.wait(5 + LOOK_S + 1)
    assert [kept.name for kept in site.kept] == ["team/y"]


def test_a_queue_within_its_guarantee_is_not_kept_off_and_one_that_borrows_is() -> None:
    text = "queues: [{name: batch}, {name: prod, guaranteed: {gpus: 1}}]"
    site = Site({"a": 2, "b": 2}, queues=text)
    site.runs("old-a", on="a", labels={"kerf.dev/queue": "prod"})
    site.ends(site.placement.core.book.pods["uid-team-old-a"].pod)
    site.runs("old-b", on="b", labels={"kerf.dev/queue": "batch"})
    site.gang(labels={"kerf.dev/queue": "batch"})
    site.wait()
    assert site.nodes_kept == [["a", "b"]]
    owed = site.arrives("owed", labels={"kerf.dev/queue": "prod"})
    assert site.node_of(owed) != ""
    site.placement.bind(owed)
    site.wait(LOOK_S)
    borrows = site.arrives("later", labels={"kerf.dev/queue": "batch"})
    assert site.node_of(borrows) == ""


def test_stuck_pods_ahead_do_not_keep_others_from_their_reservation() -> None:
    """Nothing will ever fit them: no node has the label that they select."""
    site = Site({"a": 2, "b": 2})
    for node in ("a", "b"):
        site.runs(f"old-{node}", on=node)
    for number in range(20):
        site.arrives(f"stuck{number}", at=0, node_selector={"nope": str(number)})
    site.gang(at=100)
    site.wait()
    site.wait(30)
    assert [kept.name for kept in site.kept] == ["gang team/train"]


def test_stuck_pods_that_come_before_a_gang_do_not_end_its_reservation() -> None:
    site = Site({"a": 2, "b": 2})
    for node in ("a", "b"):
        site.runs(f"old-{node}", on=node)
    site.gang(at=1000)
    site.wait()
    for number in range(20):
        site.arrives(f"stuck{number}", at=0, node_selector={"nope": str(number)})
    for _ in range(60):
        site.wait(LOOK_S)
        assert [kept.name for kept in site.kept] == ["gang team/train"]


def test_nothing_is_reserved_where_the_quota_would_never_allow_it() -> None:
    """A slice is a larger part of a small GPU, and the pod there is expected to end first."""
    site = Site({}, queues="queues: [{name: team, limit: {gpus: 0.5}}, {name: other}]")
    for name, memory_mib in (("small", 40_960), ("large", 81_920)):
        site.placement.facts(build.node(name))
        site.placement.send(m.InventorySeen(build.inventory(name, gpus=1, memory_mib=memory_mib)))
    other = {"labels": {"kerf.dev/queue": "other"}}
    site.runs("first", on="small", **other)
    last = site.runs("last", on="large", started_s_ago=5_000, **other)
    head = site.arrives("head", memory="40Gi", at=0, labels={"kerf.dev/queue": "team"})
    site.wait()
    assert site.nodes_kept == [["large"]]
    site.ends(last)
    site.wait(LOOK_S)
    assert site.node_of(head) == "large"


def test_no_gang_has_places_reserved_that_its_quota_does_not_allow() -> None:
    site = Site({}, queues="queues: [{name: team, limit: {gpus: 1}}, {name: other}]")
    for name, memory_mib in (("a", 40_960), ("b", 40_960), ("large", 81_920)):
        site.placement.facts(build.node(name))
        site.placement.send(m.InventorySeen(build.inventory(name, gpus=1, memory_mib=memory_mib)))
    for node in ("a", "b", "large"):
        site.runs(f"old-{node}", on=node, labels={"kerf.dev/queue": "other"})
    pods = [
        member(f"g{number}", gang="train", size=2, memory="40Gi", labels={"kerf.dev/queue": "team"}, created=created(0))
        for number in range(2)
    ]
    site.placement.facts(*pods)
    site.wait()
    assert site.nodes_kept == [], "it will not start on GPUs of which its slices take more than the limit"


def test_a_gang_that_needs_more_members_has_more_reserved() -> None:
    site = Site({"a": 2, "b": 2, "c": 2, "d": 2})
    for node in "abcd":
        site.runs(f"old-{node}", on=node)
    pods = [member(f"g{i}", gang="train", size=2, gpus=2, created=created(i)) for i in range(4)]
    site.placement.facts(*pods)
    site.wait()
    assert [len(kept.places) for kept in site.kept] == [2]
    notes = {names.ANNOTATION_GANG_SIZE: "4"}
    site.placement.facts(*(build.newer(pod, annotations=pod.metadata.annotations | notes) for pod in pods))
    site.wait(2 * LOOK_S)
    assert [len(kept.places) for kept in site.kept] == [4]
