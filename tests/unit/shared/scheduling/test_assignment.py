"""Which GPUs of a node a pod gets, and by which strategy."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.book.book import Book
from shared.book.states import pod_state
from shared.model import names
from shared.model.gpu import Link, Nic
from shared.model.objects import Container, Pod, Resources
from shared.model.strategies import StrategyName
from shared.scheduling.assignment import assign, containers_on
from tests.support import build

SLICES: tuple[StrategyName, ...] = ("exclusive", "time_slice", "interposer", "driver", "mps")


@pytest.mark.parametrize(
    ("turns", "isolation", "offered", "expected"),
    [
        ("allowed", "", SLICES, "interposer"),
        ("allowed", "firm", SLICES, "interposer"),
        ("allowed", "hard", SLICES, "exclusive"),  # slices that keep it cannot be checkpointed
        ("allowed", "", ("exclusive", "driver", "mps"), "exclusive"),
        ("never", "", SLICES, "exclusive"),
        ("", "", SLICES, "exclusive"),
    ],
)
def test_whole_gpus_of_a_pod_that_takes_turns_are_slices_that_can_be_suspended(
    turns: str, isolation: str, offered: tuple[StrategyName, ...], expected: str
) -> None:
    book = Book()
    book.apply_snapshot(build.put(build.node("n")))
    book.put_inventory(build.inventory("n", gpus=2, strategies=offered))
    book.set_agent_trouble("n", "")
    notes = {names.ANNOTATION_TURNS: turns, names.ANNOTATION_ISOLATION: isolation}
    pod = build.pod(limits={"kerf.dev/gpu": "2"}, annotations={key: text for key, text in notes.items() if text})
    found = containers_on(pod_state(pod), book.nodes["n"])
    assert found is not None
    assert found["c"].strategy == expected
    total_mib = book.nodes["n"].gpus[0].total_mib
    assert [(share.memory_mib, share.compute_milli) for share in found["c"].gpus] == [(total_mib, 1000)] * 2


Size = tuple[int, int]
"""GiB of memory, percent of compute."""


def container(name: str, size: Size) -> Container:
    memory, compute = size
    limits = {names.RESOURCE_GPU_MEMORY: f"{memory}Gi", names.RESOURCE_GPU_COMPUTE: str(compute)}
    return Container(name=name, resources=Resources(limits=limits))


def with_free(free: list[Size]) -> Book:
    """A node with GPUs of 80 GiB that have so much left."""
    book = Book()
    book.apply_snapshot(build.put(build.node("n")))
    book.put_inventory(build.inventory("n", gpus=len(free), memory_mib=80 * 1024))
    book.set_agent_trouble("n", "")
    for room, (memory, compute) in zip(book.nodes["n"].gpus, free, strict=True):
        room.free_mib, room.free_milli = memory * 1024, compute * 10
    return book


def fits_somehow(free: list[Size], asked: list[Size]) -> bool:
    """By trying all ways."""
    return any(
        all(
            sum(asked[i][part] for i, at in enumerate(places) if at == gpu) <= free[gpu][part]
            for gpu in range(len(free))
            for part in (0, 1)
        )
        for places in product(range(len(free)), repeat=len(asked))
    )


def pod_of(asked: list[Size]) -> Pod:
    return build.pod(containers=tuple(container(f"c{i}", size) for i, size in enumerate(asked)))


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


@example(free=[(41, 52), (45, 34)], asked=[(15, 34), (2, 26), (37, 21)])
@example(free=[(40, 24), (49, 29)], asked=[(40, 4), (4, 21), (11, 9)])
@given(free=st.lists(SIZES, min_size=1, max_size=3), asked=st.lists(SIZES, min_size=1, max_size=3))
def test_containers_that_fit_in_some_way_get_their_gpus(free: list[Size], asked: list[Size]) -> None:
    book = with_free(free)
    found = assign(pod_state(pod_of(asked)), book.nodes["n"])
    assert (found is not None) == fits_somehow(free, asked)
    assert [(room.free_mib, room.free_milli) for room in book.nodes["n"].gpus] == [
        (memory * 1024, compute * 10) for memory, compute in free
    ], "nothing is taken"


CARDS = [{}, {names.ANNOTATION_NIC: "1"}]


@pytest.mark.parametrize("topology", ["numa", "required"])
@pytest.mark.parametrize("notes", CARDS)
def test_a_card_beside_the_gpus_is_a_preference_and_their_topology_is_not(topology: str, notes: dict[str, str]) -> None:
    """Two pairs of GPUs, with one card beside the first GPU of each."""
    links = (Link(a=0, b=1, p2p=True, nvlinks=12), Link(a=2, b=3, p2p=True, nvlinks=12))
    nics = tuple(
        Nic(name=f"nic{near}", verbs=f"uverbs{near}", pcie={i: "single" if i == near else "system" for i in range(4)})
        for near in (0, 2)
    )
    inventory = build.inventory("n", gpus=4, links=links, nics=nics)
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=gpu.index // 2) for gpu in inventory.gpus)
    book = Book()
    book.apply_snapshot(build.put(build.node("n")))
    book.put_inventory(msgspec.structs.replace(inventory, gpus=gpus))
    book.set_agent_trouble("n", "")
    pod = build.gpu_pod("p", gpus=2, annotations={names.ANNOTATION_TOPOLOGY: topology, **notes})
    found = assign(pod_state(pod), book.nodes["n"])
    assert found is not None
    places = sorted(book.nodes["n"].by_uuid[share.uuid].column for shares in found.values() for share in shares)
    assert places in ([0, 1], [2, 3])
