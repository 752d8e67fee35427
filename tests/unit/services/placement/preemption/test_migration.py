"""Plans that migrate equals: what is refused, which places are reserved, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from shared.contracts.facts import Gone
from shared.contracts.preemption import Plan
from shared.model.grant import decode_grant
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from tests.support import build
from tests.unit.services.placement.preemption.test_reservations import World, refused

DELETED = "2026-11-21T01:00:00Z"


def owned(name: str, owner: str = "", *, number: int = 0, **rest: Any) -> Pod:
    """A pod of a job; `number`: how often it was replaced."""
    pod = build.gpu_pod(name, uid=f"uid-team-{name}-{number}", **({"gpus": 1} | rest))
    reference = OwnerReference(uid=owner or f"job-{name}", kind="Job", name=owner or name, controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(reference,)))


class MigrationWorld(World):
    """Two nodes of two GPUs, each with one pod and one that has ended.

    `wants` is pending and requests two GPUs.
    """

    def __init__(self, **pods: Pod) -> None:
        super().__init__("a", "b")
        for number in range(4):
            self.gives_back(f"low{number}")
        self.pods = {"x": owned("x"), "y": owned("y")} | pods
        for name, pod in self.pods.items():
            other = build.gpu_pod("beside", gpus=1, uid=f"uid-beside-{name}")
            self.run(pod)
            self.run(
                msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, name=f"beside-{name}"))
            )
        for name in self.pods:
            self.gives_back(f"beside-{name}")
        self.wants = build.gpu_pod("wants", gpus=2)
        self.waits(self.wants)

    def moves(self, *names: str, to: str = "", node: str = "", consolidates: bool = True) -> Plan:
        """Returns a plan that migrates the pods to the other node, unless `to` says otherwise."""
        here = node or self.bound[names[0]].spec.node_name
        plan = self.plan(*names, to=(self.wants,), nodes=(here,))
        there = to or next(other for other in ("a", "b") if other != here)
        return msgspec.structs.replace(
            plan,
            consolidates=consolidates,
            victims=tuple(msgspec.structs.replace(v, action="move", to=there) for v in plan.victims),
        )

    def node_of(self, pod: Pod) -> str:
        order = self.leader.binds().get(pod.metadata.uid)
        return "" if order is None else order.node


def test_an_equal_is_migrated_and_the_pending_pod_gets_its_place() -> None:
    """A rival pod of any priority that arrives in between gets neither place."""
    world = MigrationWorld()
    there = world.bound["y"].spec.node_name
    assert world.ask(world.moves("x")).ok
    world.gives_back("x")
    rival = build.gpu_pod("rival", gpus=1, priority=1000)
    world.waits(rival)
    again = owned("x", number=1)
    world.leader.facts(again)
    assert (world.node_of(again), world.node_of(world.wants)) == (there, "b" if there == "a" else "a")
    assert world.node_of(rival) == ""
    assert world.leader.core.book.overbooked() == []


def test_a_migration_of_equals_needs_a_consolidation_plan() -> None:
    world = MigrationWorld()
    assert "of no lower priority" in refused(world, world.moves("x", consolidates=False))


def test_no_pod_of_higher_priority_is_migrated() -> None:
    world = MigrationWorld(x=owned("x", priority=5))
    assert "has a higher priority" in refused(world, world.moves("x"))


def test_a_consolidation_plan_evicts_no_pod_without_a_target() -> None:
    world = MigrationWorld()
    plan = world.moves("x")
    ends = msgspec.structs.replace(
        plan, victims=tuple(msgspec.structs.replace(v, action="evict", to="") for v in plan.victims)
    )
    assert "would lose its place" in refused(world, ends)


def test_no_pod_is_migrated_to_a_full_node() -> None:
    world = MigrationWorld()
    plan = world.moves("x", to=world.bound["x"].spec.node_name)
    assert "would not fit even without the victims" in refused(world, plan)


def test_a_pod_without_a_controller_is_not_migrated() -> None:
    world = MigrationWorld(x=build.gpu_pod("x", gpus=1))
    assert "no controller that replaces it" in refused(world, world.moves("x"))


def test_a_member_that_its_gang_needs_is_not_migrated() -> None:
    world = MigrationWorld(x=owned("x", annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "1"}))
    assert "its gang needs it" in refused(world, world.moves("x"))


def test_only_members_that_a_gang_can_spare_are_migrated() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/gang-min": "1"}
    world = empty_world("a", "b", "c")
    run_on(world, "b", owned("k"))
    run_on(world, "c", owned("l"))
    run_on(world, "a", owned("x", annotations=notes), owned("y", annotations=notes))
    wants, small = (
        build.gpu_pod("wants", gpus=2),
        build.gpu_pod("small", gpus=1, node_selector={"kubernetes.io/hostname": "a"}),
    )
    world.waits(wants, small)
    both = with_targets(world.plan("x", "y", to=(wants,), nodes=("a",)), "b", "c")
    assert "its gang needs it" in refused(world, both)
    assert world.ask(with_targets(world.plan("x", to=(small,), nodes=("a",)), "b")).ok
    world.gives_back("x")
    world.leader.facts(again := owned("x", number=1, annotations=notes))
    assert world.leader.binds()[again.metadata.uid].node == "b"
    assert world.leader.binds()[small.metadata.uid].node == "a"


def test_a_non_borrowing_pod_is_not_migrated() -> None:
    world = MigrationWorld()
    world.leader.facts(build.queues("{queues: [{name: q}], within_guarantee_from: 0}"))
    assert "guarantee by policy" in refused(world, world.moves("x"))


def test_no_pod_is_migrated_beyond_the_beneficiarys_quota() -> None:
    label = {"kerf.dev/queue": "q"}
    world = MigrationWorld(x=owned("x", labels=label), y=owned("y", labels=label))
    world.wants = build.gpu_pod("more", gpus=2, labels=label)
    world.waits(world.wants)
    world.leader.facts(build.queues("queues: [{name: q, limit: {gpus: 3}}]"))
    assert "would exceed the quota" in refused(world, world.moves("x"))


def test_no_pod_is_migrated_without_need() -> None:
    world = MigrationWorld()
    plan = world.moves("x", "y", to=world.bound["y"].spec.node_name)
    assert "would fit without preempting team/y" in refused(world, plan)


def empty_world(*nodes: str) -> World:
    world = World(*nodes)
    for name in list(world.bound):
        world.gives_back(name)
    return world


def run_on(world: World, node: str, *pods: Pod) -> None:
    """Binds these pods to that node, as if it were the only one."""
    others = [name for name in world.leader.core.book.nodes if name != node]
    world.leader.facts(*(build.node(name, unschedulable=True) for name in others))
    for pod in pods:
        world.run(pod)
    world.leader.facts(*(build.node(name) for name in others))


def with_targets(plan: Plan, *to: str) -> Plan:
    """Returns the plan with its victims moving to these nodes."""
    moved = (
        msgspec.structs.replace(victim, action="move", to=node) for victim, node in zip(plan.victims, to, strict=True)
    )
    return msgspec.structs.replace(plan, consolidates=True, victims=tuple(moved))


def test_an_early_replacement_gets_its_place_when_it_is_free() -> None:
    """Its target is still occupied by a pod that the same plan migrates.

    Pending pods of higher priority get none of it.
    """
    world = empty_world("a", "b", "c")
    run_on(world, "a", owned("x"))
    run_on(world, "b", owned("y"), owned("k"))
    run_on(world, "c", owned("l"))
    wants = build.gpu_pod("wants", gpus=2)
    world.waits(wants)
    assert world.ask(with_targets(world.plan("x", "y", to=(wants,), nodes=("a",)), "b", "c")).ok
    rival, again, other = build.gpu_pod("rival", gpus=1, priority=1000), owned("x", number=1), owned("y", number=1)
    world.waits(rival)
    world.gives_back("x")
    world.waits(again)
    held = world.leader.core.book.pods[world.bound["y"].metadata.uid].grant_id
    world.leader.gone(world.bound["y"])
    world.leader.facts(other)
    assert world.leader.binds()[other.metadata.uid].node == "c"
    world.waits(again)
    world.leader.send(m.ReleaseSeen("b", held))
    binds = world.leader.binds()
    assert (binds[again.metadata.uid].node, binds[wants.metadata.uid].node) == ("b", "a")
    assert rival.metadata.uid not in binds
    assert world.leader.core.book.overbooked() == []


def test_an_unclaimed_place_is_released_at_the_deadline() -> None:
    world = MigrationWorld()
    there = world.bound["y"].spec.node_name
    assert world.ask(world.moves("x")).ok
    world.gives_back("x")
    rival = build.gpu_pod("rival", gpus=1)
    world.waits(rival)
    for _ in range(7):
        world.leader.send(m.BeatSeen(("a", "b")))
        world.leader.tick(10)
    assert world.node_of(rival) == there


def test_a_migration_on_the_same_node_uses_another_gpu() -> None:
    """Two halves are put together; the place of the second goes to the pending pod and to no other before."""
    world = empty_world("a")
    for name, pod in (
        ("x", owned("x", gpus=0, memory="45Gi")),
        ("y", owned("y", gpus=0, memory="45Gi")),
        ("u", owned("u", gpus=0, memory="30Gi")),
        ("v", owned("v", gpus=0, memory="30Gi")),
    ):
        assert world.run(pod).metadata.name == name
    for name in ("x", "y"):
        world.gives_back(name)
    wants = build.gpu_pod("wants", gpus=1)
    world.waits(wants)
    plan = with_targets(world.plan("v", to=(wants,)), "a")
    assert world.ask(plan).ok
    again = owned("v", number=1, gpus=0, memory="30Gi")
    world.leader.send(m.FactsSeen((Gone(object=world.bound["v"]),)))  # its node has not given it back yet
    world.leader.facts(again)
    stays = world.leader.core.book.pods["uid-team-u-0"].grant_id
    moved = decode_grant(world.leader.binds()[again.metadata.uid].grant)
    assert _gpus(moved.containers) == _gpus(world.leader.core.book.grants[stays].grant.containers)
    assert wants.metadata.uid not in world.leader.binds()
    world.leader.send(m.ReleaseSeen("a", plan.victims[0].grant_id))
    assert world.leader.binds()[wants.metadata.uid].node == "a"
    assert world.leader.core.book.overbooked() == []


def _gpus(containers: Any) -> set[str]:
    return {share.uuid for part in containers.values() for share in part.gpus}


def test_two_replacements_of_one_job_get_one_place_each() -> None:
    """Another pod of that job waits as long as no further pod of it has ended."""
    world = empty_world("a", "b", "c")
    run_on(world, "a", owned("x", "job"), owned("y", "job"))
    run_on(world, "b", owned("f"))
    run_on(world, "c", owned("g"))
    wants = build.gpu_pod("wants", gpus=2)
    world.waits(wants)
    assert world.ask(with_targets(world.plan("x", "y", to=(wants,), nodes=("a",)), "b", "c")).ok
    third = owned("z", "job")
    world.waits(third)
    nodes = []
    for name in ("x", "y"):
        world.gives_back(name)
        again = owned(name, "job", number=1)
        world.leader.facts(again)
        nodes.append(world.leader.binds()[again.metadata.uid].node)
    assert sorted(nodes) == ["b", "c"]
    assert world.leader.binds()[wants.metadata.uid].node == "a"
    assert third.metadata.uid not in world.leader.binds()


@pytest.mark.parametrize("ending", [False, True])
def test_a_cancelled_plan_keeps_only_the_places_of_evicted_pods(ending: bool) -> None:
    world = MigrationWorld()
    assert world.ask(world.moves("x")).ok
    if ending:
        world.leader.facts(build.newer(world.bound["x"], deletion_timestamp=DELETED))
    world.leader.send(m.AbandonAsked("plan", "why not"))
    kept = [key for key in world.leader.core.book.digest() if key.startswith("grant/reserved/")]
    assert len(kept) == ending
