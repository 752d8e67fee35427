"""Moves that free capacity at the lowest cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from services.placement.explain.steps import finish
from services.placement.queries import questions
from shared.contracts.queries import AdviseQuery, LeftAlone
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, Pod, PodDisruptionBudget
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import NOW, advise, end, run


def scattered() -> Placement:
    """Two nodes of two GPUs, each with one pod that could run beside the other; it costs more to move the one on a."""
    placement = Placement().nodes("a", gpus=2)
    run(placement, build.gpu_pod("dear", gpus=1), started_s_ago=9000)
    placement.facts(build.node("a", unschedulable=True))
    placement.nodes("b", gpus=2)
    run(placement, build.gpu_pod("cheap", gpus=1), started_s_ago=60)
    placement.facts(build.node("a"))
    return placement


def test_the_cheaper_pod_moves() -> None:
    placement = scattered()
    placement.facts(build.gpu_pod("p", gpus=2))
    advice = advise(placement, "p")
    assert [(m.name, m.source, m.target) for m in advice.moves] == [("cheap", "b", "a")]
    assert (advice.node, advice.disturbed_gpu_seconds) == ("b", 60)
    assert advice.sentence == "1 move would free enough capacity for it on b, for 60 disturbed GPU-seconds"


def test_the_restart_cost_counts_instead_of_the_run_time() -> None:
    placement = scattered()
    (dear,) = [s.pod for s in placement.core.book.pods.values() if s.pod.metadata.name == "dear"]
    placement.facts(build.newer(dear, annotations=dict(dear.metadata.annotations) | {"kerf.dev/restart-cost": "10s"}))
    placement.facts(build.gpu_pod("p", gpus=2))
    assert [(m.name, m.disturbed_gpu_seconds) for m in advise(placement, "p").moves] == [("dear", 10)]


def test_more_groups_of_idle_gpus() -> None:
    advice = advise(scattered(), gpus=2)
    assert (advice.places_before, advice.places_after, [m.name for m in advice.moves]) == (0, 1, ["cheap"])
    assert advice.sentence == "1 move would make 1 more group of 2 idle GPUs, for 60 disturbed GPU-seconds"


def test_nothing_is_advised_that_disturbs_more_than_allowed() -> None:
    assert advise(scattered(), gpus=2, most_gpu_seconds=59).moves == ()
    assert [m.name for m in advise(scattered(), gpus=2, most_gpu_seconds=60).moves] == ["cheap"]


def test_a_disruption_budget_is_kept() -> None:
    placement = scattered()
    for state in list(placement.core.book.pods.values()):
        placement.facts(build.newer(state.pod, labels={"app": "x"}))
    budget = PodDisruptionBudget(
        metadata=Meta(name="x", namespace="team", uid="b", resource_version="1"),
        spec=DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
        status=DisruptionBudgetStatus(disruptions_allowed=0),
    )
    placement.facts(budget)
    advice = advise(placement, gpus=2)
    assert advice.moves == ()
    assert advice.kept == ("2 pods: disruption budget",)


def test_no_moves_are_advised_for_a_pod_that_never_preempts() -> None:
    placement = scattered()
    placement.facts(build.gpu_pod("p", gpus=2, preemption_policy="Never"))
    assert "Never" in advise(placement, "p").sentence


def test_a_pod_is_not_moved_if_its_new_place_is_not_certain() -> None:
    placement = Placement().nodes("a", "b", gpus=2)
    run(placement, build.gpu_pod("one", gpus=1), build.gpu_pod("two", gpus=2))
    assert advise(placement, gpus=2).moves == ()


def halves() -> Placement:
    """Two GPUs of one node, each in use."""
    placement = Placement().nodes("a", gpus=2)
    apart = run(placement, build.gpu_pod("x", memory="45Gi"), build.gpu_pod("y", memory="45Gi"))
    run(placement, build.gpu_pod("old", memory="20Gi"))
    run(placement, build.gpu_pod("young", memory="30Gi", created="2026-11-22T00:00:00Z"))
    for pod in apart:
        end(placement, pod)
    shares = {
        share.uuid
        for held in placement.core.book.grants.values()
        for part in held.grant.containers.values()
        for share in part.gpus
    }
    assert len(shares) == 2
    return placement


def test_a_pod_moves_to_another_gpu_of_its_node_for_one_that_waits() -> None:
    """Of two with equal cost, the one that came last."""
    placement = halves()
    placement.facts(build.gpu_pod("p", gpus=1))
    advice = advise(placement, "p")
    assert [(m.name, m.source, m.target) for m in advice.moves] == [("young", "a", "a")]
    assert [(place.name, place.node) for place in advice.places] == [("p", "a")]


def test_without_a_pending_pod_no_move_stays_on_its_node() -> None:
    """It would be placed again where it was."""
    assert advise(halves(), gpus=1).moves == ()


def gang(placement: Placement, count: int, topology: str = "", **asks: Any) -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(count)} | (
        {"kerf.dev/gang-topology": topology} if topology else {}
    )
    placement.facts(*(build.gpu_pod(f"g{i}", annotations=notes, **asks) for i in range(count)))


def test_members_of_a_gang_are_reported_together() -> None:
    """If one already fits, the moves are for the other."""
    placement = scattered().nodes("c", gpus=2)
    gang(placement, 2, gpus=2)
    advice = advise(placement, "g1")
    assert sorted((place.name, place.node) for place in advice.places) == [("g0", "c"), ("g1", "b")]
    assert [(m.name, m.target) for m in advice.moves] == [("cheap", "a")]
    assert (
        advice.sentence
        == "1 move would free enough capacity for 2 pods of gang g on b, c, for 60 disturbed GPU-seconds"
    )
    assert advice.node == ""


def test_for_a_gang_there_is_all_or_nothing() -> None:
    placement = scattered()
    gang(placement, 2, gpus=2)
    advice = advise(placement, "g0")
    assert (advice.moves, advice.places) == ((), ())
    assert advice.sentence == "no moves were found that would free enough capacity for 2 pods of gang g"


def test_a_gang_that_must_be_in_one_rack_gets_moves_that_free_one_rack() -> None:
    """Across racks it fits without any move."""
    placement = scattered().nodes("c", "d", gpus=2)
    for name, rack in (("a", "x"), ("c", "x"), ("b", "y"), ("d", "z")):
        placement.facts(build.node(name, labels={"topology.kubernetes.io/rack": rack}))
    gang(placement, 2, "required=rack", gpus=2)
    advice = advise(placement, "g0")
    assert sorted(place.node for place in advice.places) == ["a", "c"]
    assert [(m.name, m.target) for m in advice.moves] == [("dear", "b")]


def test_an_incomplete_gang_gets_that_reason() -> None:
    placement = scattered()
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    placement.facts(build.gpu_pod("g0", gpus=2, annotations=notes))
    answer = finish(questions.advise_(placement.core, AdviseQuery(namespace="team", name="g0"), NOW))
    assert "1 of 2 pods" in answer.error


def owned(placement: Placement, **owners: str) -> None:
    """These pods of `scattered` have controllers."""
    for state in list(placement.core.book.pods.values()):
        owner = OwnerReference(uid=owners.get(state.pod.metadata.name, ""), kind="Job", name="job", controller=True)
        if owner.uid:
            placement.facts(build.newer(state.pod, owner_references=(owner,)))


def carried_out(placement: Placement, **left_alone: Any) -> list[str]:
    """The pods that are named for execution."""
    placement.facts(build.gpu_pod("p", gpus=2))
    return [m.name for m in advise(placement, "p", for_plan=LeftAlone(**left_alone)).moves]


def test_only_pods_with_a_controller_are_named_for_execution() -> None:
    placement = scattered()
    owned(placement, dear="job-1")
    assert carried_out(placement) == ["dear"]


@pytest.mark.parametrize("left_alone", ["a pod", "its namespace"])
def test_pods_protected_after_a_recent_preemption_are_not_moved(left_alone: str) -> None:
    placement = scattered()
    owned(placement, dear="job-1", cheap="job-2")
    if left_alone == "its namespace":
        assert carried_out(placement, namespaces=("team",)) == []
    else:
        assert carried_out(placement, pods=(placement.core.book.uid_by_key["team/cheap"],)) == ["dear"]


def test_a_pod_within_its_guarantee_is_not_moved_if_policy_protects_it() -> None:
    placement = scattered()
    owned(placement, dear="job-1", cheap="job-2")
    placement.facts(build.queues("{queues: [{name: q}], within_guarantee_from: 0}"))
    advice = advise(placement, gpus=2)
    assert [m.name for m in advice.moves] == ["cheap"], "people may move it"
    placement.facts(build.gpu_pod("p", gpus=2, annotations={"kerf.dev/tier": "opportunistic"}))
    answer = advise(placement, "p", for_plan=LeftAlone())
    assert answer.moves == ()
    assert answer.kept == ("2 pods: within its queue's guarantee by policy",)


def placed(placement: Placement, pod: Pod) -> Pod | None:
    """The pod as it runs; None if it does not fit, and it has been removed again."""
    placement.facts(pod)
    if pod.metadata.uid in placement.binds():
        return placement.bind(pod)
    placement.gone(pod)
    return None


RUNNING = st.lists(
    st.tuples(
        st.sampled_from(({"gpus": 1}, {"gpus": 2}, {"memory": "30Gi"}, {"compute": 60})),
        st.integers(0, 5),
        st.booleans(),
    ),
    min_size=2,
    max_size=12,
)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), RUNNING, st.integers(1, 4), st.integers(1, 2))
def test_following_the_advice_frees_the_promised_capacity(shapes: list[int], pods: Any, gpus: int, groups: int) -> None:
    """Some pods end, so that free GPUs are scattered. The moves are made on the real core: all pods that move end, are
    recreated for their new nodes, and are placed there; then the promised number of groups fits."""
    placement = Placement()
    for i, size in enumerate(shapes):
        placement.nodes(f"n{i}", gpus=size)
    kept = {}
    for i, (ask, minutes, stays) in enumerate(pods):
        bound = placed(placement, build.gpu_pod(f"r{i}", **ask))
        if bound is None:
            continue
        if stays:
            kept[bound.metadata.name] = (bound, ask)
        else:
            end(placement, bound)
        placement.now += minutes
    advice = advise(placement, gpus=gpus, groups=groups)
    event(f"{len(advice.moves)} moves")
    assert advice.disturbed_gpu_seconds == sum(m.disturbed_gpu_seconds for m in advice.moves)
    assert len({m.name for m in advice.moves}) == len(advice.moves)
    for move in advice.moves:
        end(placement, kept[move.name][0])
    recreated = [
        build.gpu_pod(f"{m.name}-new", **kept[m.name][1], node_selector={"kubernetes.io/hostname": m.target})
        for m in advice.moves
    ]
    assert placement.place(*recreated) == {f"{m.name}-new": m.target for m in advice.moves}
    wanted = [build.gpu_pod(f"group{i}", gpus=gpus) for i in range(advice.places_after)]
    assert len(placement.place(*wanted)) == len(wanted)


SMALL = st.lists(
    st.tuples(
        st.sampled_from(({"gpus": 1}, {"memory": "30Gi"}, {"memory": "40Gi"}, {"compute": 40})),
        st.just(0),
        st.integers(0, 2).map(bool),
    ),
    min_size=6,
    max_size=16,
)


@settings(max_examples=150)
@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    SMALL,
    st.sampled_from(({"gpus": 2}, {"gpus": 3}, {"memory": "75Gi"}, {"compute": 90})),
)
def test_following_the_advice_for_a_pending_pod_places_it_as_advised(
    shapes: list[int], pods: Any, ask: dict[str, Any]
) -> None:
    """Moves to other GPUs of the same node are among them."""
    placement = Placement()
    for i, size in enumerate(shapes):
        placement.nodes(f"n{i}", gpus=size)
    kept = {}
    for i, (asked, _, stays) in enumerate(pods):
        bound = placed(placement, build.gpu_pod(f"r{i}", **asked))
        if bound is not None:
            kept[bound.metadata.name] = (bound, asked, stays)
    for bound, _, stays in kept.values():
        if not stays:
            end(placement, bound)
    waits = build.gpu_pod("waits", **ask)
    if placement.place(waits):
        event("it fits")
        return
    advice = advise(placement, "waits")
    event("same node" if any(m.source == m.target for m in advice.moves) else f"{len(advice.moves)} moves")
    for move in advice.moves:
        end(placement, kept[move.name][0])
    binds = placement.binds()
    assert [(place.name, binds[waits.metadata.uid].node) for place in advice.places] == [
        (place.name, place.node) for place in advice.places
    ]
    recreated = [
        build.gpu_pod(f"{m.name}-new", **kept[m.name][1], node_selector={"kubernetes.io/hostname": m.target})
        for m in advice.moves
    ]
    assert placement.place(*recreated) == {f"{m.name}-new": m.target for m in advice.moves}
