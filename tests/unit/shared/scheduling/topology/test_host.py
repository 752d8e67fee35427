"""Pods with `kerf.dev/topology: host`: which GPUs and which node they get, by measured bandwidth and NUMA nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.engine.node_classes import NodeClasses
from shared.model.gpu import Inventory
from shared.model.grant import decode_grant
from tests.support import build
from tests.support.harness.placement import Placement

HOST = {"kerf.dev/topology": "host"}
Link = tuple[int, int, int]
"""NUMA node, MB/s to the device, MB/s from it."""


def inventory(name: str, *links: Link, c2c: bool = False) -> Inventory:
    made = build.inventory(name, gpus=len(links))
    gpus = tuple(
        msgspec.structs.replace(gpu, numa_node=node, to_device_mb_s=to, from_device_mb_s=back, c2c=c2c)
        for gpu, (node, to, back) in zip(made.gpus, links, strict=True)
    )
    return msgspec.structs.replace(made, gpus=gpus)


def placed(placement: Placement, **request: Any) -> tuple[str, list[int]]:
    """The node, and the indices of the GPUs, of a pod that wants to be near its host."""
    placement.place(build.gpu_pod("p", annotations=HOST, **request))
    bind = placement.binds()["uid-team-p"]
    grant = decode_grant(bind.grant)
    return bind.node, sorted(int(s.uuid.rsplit("-", 1)[1]) for c in grant.containers.values() for s in c.gpus)


def cluster(*inventories: Inventory, **config: Any) -> Placement:
    placement = Placement(**config)
    for each in inventories:
        placement.facts(build.node(each.node))
        placement.send(m.InventorySeen(each))
    return placement


@pytest.mark.parametrize("policy", ["kerf", "binpack", "spread", "least-loaded-nearest"])
def test_the_fastest_link_wins_whatever_the_policy(policy: str) -> None:
    """The slower direction counts: the second GPU is fast in one direction alone."""
    links = ((0, 12000, 12000), (0, 55000, 11000), (1, 25000, 24000), (1, 12000, 12000))
    assert placed(cluster(inventory("n", *links), policy=policy), gpus=1) == ("n", [2])


def test_several_gpus_are_those_whose_slowest_link_is_fastest() -> None:
    links = ((0, 25000, 25000), (0, 12000, 12000), (1, 25000, 25000), (1, 12000, 12000))
    assert placed(cluster(inventory("n", *links)), gpus=2) == ("n", [0, 2])


def test_of_links_that_are_as_good_the_gpus_are_on_the_fewest_numa_nodes() -> None:
    """Figures within 5 % are one: measurements differ by more than that says."""
    links = ((0, 25000, 25000), (1, 24500, 24500), (0, 12000, 12000), (1, 24400, 24400))
    assert placed(cluster(inventory("n", *links)), gpus=2) == ("n", [1, 3])


def test_a_gpu_that_is_taken_is_none_of_them() -> None:
    placement = cluster(inventory("n", (0, 25000, 25000), (0, 12000, 12000)))
    placement.place(build.gpu_pod("first", gpus=1, annotations=HOST))
    assert placed(placement, gpus=1) == ("n", [1])


def test_slices_too_go_to_the_fastest_link() -> None:
    assert placed(cluster(inventory("n", (0, 12000, 12000), (0, 25000, 25000))), memory="1Gi") == ("n", [1])


def test_the_node_with_the_fastest_links_wins_over_the_fullest() -> None:
    slow, fast = inventory("a", *((0, 12000, 12000),) * 4), inventory("b", *((0, 55000, 54000),) * 4)
    placement = cluster(slow, fast)
    placement.place(build.gpu_pod("before", memory="1Gi", node_selector={"kubernetes.io/hostname": "a"}))
    assert placed(placement, memory="1Gi")[0] == "b"


@pytest.mark.parametrize(("torn", "whole"), ["ab", "ba"])
def test_of_equal_links_the_node_that_needs_fewer_numa_nodes_wins(torn: str, whole: str) -> None:
    one, other = (0, 25000, 25000), (1, 25000, 25000)
    assert placed(cluster(inventory(torn, one, other), inventory(whole, one, one)), gpus=2)[0] == whole


def test_what_was_not_measured_comes_last_and_c2c_first_of_it() -> None:
    assert placed(cluster(inventory("n", (0, 0, 0), (0, 3000, 3000))), gpus=1) == ("n", [1])
    mixed = inventory("n", (0, 0, 0), (0, 0, 0))
    mixed = msgspec.structs.replace(mixed, gpus=(mixed.gpus[0], msgspec.structs.replace(mixed.gpus[1], c2c=True)))
    assert placed(cluster(mixed), gpus=1) == ("n", [1])


def test_figures_of_their_own_do_not_make_nodes_a_class_of_their_own() -> None:
    """A thousand nodes of one kind stay one class, which is checked once."""
    placement = cluster(inventory("a", (0, 25011, 24890)), inventory("b", (0, 24973, 25102)))
    book = placement.core.book
    first, second = NodeClasses(book).by_row()[[book.nodes[name].row for name in "ab"]].tolist()
    assert first == second
