"""Pods with GPU constraints: which kind, how they are linked, what they cost."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest

from bench.topologies import machines
from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from services.placement.scores.gpu_preference import cost_of, speed_of
from shared.contracts.explain import PodExplanation
from shared.contracts.queries import WhyQuery
from shared.model.gpu import Inventory, Link
from shared.model.grant import decode_grant
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement

MACHINES = machines()
VOLTA = "dgx1-v100-hybrid-cube-mesh"
KIND = {"model": "NVIDIA-H100", "compute_capability": "9.0", "memory_mib": 81_920}


def placement_with(**nodes: Inventory) -> Placement:
    placement = Placement()
    for name, inventory in nodes.items():
        add(placement, name, inventory)
    return placement


def add(placement: Placement, name: str, inventory: Inventory, **labels: str) -> None:
    placement.facts(
        build.node(
            name,
            labels={key.replace("_", "-").replace("kerf-dev-", "kerf.dev/"): value for key, value in labels.items()},
        )
    )
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"{name}-gpu-{gpu.index}") for gpu in inventory.gpus)
    placement.send(m.InventorySeen(msgspec.structs.replace(inventory, node=name, gpus=gpus)))


def of_kind(*, gpus: int = 1, **kind: object) -> Inventory:
    plain = build.inventory(gpus=gpus)
    return msgspec.structs.replace(
        plain, gpus=tuple(msgspec.structs.replace(gpu, **{**KIND, **kind}) for gpu in plain.gpus)
    )


def asking(name: str = "p", *, gpus: int = 1, **annotations: str) -> Pod:
    return build.gpu_pod(
        name, gpus=gpus, annotations={f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    )


def why(placement: Placement, pod: Pod) -> PodExplanation:
    placement.facts(pod)
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name=pod.metadata.name), 0.0, 0.0))
    assert answer.explanation is not None
    return answer.explanation


def indices(placement: Placement, name: str) -> list[int]:
    grant = decode_grant(placement.binds()[f"uid-team-{name}"].grant)
    return sorted(
        int(share.uuid.rsplit("-", 1)[1]) for container in grant.containers.values() for share in container.gpus
    )


# --- kinds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "code", "helps"),
    [
        ({"gpu_model": "A100|V100"}, "gpu-model", "add NVIDIA-H100 to kerf.dev/gpu-model"),
        ({"gpu_model_not": "H100"}, "gpu-model-not", "shorten kerf.dev/gpu-model-not"),
        ({"gpu_generation": "Ampere|ada"}, "gpu-generation", "add Hopper to kerf.dev/gpu-generation"),
        ({"gpu_capability_min": "10.0"}, "gpu-capability", "lower kerf.dev/gpu-capability-min to 9.0"),
        ({"gpu_memory_min": "100Gi"}, "gpu-memory-min", "lower kerf.dev/gpu-memory-min to 81920Mi"),
        ({"gpu_uuid": "GPU-elsewhere"}, "gpu-uuid", "drop kerf.dev/gpu-uuid"),
        ({"gpu_uuid_not": "n-gpu-0"}, "gpu-uuid-not", "drop kerf.dev/gpu-uuid-not"),
    ],
)
def test_a_gpu_of_another_kind_is_refused_by_name_with_what_would_help(
    wish: dict[str, str], code: str, helps: str
) -> None:
    explanation = why(placement_with(n=of_kind()), asking(**wish))
    assert [reason.code for reason in explanation.summary] == [code]
    assert explanation.helps == (f"{helps} (n)",)


@pytest.mark.parametrize(
    "wish",
    [
        {"gpu_model": "h100"},
        {"gpu_model_not": "H10|A100"},
        {"gpu_generation": "hopper|Blackwell"},
        {"gpu_capability_min": "9.0"},
        {"gpu_memory_min": "80Gi"},
        {"gpu_uuid": "x|n-gpu-0"},
        {"gpu_uuid_not": "x"},
    ],
)
def test_a_pod_gets_a_gpu_of_the_requested_kind(wish: dict[str, str]) -> None:
    assert placement_with(n=of_kind()).place(asking(**wish)) == {"p": "n"}


def test_of_a_mixed_node_only_the_gpus_that_a_pod_accepts_are_given_and_counted() -> None:
    old, new = of_kind(gpus=4), of_kind(gpus=4, model="NVIDIA-A100", compute_capability="8.0")
    placement = placement_with(n=msgspec.structs.replace(old, gpus=(*new.gpus[:2], *old.gpus[2:])))
    assert placement.place(asking("two", gpus=2, gpu_generation="Hopper")) == {"two": "n"}
    assert indices(placement, "two") == [2, 3]
    explanation = why(placement, asking("three", gpus=3, gpu_generation="Ampere"))
    assert explanation.summary[0].sentence == "needs 3 GPUs on one node, the node has such 2"


def test_an_unknown_capability_is_of_no_generation() -> None:
    explanation = why(placement_with(n=of_kind(compute_capability="")), asking(gpu_generation="Hopper"))
    assert (
        explanation.summary[0].sentence == "the node has NVIDIA-H100 of an unknown generation, the pod accepts Hopper"
    )


# --- links ------------------------------------------------------------------------------------------------------


def test_two_gpus_of_a_pod_have_the_strongest_link_that_is_free() -> None:
    placement = placement_with(n=MACHINES[VOLTA])
    for name in ("a", "b", "c", "d"):
        placement.place(asking(name, gpus=2))
    links = {(link.a, link.b): link.nvlinks for link in MACHINES[VOLTA].links}
    assert [links[tuple(indices(placement, name))] for name in ("a", "b", "c", "d")] == [2, 2, 2, 2]  # type: ignore[index]


def test_a_single_gpu_and_a_slice_leave_pairs_to_pods_that_need_them() -> None:
    placement = placement_with(n=MACHINES["4xa100-pcie-nvbridge"])
    placement.place(asking("first"))
    placement.place(build.gpu_pod("slice", memory="10Gi"))
    placement.place(asking("pair", gpus=2))
    assert (indices(placement, "first"), indices(placement, "slice"), indices(placement, "pair")) == ([0], [1], [2, 3])


@pytest.mark.parametrize(("mode", "chosen"), [({}, [0, 1, 3]), ({"topology_mode": "ring"}, [0, 2, 3])])
def test_the_mode_ring_chooses_by_rings_under_a_policy_that_chooses_by_nearness(
    mode: dict[str, str], chosen: list[int]
) -> None:
    placement = placement_with(n=MACHINES[VOLTA])
    placement.place(asking("three", gpus=3, policy="least-loaded-nearest", **mode))
    assert indices(placement, "three") == chosen


def test_gpus_of_one_numa_node_are_demanded_and_missed_by_name() -> None:
    """Two of four are on each node; the policy alone would take the fullest GPUs, wherever they are."""
    made = of_kind(gpus=4)
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=gpu.index % 2) for gpu in made.gpus)
    placement = placement_with(n=msgspec.structs.replace(made, gpus=gpus))
    never = why(placement, asking("three", gpus=3, topology="numa"))
    assert [(r.code, r.sentence) for r in never.summary] == [
        (
            "numa-nodes",
            "needs 3 GPUs on one NUMA node, on the node at most 2 are (GPU 0 and GPU 1 are on different ones)",
        )
    ]
    placement.place(asking("one", gpu_uuid="n-gpu-0"))
    placement.place(asking("pair", gpus=2, topology="numa"))
    assert indices(placement, "pair") == [1, 3]


def test_missing_peers_are_distinguished_from_peers_in_use() -> None:
    halves = tuple(Link(a=a, b=b, p2p=(a < 2) == (b < 2)) for a, b in combinations(range(4), 2))
    placement = placement_with(n=msgspec.structs.replace(of_kind(gpus=4), links=halves))
    never = why(placement, asking("three", gpus=3, topology="required"))
    assert [(r.code, r.sentence) for r in never.summary] == [
        (
            "no-peer-access",
            "needs 3 GPUs that all reach each other peer to peer, on the node at most 2 do (GPU 0 does not "
            "reach GPU 2)",
        )
    ]
    placement.place(asking("one"), asking("other", gpu_uuid="n-gpu-3"))
    now = why(placement, asking("two", gpus=2, topology="required"))
    assert (
        now.summary[0].sentence
        == "needs 2 GPUs that all reach each other peer to peer, of the 2 that fit at most 1 do (GPU 1 does not "
        "reach GPU 2)"
    )
    assert now.helps == ("drop kerf.dev/topology: required (n)", "fits with 1 GPU less: ask for one GPU (n)")
    assert placement.place(asking("loose", gpus=2)) == {"loose": "n"}


def test_a_pod_that_prefers_topology_goes_to_the_node_with_the_strongest_ring() -> None:
    placement = placement_with(a_pcie=MACHINES["8xpcie-pix-node-sys"], b_nvswitch=MACHINES["hgx-h200-8gpu"])
    assert placement.place(asking(gpus=4, topology="preferred")) == {"p": "b_nvswitch"}


def test_among_equal_machines_several_gpus_go_where_their_links_are_intact() -> None:
    """On the fragmented one GPUs 0 and 2 are taken: the remaining GPUs of both pairs are far apart."""
    bridged = MACHINES["4xa100-pcie-nvbridge"]
    placement = placement_with(fragmented=bridged, whole=bridged)
    placement.place(
        asking("x", gpu_uuid="fragmented-gpu-0"),
        asking("y", gpu_uuid="fragmented-gpu-2"),
        asking("z", gpu_uuid="whole-gpu-0"),
        asking("w", gpu_uuid="whole-gpu-1"),
    )
    assert placement.place(asking("pair", gpus=2)) == {"pair": "whole"}


# --- cost and speed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefer", "node"), [("speed", "hopper"), ("cost", "turing")])
def test_without_figures_of_an_operator_the_data_sheets_decide(prefer: str, node: str) -> None:
    placement = placement_with(hopper=of_kind(), turing=of_kind(model="Tesla-T4"))
    assert placement.place(asking(gpu_prefer=prefer)) == {"p": node}


def test_an_operators_price_takes_precedence_over_the_data_sheets() -> None:
    placement = Placement()
    add(placement, "spot-hopper", of_kind(), kerf_dev_gpu_cost="0.10")
    add(placement, "turing", of_kind(model="Tesla-T4"), kerf_dev_gpu_cost="0.35")
    assert placement.place(asking(gpu_prefer="cost")) == {"p": "spot-hopper"}


def test_a_price_that_is_no_number_counts_as_none() -> None:
    placement = Placement()
    for name, price in (("words", "cheap"), ("negative", "-1"), ("endless", "inf")):
        add(placement, name, of_kind(), kerf_dev_gpu_cost=price, kerf_dev_gpu_speed=price)
    nodes = placement.core.book.nodes
    assert {(cost_of(nodes[n]), speed_of(nodes[n])) for n in ("words", "negative", "endless")} == {(989 / 400, 989.0)}


def test_an_unknown_model_is_preferred_by_no_pod() -> None:
    for prefer in ("cost", "speed"):
        placement = placement_with(a_new=of_kind(model="NVIDIA-X1"), known=of_kind())
        assert placement.place(asking(gpu_prefer=prefer)) == {"p": "known"}
