"""The CPUs and memory nodes of a container with GPUs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.handover.nri.affinity import (
    Allowed,
    Confined,
    Numbers,
    Outcome,
    Promise,
    bind_memory,
    numbers,
    place,
)
from shared.model.gpu import Gpu

GIB = 1 << 30
TWO_SOCKETS = Allowed(cpus=frozenset(range(8)), mems=frozenset({0, 1}), node_bytes={0: 4 * GIB, 1: 4 * GIB})


def gpu(cpus: str, numa_node: int = -1, *, c2c: bool = False) -> Gpu:
    return Gpu(uuid=f"GPU-{cpus}", index=0, model="H100", memory_mib=1, cpus=cpus, numa_node=numa_node, c2c=c2c)


def confined(cpus: str, milli: int, mems: str = "", memory: int = 0) -> Confined:
    return Confined(promise=Promise(cpu_milli=milli, memory_bytes=memory), cpus=numbers(cpus), mems=numbers(mems))


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-1\n", {0, 1}), ("0-1,64-65", {0, 1, 64, 65})],
)
def test_cpu_lists_are_parsed_as_the_kernel_writes_them(text: str, found: set[int]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize("text", ["0-99999999999", "3-1", "-1", "x", "9" * 5000], ids=lambda text: text[:20])
def test_a_list_of_numbers_that_no_cpu_has_is_refused(text: str) -> None:
    """The first one would fill the agent's memory."""
    with pytest.raises(ValueError, match=r"numbers from 0|invalid literal|integer string"):
        numbers(text)


@pytest.mark.parametrize(
    ("gpus", "milli", "others", "found"),
    [
        ([gpu("0-3")], 0, [], "0-3"),
        ([gpu("0-3")], 4000, [], "0-3"),
        ([gpu("0-1"), gpu("4-5")], 0, [], "0-1,4-5"),
        ([gpu("0-3"), gpu("4-7")], 0, [], "whole-node"),
        ([gpu("6-20")], 2000, [], "6-7"),
        ([gpu("0-3")], 4001, [], "too-few-cpus"),
        ([gpu("")], 0, [], "not-known"),
        ([gpu("0-3"), gpu("")], 0, [], "not-known"),
        ([gpu("64-95")], 0, [], "not-known"),
        ([gpu("0-3")], 2000, [confined("0-3", 2000)], "0-3"),
        ([gpu("0-3")], 2001, [confined("0-3", 2000)], "cpus-promised"),
        ([gpu("0-3")], 2001, [confined("4-7", 2000)], "0-3"),
        ([gpu("0-3")], 2001, [confined("0-1,4-5", 2000)], "cpus-promised"),
        ([gpu("0-3")], 2001, [confined("0-7", 7000)], "0-3"),  # resized once, and then unconfined
    ],
)
def test_a_container_is_confined_only_if_no_container_loses_by_it(
    gpus: list[Gpu], milli: int, others: list[Confined], found: str | Outcome
) -> None:
    placed = place(gpus, Promise(cpu_milli=milli), TWO_SOCKETS, others)
    if isinstance(placed, Confined):
        assert placed.cpus == numbers(found)
        assert placed.mems == frozenset()
    else:
        assert placed == found


sets = st.sampled_from(["0-1", "2-3", "4-5", "0-3", "2-5", "0-1,4-5"])


@given(st.lists(st.tuples(sets, st.integers(0, 2500), st.integers(0, 8)), max_size=12))
def test_every_confined_container_can_get_its_promise(story: list[tuple[str, int, int]]) -> None:
    """In any order of starts and ends, no set of CPUs is promised more than it has to the containers confined to it
    (Hall)."""
    allowed, lives = Allowed(cpus=frozenset(range(8)), mems=frozenset({0})), list[Confined]()
    for cpus, milli, leaves in story:
        if leaves < len(lives):
            lives.pop(leaves)
        placed = place([gpu(cpus)], Promise(cpu_milli=milli), allowed, lives)
        if isinstance(placed, Confined):
            lives.append(placed)
        for size in range(len(lives)):
            for some in itertools.combinations(lives, size + 1):
                together: Numbers = frozenset().union(*(one.cpus for one in some))
                assert sum(one.promise.cpu_milli for one in some) <= 1000 * len(together)


@pytest.mark.parametrize(
    ("gpus", "memory", "others", "mems"),
    [
        ([gpu("0-3", 0)], 4 * GIB, [], {0}),
        ([gpu("0-3", 0)], 4 * GIB + 1, [], set()),
        ([gpu("0-3", 0)], 0, [], set()),
        ([gpu("0-3")], GIB, [], set()),
        ([gpu("0-3", 0, c2c=True)], GIB, [], set()),
        ([gpu("0-3", 0), gpu("0-3", 1)], GIB, [], set()),
        ([gpu("0-3", 0)], 2 * GIB, [confined("0-3", 0, "0", 2 * GIB)], {0}),
        ([gpu("0-3", 0)], 2 * GIB, [confined("0-3", 0, "0", 3 * GIB)], set()),
        ([gpu("0-3", 0)], 2 * GIB, [confined("0-3", 0, "1", 3 * GIB)], {0}),
        ([gpu("0-3", 0)], 2 * GIB, [confined("0-3", 0, "", 3 * GIB)], {0}),
        ([gpu("0-3", 0)], 2 * GIB, [confined("0-7", 0, "0-1", 3 * GIB)], {0}),
    ],
)
def test_memory_is_bound_if_all_limits_fit_into_the_nodes(
    gpus: list[Gpu], memory: int, others: list[Confined], mems: set[int]
) -> None:
    placed = confined("0-3", 0, memory=memory)
    assert bind_memory(placed, gpus, TWO_SOCKETS, others).mems == mems
