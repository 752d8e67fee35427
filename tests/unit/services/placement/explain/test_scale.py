"""Which node type would help the waiting pods: the answer comes true when such nodes are added."""

from __future__ import annotations

from typing import Any

import pytest

from services.placement import messages as m
from services.placement.explain.scale import INSTANCE_TYPE, TYPES_MOST
from services.placement.explain.steps import finish
from services.placement.explain.what_if_clusters import TRIED_MOST
from services.placement.queries import questions
from shared.contracts.queries import ScaleQuery
from shared.model.objects import Pod, Taint
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import NOW, scale


def cluster(**types: int) -> Placement:
    """One node of each type, with so many GPUs, all of them in use."""
    placement = Placement()
    for name, gpus in types.items():
        add(placement, f"{name}-0", name, gpus)
        placement.place(build.gpu_pod(f"fills-{name}", gpus=gpus))
    return placement


def add(placement: Placement, node: str, kind: str, gpus: int, **rest: Any) -> None:
    placement.facts(build.node(node, labels={INSTANCE_TYPE: kind}, **rest))
    placement.send(m.InventorySeen(build.inventory(node, gpus=gpus)))


def wait(placement: Placement, *pods: Pod) -> None:
    assert placement.place(*pods) == {}


def needs(placement: Placement, **query: Any) -> list[tuple[str, int, int]]:
    return [(need.name, need.nodes, need.pods) for need in scale(placement, **query).needs]


def test_each_type_says_how_many_nodes_help_how_many_pods() -> None:
    placement = cluster(small=2, large=8)
    wait(placement, *(build.gpu_pod(f"p{i}", gpus=2) for i in range(5)), build.gpu_pod("big", gpus=8))
    assert needs(placement) == [("large", 3, 6), ("small", 5, 5)]
    told = scale(placement)
    assert told.waiting == 6
    assert told.sentence == (
        "6 pods wait for capacity; 3 more nodes of type large (like large-0, 24 GPUs) would give all of them a place"
    )


def test_the_answer_comes_true() -> None:
    placement = cluster(small=2, large=8)
    pods = [build.gpu_pod(f"p{i}", gpus=gpus) for i, gpus in enumerate((3, 1, 4, 1, 5, 2, 6))]
    wait(placement, *pods)
    need = scale(placement).needs[0]
    for number in range(1, need.nodes + 1):
        add(placement, f"new-{number}", need.name, 8)
    placement.tick(0.1)
    placement.tick(11.0)
    placed = [bind.name for bind in placement.binds().values() if bind.name.startswith("p")]
    assert len(placed) == need.pods == 7


def test_one_node_less_would_help_fewer_pods() -> None:
    placement = cluster(large=8)
    wait(placement, *(build.gpu_pod(f"p{i}", gpus=5) for i in range(4)))
    assert needs(placement) == [("large", 4, 4)]
    assert needs(placement, max_nodes=3) == [("large", 3, 3)]


def test_a_gang_needs_all_of_its_nodes_at_once() -> None:
    placement = cluster(large=8)
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "4"}
    wait(placement, *(build.gpu_pod(f"g{i}", gpus=8, annotations=notes) for i in range(4)))
    assert needs(placement) == [("large", 4, 4)]
    assert needs(placement, max_nodes=3) == []


def test_pods_that_no_type_helps_are_said() -> None:
    placement = cluster(small=2)
    wait(placement, build.gpu_pod("big", gpus=8))
    assert scale(placement).sentence == "1 pod waits, and 64 more nodes of no type in this cluster would help"
    assert scale(Placement()).sentence == "no pod waits for capacity"


def test_a_node_that_is_cordoned_now_still_stands_for_its_type() -> None:
    placement = cluster(large=8)
    placement.facts(build.node("large-0", labels={INSTANCE_TYPE: "large"}, unschedulable=True))
    wait(placement, build.gpu_pod("p", gpus=1))
    assert needs(placement) == [("large", 1, 1)]


@pytest.mark.parametrize(
    "key",
    [
        *("node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"),
        *("karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler", "kerf.dev/leaving"),
    ],
)
def test_the_taints_of_a_nodes_present_state_are_not_those_of_new_nodes(key: str) -> None:
    placement = cluster(large=8)
    taints = (Taint(key=key, effect="NoSchedule"),)
    placement.facts(build.node("large-0", labels={INSTANCE_TYPE: "large"}, taints=taints))
    wait(placement, build.gpu_pod("p", gpus=1))
    assert needs(placement) == [("large", 1, 1)]


def test_nodes_without_the_label_are_told_apart_by_their_gpus() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.place(build.gpu_pod("fills", gpus=4))
    wait(placement, build.gpu_pod("p", gpus=1))
    (need,) = scale(placement).needs
    assert need.name.startswith("4 x ")


def test_the_answer_says_how_much_of_a_long_queue_it_is_for() -> None:
    placement = cluster(large=8)
    wait(placement, *(build.gpu_pod(f"p{i}", gpus=8) for i in range(TRIED_MOST + 1)))
    told = scale(placement).sentence
    assert told.startswith(f"{TRIED_MOST + 1} pods wait for capacity; 64 more nodes of type large")
    assert told.endswith(f"; only the first {TRIED_MOST} pods of the queue were tried")


def test_of_many_types_those_with_the_most_nodes_are_tried_and_the_answer_says_so() -> None:
    """The name of the type with two nodes is the last one; the type that is left out is the last with one node."""
    placement = cluster(**{f"type-{number:02}": 1 for number in range(TYPES_MOST)}, wide=8)
    add(placement, "wide-1", "wide", 8)
    placement.place(build.gpu_pod("fills-wide-1", gpus=8))
    wait(placement, build.gpu_pod("one", gpus=1))
    told = scale(placement, max_nodes=1)
    named = {need.name for need in told.needs}
    assert len(named) == TYPES_MOST
    assert "wide" in named
    assert f"type-{TYPES_MOST - 1:02}" not in named
    assert told.sentence.endswith(
        f"; only the {TYPES_MOST} of {TYPES_MOST + 1} node types with the most nodes were tried"
    )


def test_an_answer_about_all_types_does_not_count_them() -> None:
    placement = cluster(**{f"type-{number:02}": 1 for number in range(TYPES_MOST)})
    wait(placement, build.gpu_pod("one", gpus=1))
    assert "were tried" not in scale(placement, max_nodes=1).sentence


@pytest.mark.parametrize("number", [0, 257])
def test_a_senseless_number_of_nodes_is_refused(number: int) -> None:
    answer = finish(questions.scale_(Placement().core, ScaleQuery(max_nodes=number), NOW))
    assert "a number from 1 to 256" in answer.error
