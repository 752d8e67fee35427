"""Gangs through the real core: all or none, in one log record."""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from services.placement.protocol.write_batcher import RECORD_MOST_BYTES
from shared.contracts.commands import SelectNode
from shared.model.objects import Pod, PvcSource, SchedulingGate, Volume
from shared.model.strategies import StrategyName
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.late_volumes import LATE, claim, volume
from tests.unit.services.placement.scheduling.gangs.members import decided, member, members, why


def test_no_member_is_placed_before_all_exist_and_then_all_are_in_one_record() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = members(6)
    assert placement.place(*pods[:5]) == {}
    assert len(placement.place(*pods)) == 6
    assert [sorted(names) for names in decided(placement)] == [[f"p{i}" for i in range(6)]]


def test_a_large_member_does_not_take_capacity_that_the_gangs_small_members_need() -> None:
    placement = Placement().nodes("n1", gpus=2)
    pods = [
        member(name, size=3, gpus=gpus, notes={"min": "2"}) for name, gpus in (("large", 2), ("small", 1), ("tiny", 1))
    ]
    assert set(placement.place(*pods)) == {"small", "tiny"}


def test_if_not_all_fit_none_is_placed_and_nothing_is_held() -> None:
    placement = Placement().nodes("n1", gpus=4)
    before = placement.core.book.digest()
    assert placement.place(*members(5)) == {}
    assert placement.core.book.digest() == before
    assert placement.place(build.gpu_pod("other", gpus=4)) == {"other": "n1"}


def test_it_is_placed_as_soon_as_all_of_it_fits() -> None:
    placement = Placement().nodes("n1", gpus=4)
    assert placement.place(*members(6)) == {}
    placement.nodes("n2", gpus=4)
    assert len(placement.binds()) == 6


def test_a_gang_larger_than_a_batch_is_written_as_one_record() -> None:
    placement = Placement().nodes(*(f"n{i}" for i in range(20)), gpus=8)
    pods = members(150)
    placement.place(*pods)
    assert [len(names) for names in decided(placement)] == [150]
    assert len(placement.binds()) == 150


def test_a_gang_larger_than_a_batch_does_not_begin_in_a_record_that_others_have_begun() -> None:
    """Together with them it could be more than the log takes in one record."""
    placement = Placement(max_batch=4).nodes("n1", "n2", gpus=8)
    placement.facts(build.gpu_pod("first", gpus=1, created="2026-11-20T00:00:00Z"), *members(6))
    assert [sorted(names) for names in decided(placement)] == [["first"], [f"p{i}" for i in range(6)]]


def test_a_gang_that_no_record_of_the_log_could_take_is_refused_by_name() -> None:
    count = RECORD_MOST_BYTES // 250
    placement = Placement()
    for i in range(count // 32 + 1):
        placement.facts(build.node(f"n{i}"))
        placement.send(m.InventorySeen(build.inventory(f"n{i}", gpus=32)))
    before = placement.core.book.digest()
    assert placement.place(*members(count)) == {}
    assert placement.core.book.digest() == before
    assert why(placement, "p0").summary[0].code == "gang-too-large"


def test_two_gangs_that_only_fit_one_after_the_other_never_hold_half() -> None:
    placement = Placement().nodes("n1", gpus=4)
    a, b = members(3, prefix="a", gang="a"), members(3, prefix="b", gang="b")
    mixed = [pod for pair in zip(a, b, strict=True) for pod in pair]
    placed = placement.place(*mixed)
    assert sorted(placed) == ["a0", "a1", "a2"]
    for pod in a:
        seen = placement.bind(pod)
        placement.gone(build.newer(seen, phase="Succeeded"))
    for grant_id in list(placement.core.book.grants):
        placement.send(m.ReleaseSeen("n1", grant_id))
    assert sorted(n for n in placement.place(*b)) == ["b0", "b1", "b2"]


def test_members_of_different_size_are_placed_whatever_their_order() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = [
        member("s0", size=4, gpus=1),
        member("s1", size=4, gpus=1),
        member("l0", size=4, gpus=3),
        member("l1", size=4, gpus=3),
    ]
    assert len(placement.place(*pods)) == 4


def test_a_launcher_without_gpus_belongs_to_its_gang() -> None:
    placement = Placement().nodes("n1", gpus=2)
    workers = [member(f"w{i}", size=3) for i in range(2)]
    assert placement.place(*workers) == {}
    assert len(placement.place(member("launcher", size=3, gpus=0), *workers)) == 3


def test_a_member_that_another_scheduler_places_counts_as_placed() -> None:
    placement = Placement().nodes("n1", gpus=2)
    placement.facts(member("launcher", size=3, gpus=0, scheduler="default-scheduler"))
    assert len(placement.place(*(member(f"w{i}", size=3) for i in range(2)))) == 2


def test_a_gated_member_does_not_count_until_its_gates_are_removed() -> None:
    placement = Placement().nodes("n1", gpus=4)
    gated = member("p0", scheduling_gates=(SchedulingGate(name="quota"),))
    assert placement.place(gated, member("p1")) == {}
    assert "1 pod more is gated" in why(placement, "p1").sentence
    free = msgspec.structs.replace(build.newer(gated), spec=msgspec.structs.replace(gated.spec, scheduling_gates=()))
    assert sorted(placement.place(free, member("p1"))) == ["p0", "p1"]


def test_gangs_of_one_name_in_two_namespaces_are_two_gangs() -> None:
    placement = Placement().nodes("n1", gpus=4)
    assert placement.place(member("p0", namespace="one"), member("p1", namespace="two")) == {}


def test_a_gang_is_tried_by_the_priority_of_its_first_member() -> None:
    placement = Placement().nodes("n1", gpus=2)
    placement.facts(build.gpu_pod("full", gpus=2))
    low, high = members(2, prefix="low", gang="low", priority=1), members(2, prefix="high", gang="high", priority=0)
    high[1] = member("high1", gang="high", priority=5)
    placement.place(*low, *high)
    assert placement.binds().keys() == {"uid-team-full"}
    placement.nodes("n2", gpus=2)
    assert placement.binds().keys() == {"uid-team-full", "uid-team-high0", "uid-team-high1"}


def test_a_gang_of_mig_instances_fills_a_gpu_or_leaves_it_untouched() -> None:
    """Seven instances are the maximum of an A100, and each has less than a seventh of its memory by name."""
    strategies: tuple[StrategyName, ...] = ("exclusive", "advisory", "mig")
    plain = build.inventory("n", gpus=1, memory_mib=40960, model="NVIDIA-A100-SXM4-40GB", strategies=strategies)
    gpu = msgspec.structs.replace(plain.gpus[0], mig_enabled=True, mig_on_demand=True)
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(msgspec.structs.replace(plain, gpus=(gpu,))))

    def instances(count: int, gang: str) -> list[Pod]:
        notes = {"kerf.dev/gang": gang, "kerf.dev/gang-size": str(count)}
        return [
            build.pod(f"{gang}{i}", limits={"kerf.dev/slot": "1", "kerf.dev/mig-1g.5gb": "1"}, annotations=notes)
            for i in range(count)
        ]

    columns = placement.core.book.arrays
    before = (columns.gpu_mig_used.copy(), columns.gpu_mig_fits.copy(), placement.core.book.digest())
    assert placement.place(*instances(8, "a")) == {}
    assert (columns.gpu_mig_used.tolist(), columns.gpu_mig_fits.tolist(), placement.core.book.digest()) == (
        before[0].tolist(),
        before[1].tolist(),
        before[2],
    )
    assert len(placement.place(*instances(7, "b"))) == 7


def test_above_the_minimum_members_come_one_by_one() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(6, notes={"min": "3"})
    assert placement.place(*pods[:2]) == {}
    assert len(placement.place(*pods)) == 4
    assert len(decided(placement)[0]) >= 3
    placement.nodes("n2", gpus=4)
    assert len(placement.binds()) == 6


def test_no_gang_grows_above_its_minimum_while_another_lacks_it() -> None:
    placement = Placement()
    placement.facts(
        *members(4, prefix="a", gang="a", notes={"min": "2"}), *members(4, prefix="b", gang="b", notes={"min": "2"})
    )
    placement.facts(build.gpu_pod("single", gpus=1, created="2026-11-21T01:00:00Z"))
    placement.nodes("n1", gpus=6)
    placed = sorted(b.name for b in placement.binds().values())
    assert [n[0] for n in placed] == ["a", "a", "a", "b", "b", "s"]


def test_members_above_the_minimum_count_again_when_it_falls_below() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(5, notes={"min": "4"})
    placement.place(*pods)
    (spare,) = {p.metadata.uid for p in pods} - placement.binds().keys()
    seen = [placement.bind(p) for p in pods if p.metadata.uid != spare]
    placement.gone(build.newer(seen[0], phase="Failed"))
    placement.facts(build.gpu_pod("younger", gpus=1, created="2026-11-21T01:00:00Z"))
    placement.send(
        m.ReleaseSeen("n1", next(g.grant_id for g in placement.core.book.grants.values() if g.phase == "leaving"))
    )
    assert spare in placement.binds()
    assert "uid-team-younger" not in placement.binds()


def test_a_waiting_gang_follows_what_its_members_annotate() -> None:
    """As `kerf why` advises: a lower minimum, or no topology that no node has."""
    placement = Placement().nodes("n1", gpus=3)
    assert placement.place(*members(4)) == {}
    assert "lower kerf.dev/gang-min to 3" in why(placement, "p0").sentence
    placement.facts(*members(4, notes={"min": "3"}))
    placement.tick(1.0)
    assert len(placement.binds()) == 3
    placement = Placement().nodes("n1", gpus=2)
    assert placement.place(*members(2, notes={"topology": "required=rack"})) == {}
    placement.facts(*members(2))
    placement.tick(1.0)
    assert len(placement.binds()) == 2


def test_the_next_run_of_a_cron_job_may_have_fewer_pods() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(4, prefix="first")
    placement.place(*pods)
    placement.facts(*(build.newer(placement.bind(pod), phase="Succeeded") for pod in pods))
    for grant_id in list(placement.core.book.grants):
        placement.send(m.ReleaseSeen("n1", grant_id))
    assert len(placement.place(*members(2, prefix="second"))) == 2


def test_a_restarted_member_does_not_wait_for_the_others_again() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    placement.gone(build.newer(seen[0], phase="Failed"))
    assert placement.place(member("again", size=3)) == {"again": "n1"}


def test_restarted_members_that_exist_are_placed_together() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(4)
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    for pod in seen[1:]:
        placement.gone(build.newer(pod, phase="Failed"))
    # The node has not released what the three held: one GPU is not enough for the two that exist.
    for grant_id in [g.grant_id for g in placement.core.book.grants.values() if g.phase == "leaving"][:1]:
        placement.send(m.ReleaseSeen("n1", grant_id))
    placement.send(m.FactsSeen(build.put(member("x1", size=4), member("x2", size=4))))
    assert "uid-team-x1" not in placement.binds()
    for grant_id in [g.grant_id for g in placement.core.book.grants.values() if g.phase == "leaving"][:1]:
        placement.send(m.ReleaseSeen("n1", grant_id))
    placement.tick(2.0)
    assert {"uid-team-x1", "uid-team-x2"} <= placement.binds().keys()


def test_a_member_that_changes_before_its_binding_is_placed_again_alone() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(2)
    placement.place(*pods)
    placement.bind(pods[1])
    placement.facts(build.newer(pods[0], labels={"edited": "yes"}))
    assert decided(placement)[-1] == ["p0"]


def test_members_with_late_binding_volumes_are_decided_when_all_their_claims_are_bound() -> None:
    """The nodes are chosen together, each claim gets its pod's node, and the places are kept in the meantime."""
    placement = Placement().nodes("n1", gpus=4)
    placement.facts(LATE, claim("data-0"))
    volumes = (Volume(name="data", persistent_volume_claim=PvcSource(claim_name="data-0")),)
    pods = [member("p0", volumes=volumes), member("p1")]
    assert placement.place(*pods) == {}
    assert [(p.claim, p.node) for p in placement.patches() if isinstance(p, SelectNode)] == [("data-0", "n1")]
    late = build.gpu_pod("later", gpus=3)
    assert placement.place(late) == {}, "two of the four GPUs are kept"
    placement.facts(claim("data-0", volume="pv-0"), volume("pv-0", of="data-0"))
    placement.tick(1.0)
    assert sorted(placement.binds()) == ["uid-team-p0", "uid-team-p1"]
