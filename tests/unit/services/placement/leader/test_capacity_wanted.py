"""`capacity.wanted` says which nodes would help, when that changes, and when no pod waits any more."""

from __future__ import annotations

from services.placement.leader.capacity_wanted import CapacityWatch
from shared.contracts.events import CapacityWanted
from tests.support import build
from tests.support.harness.placement import Placement


async def test_it_is_told_once_until_the_answer_changes_and_then_that_nothing_waits() -> None:
    placement = Placement().nodes("n", gpus=2)
    told: list[CapacityWanted] = []
    watch = CapacityWatch(placement.core, told.append)
    await watch.look()
    await watch.look()
    assert [t.scale.waiting for t in told] == [0], "an earlier leader may have said that some wait"
    told.clear()
    first, second = build.gpu_pod("a", gpus=2), build.gpu_pod("b", gpus=2)
    placement.facts(first)
    placement.bind(first)
    placement.facts(second)
    await watch.look()
    await watch.look()
    assert [(t.scale.waiting, [(need.nodes, need.pods) for need in t.scale.needs]) for t in told] == [(1, [(1, 1)])]
    placement.facts(build.gpu_pod("c", gpus=2))
    await watch.look()
    assert [(need.nodes, need.pods) for need in told[-1].scale.needs] == [(2, 2)]
    placement.gone(second)
    placement.gone(build.gpu_pod("c", gpus=2))
    await watch.look()
    await watch.look()
    assert [t.scale.waiting for t in told] == [1, 2, 0]


async def test_one_pod_in_the_place_of_another_is_a_change() -> None:
    placement = Placement().nodes("n", gpus=2)
    told: list[CapacityWanted] = []
    watch = CapacityWatch(placement.core, told.append)
    first, second = build.gpu_pod("a", gpus=2), build.gpu_pod("b", gpus=2)
    placement.facts(first)
    placement.bind(first)
    placement.facts(second)
    await watch.look()
    placement.gone(second)
    placement.facts(build.gpu_pod("c", gpus=1))
    await watch.look()
    assert [[need.examples for need in t.scale.needs] for t in told] == [[("team/b",)], [("team/c",)]]
