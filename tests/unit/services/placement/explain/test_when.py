"""When a waiting pod could start, by the ends that are known."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from shared.contracts.queries import WhenQuery
from shared.model.affinity import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import NOW, end, run, when, why


def lasting(name: str, seconds: int | None = None, *, deadline: int | None = None, **ask: Any) -> Any:
    notes = {} if seconds is None else {"kerf.dev/expected-duration": f"{seconds}s"}
    return build.gpu_pod(name, annotations=notes, active_deadline_seconds=deadline, **ask)


def test_the_first_end_that_lets_the_pod_fit_is_named_with_its_assumptions() -> None:
    placement = Placement().nodes("a", gpus=2)
    run(placement, lasting("long", 7200, gpus=1), lasting("short", deadline=1800, gpus=1), started_s_ago=600)
    placement.facts(build.gpu_pod("p", gpus=1))
    answer = when(placement, "p")
    assert (answer.state, answer.in_s, answer.node) == ("known", 1200, "a")
    assert [(e.name, e.by) for e in answer.counts_on] == [("short", "deadline")]
    assert answer.sentence == "in 20 min at the earliest, on a, when team/short has ended"
    assert "pods run until their activeDeadlineSeconds, not longer and not shorter" in answer.assumptions


def test_ends_that_are_not_needed_are_not_assumed() -> None:
    placement = Placement().nodes("a", gpus=3)
    run(
        placement,
        lasting("slice", 60, memory="10Gi"),
        lasting("one", 300, gpus=1),
        lasting("two", 600, gpus=1),
        started_s_ago=0,
    )
    placement.facts(build.gpu_pod("p", gpus=2))
    answer = when(placement, "p")
    assert (answer.in_s, [e.name for e in answer.counts_on]) == (300, ["slice", "one"])
    placement.facts(build.gpu_pod("q", gpus=1))
    assert [e.name for e in when(placement, "q").counts_on] == ["slice"]


def test_an_unknown_time_is_reported_as_unknown() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, lasting("forever", gpus=1))
    placement.facts(build.gpu_pod("p", gpus=1))
    answer = when(placement, "p")
    assert (answer.state, answer.without_end) == ("unknown", 1)
    assert "1 pods with GPUs say nothing of their end, and are taken to run on" in answer.assumptions


def test_pods_past_their_expected_end_give_no_estimate() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, lasting("late", 60, gpus=1), started_s_ago=600)
    placement.facts(build.gpu_pod("p", gpus=1))
    assert when(placement, "p").state == "unknown"


def test_a_pod_that_other_pods_exclude_gets_no_estimate() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, lasting("short", 600, gpus=1))
    other = build.pod("other", labels={"app": "x"}, node_selector={"kubernetes.io/hostname": "a"})
    run(placement, other)
    term = PodAffinityTerm(
        topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "x"})
    )
    away = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,)))
    placement.facts(build.gpu_pod("p", gpus=1, affinity=away))
    answer = when(placement, "p")
    assert answer.state == "unknown"
    assert answer.sentence.startswith("not by known ends alone")


def test_kerf_when_answers_an_error_for_a_pod_that_is_not_pending() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("p", gpus=1))
    error = finish(questions.when_(placement.core, WhenQuery(namespace="team", name="p"), NOW)).error
    assert error == "pod team/p does not wait for a place; `kerf why` says how it stands"


ENDS = st.lists(
    st.tuples(
        st.sampled_from(({"gpus": 1}, {"gpus": 2}, {"memory": "30Gi"}, {"compute": 60})),
        st.one_of(st.none(), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    ENDS,
    st.sampled_from(({"gpus": 1}, {"gpus": 2}, {"memory": "70Gi"})),
)
def test_the_time_is_the_first_at_which_the_leader_places_it(shapes: list[int], pods: Any, ask: Any) -> None:
    """The pods end one after another on the real core; the pending one is placed at the predicted time, and not
    earlier."""
    placement = Placement()
    for i, gpus in enumerate(shapes):
        placement.nodes(f"n{i}", gpus=gpus)
    ends = []
    for i, (size, tenths) in enumerate(pods):
        pod = lasting(f"r{i}", None if tenths is None else tenths * 60, **size)
        placement.facts(pod)
        if pod.metadata.uid in placement.binds():
            bound = placement.bind(pod)
            if tenths is not None:
                ends.append((tenths * 60, bound))
        else:
            placement.gone(pod)
    waits = build.gpu_pod("p", **ask)
    placement.facts(waits)
    if waits.metadata.uid in placement.binds():
        return
    answer = when(placement, "p")
    at = None
    for seconds in sorted({s for s, _ in ends}):
        for s, pod in ends:
            if s == seconds:
                end(placement, pod)
        if at is None and waits.metadata.uid in placement.binds():
            at = seconds
    assert (answer.state, answer.in_s) == (("known", at) if at is not None else ("unknown", 0))


def test_no_gpu_is_named_of_which_the_pod_would_take_more_than_its_quota() -> None:
    """A slice of 40 GiB is all of the small GPU, and half of the large one."""
    placement = Placement()
    for name, memory_mib in (("small", 40_960), ("large", 81_920)):
        placement.facts(build.node(name))
        placement.send(m.InventorySeen(build.inventory(name, gpus=1, memory_mib=memory_mib)))
    placement.facts(build.queues("queues: [{name: team, limit: {gpus: 0.5}}, {name: other}]"))
    notes = {"kerf.dev/expected-duration": "600s"}
    selects = {"node_selector": {"kubernetes.io/hostname": "large"}, "labels": {"kerf.dev/queue": "other"}}
    run(placement, build.gpu_pod("runs", annotations=notes, gpus=1, **selects), started_s_ago=0)
    placement.facts(build.gpu_pod("p", memory="40Gi", labels={"kerf.dev/queue": "team"}))
    answer = when(placement, "p")
    assert (answer.state, answer.in_s, answer.node) == ("known", 600, "large")
    said = why(placement, "p").sentence
    assert "the pod asks for 1 GPU on the GPUs that have room. What would help: wait for a larger GPU" in said


def test_slices_that_are_not_given_back_yet_are_told() -> None:
    placement = Placement().nodes("a", gpus=1)
    (runs,) = run(placement, lasting("runs", gpus=1))
    placement.facts(build.gpu_pod("p", gpus=1))
    placement.gone(runs)
    assert when(placement, "p").sentence.endswith(
        "; slices of pods that are gone, which their nodes have yet to give back: 1"
    )
