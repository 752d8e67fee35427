"""Each counterfactual helps, and each reason really prevents placement."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.explain.counterfactuals import changes
from services.placement.explain.diagnosis import Diagnosis
from services.placement.scheduling.trial import Trial
from shared.book.states import PodState
from shared.model.affinity import Toleration
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import TAINT, end, follow, run, why

NODES = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(1, 4),
            "model": st.sampled_from(("NVIDIA-H100", "Tesla-T4")),
            "memory_mib": st.sampled_from((16384, 81920)),
            "cpu": st.sampled_from(("2", "8")),
            "tainted": st.booleans(),
            "labelled": st.booleans(),
            "firm": st.booleans(),
        }
    ),
    min_size=1,
    max_size=4,
)
RUNNING = st.lists(
    st.sampled_from(({"gpus": 1}, {"gpus": 2}, {"memory": "10Gi"}, {"memory": "30Gi", "compute": 40}, {"compute": 70})),
    max_size=7,
)
WAITS = st.fixed_dictionaries(
    {
        "ask": st.sampled_from(
            (
                {"gpus": 1},
                {"gpus": 3},
                {"memory": "15Gi"},
                {"memory": "60Gi", "compute": 60},
                {"compute": 80},
                {"gpus": 2, "memory": "40Gi"},
            )
        ),
        "cpu": st.sampled_from(("500m", "3000m")),
        "model": st.sampled_from(("", "H100", "V100")),
        "isolation": st.sampled_from(("", "firm", "hard")),
        "selects": st.booleans(),
        "priority": st.sampled_from((0, 10)),
    }
)


def cluster(nodes: list[dict[str, Any]], running: list[dict[str, Any]]) -> Placement:
    placement = Placement()
    for i, node in enumerate(nodes):
        labels = {"zone": "here"} if node["labelled"] else {}
        placement.facts(build.node(f"n{i}", cpu=node["cpu"], taints=(TAINT,) if node["tainted"] else (), labels=labels))
        strategies = ("exclusive", "interposer", "advisory") if node["firm"] else ("exclusive", "advisory")
        placement.send(
            m.InventorySeen(
                build.inventory(
                    f"n{i}",
                    gpus=node["gpus"],
                    model=node["model"],
                    memory_mib=node["memory_mib"],
                    strategies=strategies,
                )
            )
        )
    for i, ask in enumerate(running):
        pod = build.gpu_pod(f"runs{i}", **ask, tolerations=(Toleration(operator="Exists"),))
        placement.facts(pod)
        if pod.metadata.uid in placement.binds():
            placement.bind(pod)
        else:
            placement.gone(pod)
    return placement


def waiting(wants: dict[str, Any]) -> Any:
    notes = {
        f"kerf.dev/{key}": value
        for key, value in (("gpu-model", wants["model"]), ("isolation", wants["isolation"]))
        if value
    }
    selector = {"zone": "here"} if wants["selects"] else {}
    return build.gpu_pod(
        "p",
        **wants["ask"],
        annotations=notes,
        priority=wants["priority"],
        node_selector=selector,
        requests={"cpu": wants["cpu"]},
    )


@settings(max_examples=250)
@given(NODES, RUNNING, WAITS)
def test_a_pod_that_is_rewritten_as_a_counterfactual_proposes_is_placed(nodes: Any, running: Any, wants: Any) -> None:
    placement = cluster(nodes, running)
    pod = waiting(wants)
    placement.facts(pod)
    if pod.metadata.uid in placement.binds():
        return
    for told in why(placement, "p").counterfactuals:
        event(told.code)
        if told.code == "move-pod":
            _moves(cluster(nodes, running), pod, told)
            continue
        again = cluster(nodes, running)
        recreated = follow(pod, told)
        assert again.place(recreated) == {"p-new": again.binds()[recreated.metadata.uid].node}, told


def _moves(placement: Placement, pod: Any, told: Any) -> None:
    """The other pod ends, the pod comes and is placed, and the other pod, recreated, is placed again."""
    (move,) = told.moves
    other = placement.core.book.pods[placement.core.book.uid_by_key[f"team/{move.name}"]].pod
    assert placement.core.book.pods[other.metadata.uid].charged == move.source
    assert other.spec.priority <= pod.spec.priority
    end(placement, other)
    assert placement.place(pod) == {"p": placement.binds()[pod.metadata.uid].node}
    spec = msgspec.structs.replace(other.spec, node_name="")
    recreated = type(other)(metadata=build.pod("moved").metadata, spec=spec)
    assert "moved" in placement.place(recreated)


_EXACT = ("taint", "node-selector", "gpu-model", "isolation", "less-cpu")


@settings(max_examples=150)
@given(NODES, RUNNING, WAITS)
def test_each_reason_falls_where_it_is_removed_and_takes_no_other_with_it(nodes: Any, running: Any, wants: Any) -> None:
    placement = cluster(nodes, running)
    placement.facts(waiting(wants))
    book = placement.core.book
    state = book.pods["uid-team-p"]
    for node in book.nodes.values():
        reasons = Diagnosis(state, book).of(node)
        for reason in reasons:
            changed = next((w.state for w in changes(state, reason, node) if w.code in _EXACT), None)
            if changed is not None:
                left = Diagnosis(changed, book).of(node)
            elif reason.code == "gpu-full":
                left = _emptied(placement, node.name, state)
            else:
                continue
            event(reason.code)
            assert reason not in left
            others = {r.code for r in reasons} - {reason.code} - ({"cpu"} if reason.code == "gpu-full" else set())
            assert others <= {r.code for r in left}


def _emptied(placement: Placement, node: str, state: PodState) -> tuple[Any, ...]:
    trial = Trial(placement.core.engine)
    for uid in list(trial.book.nodes[node].pods):
        trial.book.remove(uid)
    return Diagnosis(state, trial.book).of(trial.book.nodes[node])


def test_another_model_is_only_named_if_such_a_gpu_is_free() -> None:
    placement = Placement().nodes("full", gpus=1, model="Tesla-T4").nodes("free", gpus=1)
    run(placement, build.gpu_pod("holder", gpus=1, annotations={"kerf.dev/gpu-model": "T4"}))
    placement.facts(build.gpu_pod("p", gpus=1, annotations={"kerf.dev/gpu-model": "V100"}))
    assert why(placement, "p").helps == ("add NVIDIA-H100 to kerf.dev/gpu-model (free)",)


def test_the_least_change_is_named_wherever_it_helps() -> None:
    placement = Placement().nodes("a", gpus=2).nodes("b", gpus=3)
    placement.facts(build.gpu_pod("p", gpus=4))
    assert [(c.sentence, c.node) for c in why(placement, "p").counterfactuals] == [
        ("fits with 1 GPU less: ask for at most 3 GPUs", "b")
    ]


def test_a_pod_that_fits_nowhere_else_is_not_proposed_as_a_move() -> None:
    placement = Placement().nodes("a", gpus=2)
    run(placement, build.gpu_pod("pinned", gpus=1, node_selector={"kubernetes.io/hostname": "a"}))
    placement.nodes("b", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=2))
    assert [c.code for c in why(placement, "p").counterfactuals] == ["fewer-gpus"]


def test_a_pod_that_can_move_is_named_with_its_new_node_and_its_cost() -> None:
    placement = Placement().nodes("a", gpus=2)
    run(placement, build.gpu_pod("small", gpus=1), started_s_ago=600)
    placement.nodes("b", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=2))
    (told,) = (c for c in why(placement, "p").counterfactuals if c.code == "move-pod")
    assert told.sentence == "fits if team/small moves from a to b"
    assert (told.moves[0].target, told.moves[0].gpu_milli, told.moves[0].disturbed_gpu_seconds) == ("b", 1000, 600)


@pytest.mark.parametrize(
    "protected",
    [
        {"priority": 5},
        {"annotations": {"kerf.dev/min-runtime": "1h"}},
        {"annotations": {"kerf.dev/preemptible": "false"}},
        {"annotations": {"kerf.dev/gang": "g", "kerf.dev/gang-size": "1"}},
        {"annotations": {"karpenter.sh/do-not-disrupt": "true"}},
        {"annotations": {"karpenter.sh/do-not-disrupt": "20m"}},
        {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
    ],
    ids=["higher priority", "minimum run time", "not preemptible", "gang", "karpenter", "for a time", "autoscaler"],
)
def test_a_protected_pod_is_not_proposed_as_a_move(protected: Any) -> None:
    placement = Placement().nodes("a", gpus=2)
    run(placement, build.gpu_pod("small", gpus=1, **protected), started_s_ago=600)
    placement.nodes("b", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=2))
    assert [c.code for c in why(placement, "p").counterfactuals] == ["fewer-gpus"]


def test_a_pod_may_move_when_the_time_is_over_in_which_it_must_not_be_disrupted() -> None:
    placement = Placement().nodes("a", gpus=2)
    notes = {"karpenter.sh/do-not-disrupt": "5m"}
    run(placement, build.gpu_pod("small", gpus=1, annotations=notes), started_s_ago=600)
    placement.nodes("b", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=2))
    assert "move-pod" in [c.code for c in why(placement, "p").counterfactuals]


def test_less_of_a_gpus_memory_is_named_in_percent_where_the_pod_asks_in_percent() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("half", memory_percent=55))
    placement.facts(build.gpu_pod("p", memory_percent=60, compute=10))
    assert why(placement, "p").helps[0] == "fits with 15 % less of a GPU's memory: 45 % (a)"


def test_fewer_gpus_are_named_with_limits_that_leave_as_much_on_each() -> None:
    placement = Placement().nodes("a", gpus=3)
    run(placement, build.gpu_pod("one", gpus=1), build.gpu_pod("two", gpus=1), build.gpu_pod("slice", memory="50Gi"))
    placement.facts(build.gpu_pod("p", gpus=2, memory="40Gi"))
    assert why(placement, "p").helps[0] == "fits with 1 GPU less: ask for one GPU, kerf.dev/gpu-memory: 20480Mi (a)"
