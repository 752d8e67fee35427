"""What people are told while others make room: figures of what is there, and what is kept for whom."""

from __future__ import annotations

import msgspec

from services.placement.reader import inspect, queues, status
from shared.contracts.queries import InspectGpu, InspectQuery, StatusQuery
from tests.support import build
from tests.support.whatif import time_of, when, why
from tests.unit.services.placement.test_reservations import World, high, low

GPU_MIB = 81_920


class Told(World):
    """With a place for `high` reserved where low0 is, which has not gone."""

    def __init__(self) -> None:
        super().__init__()
        self.victim = self.bound["low0"]
        self.waits(high())
        assert self.ask(self.plan("low0")).ok

    def ends(self, in_s: int) -> None:
        """The victim is deleted, and its grace period has so much left."""
        at = time_of(-in_s)
        meta = msgspec.structs.replace(self.victim.metadata, resource_version=build.next_version(), deletion_timestamp=at)
        self.leader.facts(msgspec.structs.replace(self.victim, metadata=meta))

    def gpu(self) -> InspectGpu:
        (node,) = inspect(self.leader.core, InspectQuery()).nodes
        return next(gpu for gpu in node.gpus if any(pod.name == "low0" for pod in gpu.pods))


def test_what_is_kept_for_a_plan_is_not_allocated() -> None:
    world = Told()
    gpu = world.gpu()
    assert (gpu.allocated_memory_mib, gpu.allocated_compute_milli, gpu.containers, gpu.reserved_mib) == (GPU_MIB, 1000, 1, GPU_MIB)
    assert [(pod.name, pod.state) for pod in gpu.pods] == [("low0", "bound"), ("high", "reserved")]
    told = status(world.leader.core, StatusQuery(), leader=True)
    assert (told.gpu_milli_allocated, told.gpu_memory_mib_allocated) == (told.gpu_milli_total, told.gpu_memory_mib_total)


def test_a_queue_uses_what_its_pods_have_and_what_is_kept_stands_beside_it_and_counts_against_its_limit() -> None:
    world = World()
    world.leader.facts(build.queues("queues: [{name: team, limit: {gpus: 3}}]"))
    world.waits(high())
    assert world.ask(world.plan("low0")).ok
    (team,) = queues(world.leader.core).queues
    assert (team.gpu_milli_used, team.gpu_milli_reserved) == (2000, 1000)
    world.waits(high("other"))
    assert why(world.leader, "other").sentence.startswith("queue team uses 3 GPUs of its limit of 3 GPUs")


def test_a_queue_that_is_read_anew_counts_what_is_kept_where_the_pod_is() -> None:
    """By the label of the pod, which stands in no list of pods, and not by its namespace."""
    world = World()
    world.leader.facts(build.queues("queues: [{name: team}, {name: a}]"))
    world.waits(high(labels={"kerf.dev/queue": "a"}))
    world.leader.facts(build.queues("queues: [{name: team, guaranteed: {gpus: 1}}, {name: a, guaranteed: {gpus: 1}}]"))
    assert world.ask(world.plan("low0")).ok
    before = queues(world.leader.core).queues
    world.leader.facts(build.queues("queues: [{name: team, guaranteed: {gpus: 1}}, {name: a, guaranteed: {gpus: 1}}, {name: b}]"))
    after = queues(world.leader.core).queues
    assert [q.gpu_milli_reserved for q in before if q.name == "a"] == [1000]
    assert [q for q in after if q.name != "b"] == list(before)


def test_why_says_that_a_place_is_kept_and_for_whom_and_calls_nobody_a_holder_who_waits() -> None:
    world = Told()
    world.waits(low("rival"))
    gpu = next(gpu for gpu in why(world.leader, "rival").nodes[0].gpus if gpu.kept_for)
    assert (gpu.free_memory_mib, gpu.free_compute_milli) == (0, 0)
    assert gpu.holders == ("team/low0",)
    assert gpu.kept_for == ("team/high",)
    assert gpu.missing == "needs the whole GPU, 1 container(s) are on it; a place on it is kept for a plan"


def test_when_counts_the_end_of_a_pod_that_is_deleted_and_no_place_that_is_kept() -> None:
    world = Told()
    world.ends(600)
    told = when(world.leader, "high")
    assert (told.state, told.in_s, told.without_end) == ("known", 600, 1)
    assert [(end.name, end.by) for end in told.counts_on] == [("low0", "deletion")]
    assert "pods that are deleted are gone when their grace period is over, or before" in told.assumptions
    world.waits(rival := low("rival"))
    assert when(world.leader, "rival").state == "unknown", f"what low0 gives back is not {rival.metadata.name}'s"
    assert world.leader.core.book.nodes["n"].by_uuid[world.gpu().uuid].kept == 1, "a question changes nothing"


def test_a_deleted_pod_that_is_stuck_tells_nothing_of_its_end() -> None:
    world = Told()
    world.ends(-600)
    assert when(world.leader, "high").state == "unknown"
