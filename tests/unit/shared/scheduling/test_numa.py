"""CPUs counted by NUMA node: of equal GPUs a pod gets one beside enough CPUs, and never a worse GPU for them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from shared.book.fork import Fork
from shared.model.gpu import Inventory, Link
from shared.model.grant import decode_grant
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import end, run

NVLINKS = (Link(a=0, b=1, nvlinks=12, pcie="node"), Link(a=2, b=3, nvlinks=12, pcie="node"))


def inventory(cpus: tuple[str, str] = ("0-7", "8-15"), links: tuple[Link, ...] = ()) -> Inventory:
    """Four GPUs, two on each of two NUMA nodes with these CPUs."""
    made = build.inventory("n", gpus=4, links=links)
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=gpu.index // 2, cpus=cpus[gpu.index // 2]) for gpu in made.gpus)
    return msgspec.structs.replace(made, gpus=gpus)


def cluster(seen: Inventory | None = None, **config: Any) -> Placement:
    placement = Placement(**config)
    placement.facts(build.node("n", cpu="16"))
    placement.send(m.InventorySeen(seen or inventory()))
    return placement


def pod(name: str, cpu: str, **request: Any) -> Pod:
    return build.gpu_pod(name, requests={"cpu": cpu}, **(request or {"gpus": 1}))


def resized(bound: Pod, cpu: str) -> Pod:
    """The pod as seen after its CPU request was changed."""
    (container,) = bound.spec.containers
    resources = msgspec.structs.replace(container.resources, requests={**container.resources.requests, "cpu": cpu})
    spec = msgspec.structs.replace(bound.spec, containers=(msgspec.structs.replace(container, resources=resources),))
    return msgspec.structs.replace(build.newer(bound), spec=spec)


def gpus_of(placement: Placement, name: str) -> list[int]:
    grant = decode_grant(placement.binds()[f"uid-team-{name}"].grant)
    return sorted(int(share.uuid.rsplit("-", 1)[1]) for part in grant.containers.values() for share in part.gpus)


@pytest.mark.parametrize("policy", ["kerf", "binpack", "spread"])
def test_the_second_pod_with_many_cpus_goes_beside_the_other_socket(policy: str) -> None:
    placement = cluster(policy=policy)
    placement.place(pod("a", "6"), pod("b", "6"))
    assert {gpus_of(placement, name)[0] // 2 for name in "ab"} == {0, 1}


def test_pods_whose_cpus_fit_side_by_side_stay_on_one_numa_node() -> None:
    placement = cluster()
    placement.place(pod("a", "4"), pod("b", "4"))
    assert [gpus_of(placement, name) for name in "ab"] == [[0], [1]]


def test_cpus_come_back_with_the_pod() -> None:
    placement = cluster()
    (first,) = run(placement, pod("a", "6"))
    end(placement, first)
    placement.place(pod("b", "6"))
    assert gpus_of(placement, "b") == gpus_of(placement, "a") == [0]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_counted_follows_the_pods_and_their_node(seed: int) -> None:
    """Pods come, go and are resized at random, and the GPUs are reported on other NUMA nodes: the harness compares what
    is counted with what the pods request after each input."""
    rng = random.Random(seed)
    placement = cluster()
    alive: list[Pod] = []
    most = 0
    for number in range(50):
        deed = rng.random()
        if alive and deed < 0.3:
            end(placement, alive.pop(rng.randrange(len(alive))))
        elif alive and deed < 0.4:
            at = rng.randrange(len(alive))
            alive[at] = resized(alive[at], "3")
            placement.facts(alive[at])
        elif deed < 0.5:
            places = rng.choice(((0, 0, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0), (2, -1, 0, 1)))
            gpus = zip(inventory().gpus, places, strict=True)
            moved = tuple(msgspec.structs.replace(gpu, numa_node=place) for gpu, place in gpus)
            placement.send(m.InventorySeen(msgspec.structs.replace(inventory(), gpus=moved)))
        else:
            request = rng.choice(({"gpus": 1}, {"gpus": 2}, {"memory": "9Gi"}))
            made = pod(f"p{number}", str(rng.randint(1, 4)), **request)
            if made.metadata.name in placement.place(made):
                alive.append(placement.bind(made))
        most = max(most, sum(placement.core.book.nodes["n"].cpus.taken_milli.values()))
    assert most > 0


def test_a_fork_counts_for_itself() -> None:
    placement = cluster()
    (first,) = run(placement, pod("a", "6"))
    node = placement.core.book.nodes["n"]
    fork = Fork(placement.core.book)
    fork.lift(first.metadata.uid)
    assert (fork.nodes["n"].cpus.taken_milli, node.cpus.taken_milli) == ({0: 0}, {0: 6000})


def test_a_pod_on_several_numa_nodes_takes_the_same_part_of_each() -> None:
    """Twelve CPUs of a pod with a GPU on each side: six and six, so two are left on each, and five nowhere."""
    placement = cluster()
    placement.place(
        build.gpu_pod("wide", gpus=2, requests={"cpu": "12"}, annotations={"kerf.dev/gpu-uuid": "n-gpu-0|n-gpu-2"})
    )
    assert gpus_of(placement, "wide") == [0, 2]
    placement.place(pod("fits", "2"), pod("not", "2"))
    assert {gpus_of(placement, "fits")[0], gpus_of(placement, "not")[0]} == {1, 3}


def test_a_whole_pair_is_worth_more_than_cpus() -> None:
    """GPU 1 is what is left of a pair; GPU 2 beside free CPUs would break the other one."""
    placement = cluster(inventory(links=NVLINKS))
    placement.place(pod("a", "7"), pod("b", "7"))
    assert [gpus_of(placement, name) for name in "ab"] == [[0], [1]]


def test_of_equal_pairs_the_one_beside_enough_cpus_is_taken() -> None:
    """Two pairs on each side. The second pod leaves a pair on each, which are worth as much as two on one side."""
    made = build.inventory("n", gpus=8, links=tuple(Link(a=i, b=i + 1, nvlinks=12, pcie="node") for i in (0, 2, 4, 6)))
    cpus = ("0-7", "8-15")
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=gpu.index // 4, cpus=cpus[gpu.index // 4]) for gpu in made.gpus)
    placement = cluster(msgspec.structs.replace(made, gpus=gpus))
    placement.place(pod("a", "6", gpus=2), pod("b", "6", gpus=2), pod("c", "1", gpus=2))
    assert [gpus_of(placement, name) for name in "abc"] == [[0, 1], [4, 5], [2, 3]]


def test_where_no_numa_node_has_enough_cpus_nothing_is_preferred() -> None:
    placement = cluster()
    placement.place(pod("a", "12"))
    assert gpus_of(placement, "a") == [0]


@pytest.mark.parametrize("cpus", [("", ""), ("0-7", "")])
def test_where_the_agent_knows_no_cpus_nothing_is_preferred(cpus: tuple[str, str]) -> None:
    placement = cluster(inventory(cpus))
    placement.place(pod("a", "6"), pod("b", "6"))
    assert [gpus_of(placement, name) for name in "ab"] == [[0], [1]]


def test_shared_gpus_in_the_same_state_are_told_apart_by_cpus() -> None:
    """One slice is on each GPU, and a second one on the first: GPU 1 is next by its place, and has no CPUs left."""
    placement = cluster(policy="spread")
    placement.place(*(pod(f"first{i}", "1", memory="1Gi") for i in range(4)))
    placement.place(pod("much", "5", memory="1Gi"), pod("more", "5", memory="1Gi"))
    assert [gpus_of(placement, name) for name in ("much", "more")] == [[0], [2]]


def test_lists_of_cpus_are_counted() -> None:
    """Sixteen threads in two runs beside the first socket: eight would not do for both."""
    placement = cluster(inventory(("0-3,16-27", "8-15")))
    placement.place(pod("a", "8"), pod("b", "8"))
    assert [gpus_of(placement, name) for name in "ab"] == [[0], [1]]
    other = cluster(inventory(("0-3,16-19", "8-15")))
    other.place(pod("a", "8"), pod("b", "8"))
    assert [gpus_of(other, name) for name in "ab"] == [[0], [2]]
