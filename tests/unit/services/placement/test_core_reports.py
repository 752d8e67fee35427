"""What the core reports: public events, pending reasons and labels of nodes."""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from shared.contracts.commands import ReportPending
from shared.contracts.events import PlacementDecided, PlacementRejected, PodBound
from shared.model.objects import Condition, PodStatus
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.core_pods import HALF, show_bound


def test_decided_is_published_with_its_log_sequence_once_the_log_has_it() -> None:
    placement = Placement().nodes("n")
    placement.answer = False
    placement.facts(build.gpu_pod("p", **HALF))
    assert placement.events(PlacementDecided) == []
    placement.send(m.Appended(777))
    assert [e.sequence for e in placement.events(PlacementDecided)] == [777]


def test_bound_is_published_once() -> None:
    placement = Placement().nodes("n")
    pod = show_bound(placement, build.gpu_pod("p", **HALF))
    placement.facts(build.newer(pod, phase="Running"))
    assert [e.node for e in placement.events(PodBound)] == ["n"]


def test_a_pod_that_fits_nowhere_is_rejected_once_with_a_reason_on_the_pod() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=2))
    for _ in range(5):
        placement.tick()
    assert len(placement.events(PlacementRejected)) == 1
    report = [p for p in placement.patches() if isinstance(p, ReportPending)]
    assert "needs 2 GPUs on one node, the node has 1" in report[0].message


def test_an_invalid_pod_is_refused_by_name_and_harms_no_other() -> None:
    placement = Placement().nodes("n")
    bad = build.pod("bad", limits={"kerf.dev/gpu-memory": "sixteen"})
    assert placement.place(bad, build.gpu_pod("good", **HALF)) == {"good": "n"}
    assert "sixteen" in placement.events(PlacementRejected)[0].explanation.sentence


def test_pods_that_wait_behind_one_of_their_shape_get_a_reason_too() -> None:
    """Only the head of an equivalence group is tried; each pod in it must get a reason."""
    placement = Placement().nodes("n", gpus=1)
    placement.facts(build.gpu_pod("a", gpus=2), build.gpu_pod("b", gpus=2))
    placement.facts(build.gpu_pod("late", gpus=2))
    for _ in range(5):
        placement.tick()
    assert sorted(e.name for e in placement.events(PlacementRejected)) == ["a", "b", "late"]
    assert placement.core.stats.rejections == 1


def test_a_pending_reason_is_repeated_until_it_is_on_its_pod() -> None:
    """A watcher that ends loses the reasons that it has not written; the event is not published again."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=2)
    placement.facts(pod)
    placement.tick()
    placement.tick(seconds=11)
    reports = [p for p in placement.patches() if isinstance(p, ReportPending)]
    assert len(reports) == 2
    assert reports[0].message == reports[1].message
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=reports[0].message)
    seen = build.newer(pod)
    placement.facts(msgspec.structs.replace(seen, status=PodStatus(phase="Pending", conditions=(condition,))))
    placement.tick(seconds=11)
    assert len([p for p in placement.patches() if isinstance(p, ReportPending)]) == 2
    assert len(placement.events(PlacementRejected)) == 1


def test_a_node_is_labelled_with_its_gpus_until_its_labels_are_seen() -> None:
    """Source 3: node labels with the GPU model, for filtering."""
    from shared.contracts.commands import LabelNode

    placement = Placement().nodes("n", gpus=4, model="NVIDIA H100 80GB")
    placement.tick()
    assert not [p for p in placement.patches() if isinstance(p, LabelNode)], "it is not, or no longer, enrolled"
    enrolled = {"kerf.dev/enrolled": "true"}
    placement.facts(build.node("n", labels=enrolled))
    placement.tick()
    labels = [p for p in placement.patches() if isinstance(p, LabelNode)]
    assert len(labels) == 1
    assert (
        labels[0].labels.items()
        >= {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB",
            "nvidia.com/gpu.count": "4",
            "nvidia.com/gpu.memory": "81920",
        }.items()
    )
    placement.facts(build.node("n", labels=enrolled | {k: v for k, v in labels[0].labels.items() if v}))
    placement.tick(120.0)
    assert len([p for p in placement.patches() if isinstance(p, LabelNode)]) == 1


def test_a_permanently_removed_node_is_no_longer_subscribed_to() -> None:
    placement = Placement().nodes("n1", "n2")
    placement.gone(placement.core.book.nodes["n1"].object)
    placement.send(m.AgentLost("n1"))
    placement.send(m.BeatSeen(("n1", "n2")))
    placement.tick()
    assert set(placement.core.nodes.heartbeats) == {"n2"}


def test_on_a_large_cluster_pending_reasons_are_limited_per_tick() -> None:
    placement = Placement(*(build.node(f"n{number}") for number in range(200)))
    placement.facts(*(build.gpu_pod(f"p{number}", gpus=1) for number in range(3)))

    def told() -> int:
        return sum(isinstance(c, m.Publish) and isinstance(c.event, PlacementRejected) for c in placement.commands)

    placement.send(m.Tick())
    assert told() == 1
    placement.now += 0.001
    placement.send(m.Tick())
    assert told() == 1
    for _ in range(2):
        placement.now += 0.02
        placement.send(m.Tick())
    assert told() == 3


def test_a_decision_carries_the_labels_by_which_usage_is_told_and_no_others() -> None:
    labels = {"team": "vision", "app": "train"}
    placement = Placement(usage_labels=("team", "cost-centre")).nodes("n")
    placement.facts(build.gpu_pod("p", labels=labels, **HALF))
    assert [e.labels for e in placement.events(PlacementDecided)] == [{"team": "vision"}]
    without = Placement().nodes("n")
    without.facts(build.gpu_pod("p", labels=labels, **HALF))
    assert [e.labels for e in without.events(PlacementDecided)] == [{}]
