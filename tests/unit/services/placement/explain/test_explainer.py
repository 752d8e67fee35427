"""Explanations of why a pod is on its node, or on none."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions, reader
from shared.contracts.queries import InspectQuery, StatusQuery, WhatIfQuery, WhyQuery
from shared.model.affinity import Affinity, LabelSelector, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from shared.model.objects import Taint
from tests.support import build
from tests.support.harness.placement import Placement


def why(placement: Placement, name: str, **rest: int) -> object:
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name=name, **rest), 0.0, 0.0))
    assert answer.error == ""
    return answer.explanation


def test_a_full_gpu_names_what_is_missing_which_pods_hold_it_and_what_would_fit() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.place(build.gpu_pod("holder", memory="60Gi"))
    placement.facts(build.gpu_pod("p", memory="30Gi"))
    answer = why(placement, "p")
    assert answer.state == "waiting"
    gpu = answer.nodes[0].gpus[0]
    assert (gpu.free_memory_mib, gpu.holders, gpu.fits) == (20480, ("team/holder",), False)
    assert gpu.missing == "needs 30 GiB, 20 GiB free of 80 GiB"
    assert answer.helps == ("fits with 10 GiB less GPU memory: 20 GiB (n)",)


def test_what_would_help_does_help() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.place(build.gpu_pod("holder", memory="60Gi"))
    placement.facts(build.gpu_pod("p", memory="30Gi"))
    lacking = why(placement, "p").summary[0].lacking
    assert placement.place(build.gpu_pod("less", memory=f"{30 * 1024 - lacking}Mi")) == {"less": "n"}


def test_reasons_are_summed_over_nodes_most_frequent_first() -> None:
    placement = Placement().nodes("a", "b", gpus=1)
    placement.facts(build.node("c", taints=(Taint(key="x", effect="NoSchedule"),)))
    placement.facts(build.gpu_pod("p", gpus=2))
    summary = why(placement, "p").summary
    assert [(r.code, r.nodes) for r in summary] == [("too-few-gpus", 2), ("no-gpu", 1), ("taint", 1)]


def test_only_a_sole_obstacle_is_offered_as_a_counterfactual() -> None:
    placement = Placement(build.node("tainted")).nodes("tainted", gpus=1)
    placement.facts(build.node("tainted", taints=(Taint(key="x", effect="NoSchedule"),), cpu="1"))
    placement.facts(build.pod("p", requests={"cpu": "8"}))
    assert why(placement, "p").helps == ()
    placement.facts(build.pod("q", requests={"cpu": "1"}))
    assert why(placement, "q").helps == ("tolerate x:NoSchedule (tainted)",)


def test_the_explanation_of_a_bound_pod_names_its_node_its_grant_and_alternatives() -> None:
    placement = Placement().nodes("n", "m", gpus=1)
    pod = build.gpu_pod("p", memory="10Gi")
    placement.facts(pod)
    placement.bind(pod)
    answer = why(placement, "p")
    assert (answer.state, answer.node) == ("bound", "n")
    assert "10 GiB and 0 % of n-gpu-0" in answer.sentence
    assert {c.node for c in answer.candidates} == {"n", "m"}
    assert answer.candidates[0].total == sum(answer.candidates[0].scores.values())


WEB = PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "web"}))
APART = {
    "required": PodAffinity(required_during_scheduling_ignored_during_execution=(WEB,)),
    "preferred": PodAffinity(
        preferred_during_scheduling_ignored_during_execution=(
            WeightedPodAffinityTerm(weight=100, pod_affinity_term=WEB),
        )
    ),
}


@pytest.mark.parametrize("kind", APART)
def test_why_of_a_pod_that_keeps_away_from_another_one_is_not_that_the_cluster_has_changed(kind: str) -> None:
    """The node of the other one has the higher score by itself."""
    placement = Placement().nodes("n1", "n2")
    placement.place(build.gpu_pod("web", memory="20Gi", labels={"app": "web"}))
    placement.place(build.gpu_pod("p", memory="20Gi", affinity=Affinity(pod_anti_affinity=APART[kind])))
    answer = why(placement, "p")
    assert answer.node == "n2"
    if kind == "required":
        assert answer.second == "no other node could take it now"
    else:
        assert answer.second.startswith("n1 is second: ")
        assert [candidate.node for candidate in answer.candidates] == ["n2", "n1"]


def test_unknown_and_foreign_pods_get_an_error_with_that_reason() -> None:
    placement = Placement().nodes("n")
    assert (
        "no pod team/nobody"
        in finish(questions.why(placement.core, WhyQuery(namespace="team", name="nobody"), 0.0, 0.0)).error
    )
    placement.facts(build.pod("other", scheduler="default-scheduler"))
    assert (
        "is not Kerf's"
        in finish(questions.why(placement.core, WhyQuery(namespace="team", name="other"), 0.0, 0.0)).error
    )


def what_if(placement: Placement, pod: object) -> object:
    return finish(questions.what_if(placement.core, WhatIfQuery(pod=msgspec.Raw(msgspec.json.encode(pod))), 0.0))


def test_what_if_answers_for_a_pod_that_does_not_exist_and_leaves_nothing_behind() -> None:
    placement = Placement().nodes("n", gpus=1)
    before = placement.core.book.digest()
    assert what_if(placement, build.gpu_pod("ghost", gpus=1)).explanation.state == "would-fit"
    assert what_if(placement, build.gpu_pod("ghost", gpus=2)).explanation.state == "would-wait"
    assert placement.core.book.digest() == before
    assert "ghost" not in str(placement.core.book.uid_by_key)


def test_what_if_rejects_an_object_that_is_not_a_pod() -> None:
    placement = Placement().nodes("n")
    assert (
        "no pod manifest"
        in finish(questions.what_if(placement.core, WhatIfQuery(pod=msgspec.Raw(b'{"spec": 5}')), 0.0)).error
    )
    assert "no containers" in finish(questions.what_if(placement.core, WhatIfQuery(pod=msgspec.Raw(b"{}")), 0.0)).error


def test_inspect_counts_what_is_allocated_by_gpu_and_pod() -> None:
    placement = Placement().nodes("n", gpus=2)
    placement.place(build.gpu_pod("a", memory="10Gi", compute=20), build.gpu_pod("b", memory="5Gi"))
    gpus = finish(reader.inspect(placement.core, InspectQuery())).nodes[0].gpus
    assert (gpus[0].allocated_memory_mib, gpus[0].allocated_compute_milli, gpus[0].containers) == (15360, 200, 2)
    assert sorted(p.name for p in gpus[0].pods) == ["a", "b"]
    assert finish(reader.inspect(placement.core, InspectQuery(node="nowhere"))).error == "there is no node nowhere"


def test_status_counts_pods_gpus_and_fragments() -> None:
    placement = Placement().nodes("n", gpus=2)
    placement.facts(build.gpu_pod("a", compute=70), build.gpu_pod("b", gpus=2))
    status = reader.status(placement.core, StatusQuery(waiting=5), leader=True)
    assert (status.gpus, status.gpu_milli_allocated, status.pods_holding, status.pods_waiting) == (2, 700, 1, 1)
    assert status.fragmentation_milli == 300  # on the first GPU: neither 70 % nor a whole one fits into the remainder
    assert [w.name for w in status.waiting] == ["b"]
    assert reader.status(placement.core, StatusQuery(), leader=True).waiting == ()


def test_nodes_that_the_pods_node_selector_excludes_are_not_shown() -> None:
    """Unless it excludes all: then they are what there is to say."""
    placement = Placement()
    for name in ("a", "b"):
        placement.facts(build.node(name, labels={"pool": name}))
        placement.send(m.InventorySeen(build.inventory(name, gpus=1)))
    placement.facts(
        build.gpu_pod("p", memory="100Gi", node_selector={"pool": "b"}),
        build.gpu_pod("q", memory="1Gi", node_selector={"pool": "c"}),
    )
    assert [node.node for node in why(placement, "p").nodes] == ["b"]
    assert [node.node for node in why(placement, "q").nodes] == ["a", "b"]


def test_amounts_have_the_unit_that_people_write() -> None:
    placement = Placement().nodes("n", gpus=1, memory_mib=143_771)
    placement.facts(build.pod("cpu", limits={}, requests={"cpu": "400"}), build.gpu_pod("p", memory="160Gi"))
    assert "needs 400 CPU, 64 free of 64" in why(placement, "cpu").sentence
    assert "needs 160 GiB on one GPU, the node's GPUs have 140.4 GiB" in why(placement, "p").sentence


@pytest.mark.parametrize(
    ("labels", "agents"),
    [
        ({"kerf.dev/managed": "false"}, 0),
        ({"kerf.dev/managed": "false", "gpushare": "true"}, 0),
        ({"kerf.dev/enrolled": "false"}, 0),
        ({"kerf.dev/managed": "true"}, 1),
        ({"gpushare": "true"}, 1),
        ({"kerf.dev/enrolled": "true"}, 1),
    ],
)
def test_nodes_that_are_left_out_need_no_agent(labels: dict[str, str], agents: int) -> None:
    placement = Placement()
    placement.facts(build.node("n", labels=labels))
    status = reader.status(placement.core, StatusQuery(), leader=True)
    assert (status.agents, status.agents_ready) == (agents, 0)


def test_status_names_the_waiting_pods_the_longest_wait_and_missing_agents() -> None:
    placement = Placement().nodes("n", gpus=2)
    placement.facts(build.node("m", labels={"kerf.dev/managed": "true"}), build.gpu_pod("b", gpus=3))
    placement.now += 10
    placement.facts(build.gpu_pod("c", gpus=3, priority=1000))
    core = placement.core
    uids = {state.pod.metadata.name: uid for uid, state in core.book.pods.items()}
    assert core.queue.oldest(1) == [uids["c"]], "the queue's order is by priority"
    first = core.scheduler.first_seen[uids["b"]]
    status = reader.status(core, StatusQuery(uids=1), leader=True, now=first + 90)
    assert (status.agents, status.agents_ready) == (2, 1)
    assert (status.oldest_wait_s, status.waiting_uids) == (90.0, (uids["b"],))
    nothing = reader.status(core, StatusQuery(), leader=True, now=first + 90)
    assert (nothing.oldest_wait_s, nothing.waiting_uids) == (90.0, ())
