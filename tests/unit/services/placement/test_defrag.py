"""Moves that make room, for the least disturbance."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, LabelSelector, Meta, PodDisruptionBudget
from tests.support import build
from tests.support.leader import Leader
from tests.support.whatif import advise, end, run


def torn() -> Leader:
    """Two nodes of two GPUs, each with one pod that could be with the other; the one on a is the dearer."""
    leader = Leader().nodes("a", gpus=2)
    run(leader, build.gpu_pod("dear", gpus=1), started_s_ago=9000)
    leader.facts(build.node("a", unschedulable=True))
    leader.nodes("b", gpus=2)
    run(leader, build.gpu_pod("cheap", gpus=1), started_s_ago=60)
    leader.facts(build.node("a"))
    return leader


def test_the_cheaper_pod_moves() -> None:
    leader = torn()
    leader.facts(build.gpu_pod("p", gpus=2))
    advice = advise(leader, "p")
    assert [(m.name, m.source, m.target) for m in advice.moves] == [("cheap", "b", "a")]
    assert (advice.node, advice.disturbed_gpu_seconds) == ("b", 60)
    assert advice.sentence == "1 move would make room for it on b, for 60 disturbed GPU-seconds"


def test_what_a_restart_costs_counts_instead_of_the_run_time() -> None:
    leader = torn()
    (dear,) = [s.pod for s in leader.core.book.pods.values() if s.pod.metadata.name == "dear"]
    leader.facts(build.newer(dear, annotations=dict(dear.metadata.annotations) | {"kerf.dev/restart-cost": "10s"}))
    leader.facts(build.gpu_pod("p", gpus=2))
    assert [(m.name, m.disturbed_gpu_seconds) for m in advise(leader, "p").moves] == [("dear", 10)]


def test_more_groups_of_idle_gpus() -> None:
    advice = advise(torn(), gpus=2)
    assert (advice.places_before, advice.places_after, [m.name for m in advice.moves]) == (0, 1, ["cheap"])
    assert advice.sentence == "1 move would make 1 more group of 2 idle GPUs, for 60 disturbed GPU-seconds"


def test_nothing_is_advised_that_disturbs_more_than_allowed() -> None:
    assert advise(torn(), gpus=2, most_gpu_seconds=59).moves == ()
    assert [m.name for m in advise(torn(), gpus=2, most_gpu_seconds=60).moves] == ["cheap"]


def test_a_disruption_budget_is_kept() -> None:
    leader = torn()
    for state in list(leader.core.book.pods.values()):
        leader.facts(build.newer(state.pod, labels={"app": "x"}))
    budget = PodDisruptionBudget(
        metadata=Meta(name="x", namespace="team", uid="b", resource_version="1"), spec=DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
        status=DisruptionBudgetStatus(disruptions_allowed=0),
    )  # fmt: skip
    leader.facts(budget)
    advice = advise(leader, gpus=2)
    assert advice.moves == ()
    assert advice.kept == ("2 pods: disruption budget",)


def test_nobody_makes_room_for_a_pod_that_never_preempts() -> None:
    leader = torn()
    leader.facts(build.gpu_pod("p", gpus=2, preemption_policy="Never"))
    assert "Never" in advise(leader, "p").sentence


def test_a_pod_whose_new_place_is_not_certain_is_left_where_it_is() -> None:
    leader = Leader().nodes("a", "b", gpus=2)
    run(leader, build.gpu_pod("one", gpus=1), build.gpu_pod("two", gpus=2))
    assert advise(leader, gpus=2).moves == ()


RUNNING = st.lists(
    st.tuples(st.sampled_from(({"gpus": 1}, {"gpus": 2}, {"memory": "30Gi"}, {"compute": 60})), st.integers(0, 5), st.booleans()),
    min_size=2,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), RUNNING, st.integers(1, 4), st.integers(1, 2))
def test_who_follows_the_advice_has_the_room_that_was_promised(shapes: list[int], pods: Any, gpus: int, groups: int) -> None:
    """Some pods end, so that the cluster is torn. The moves are made on the real core: all that move end, are created anew for
    their new nodes, and find their places; then there is one for each group."""
    leader = Leader()
    for i, size in enumerate(shapes):
        leader.nodes(f"n{i}", gpus=size)
    kept = {}
    for i, (ask, minutes, stays) in enumerate(pods):
        pod = build.gpu_pod(f"r{i}", **ask)
        leader.facts(pod)
        if pod.metadata.uid not in leader.binds():
            leader.gone(pod)
            continue
        bound = leader.bind(pod)
        if stays:
            kept[pod.metadata.name] = (bound, ask)
        else:
            end(leader, bound)
        leader.now += minutes
    advice = advise(leader, gpus=gpus, groups=groups)
    event(f"{len(advice.moves)} moves")
    assert advice.disturbed_gpu_seconds == sum(m.disturbed_gpu_seconds for m in advice.moves)
    assert len({m.name for m in advice.moves}) == len(advice.moves)
    for move in advice.moves:
        end(leader, kept[move.name][0])
    anew = [build.gpu_pod(f"{m.name}-anew", **kept[m.name][1], node_selector={"kubernetes.io/hostname": m.target}) for m in advice.moves]
    assert leader.place(*anew) == {f"{m.name}-anew": m.target for m in advice.moves}
    wanted = [build.gpu_pod(f"group{i}", gpus=gpus) for i in range(advice.places_after)]
    assert len(leader.place(*wanted)) == len(wanted)
