"""The device nodes of network cards in a container.

The RDMA shared device plugin mounts all character devices of a card, and demands uverbs, umad and rdma_cm of each
(Mellanox/k8s-rdma-shared-dev-plugin, pkg/resources/rdma_device_spec.go). Kerf hands over what verbs need.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.cdi import rdma
from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits
from shared.model.gpu import Nic
from tests.unit.services.node_agent.cdi.hosts import FakeHost

CARDS = {
    name: Nic(name=name, verbs=verbs) for name, verbs in (("mlx5_0", "uverbs0"), ("mlx5_3", "uverbs2"), ("eth0", ""))
}


def host(root: Path) -> Host:
    fake = FakeHost(root)
    for name in ("uverbs0", "uverbs1", "uverbs2", "umad0", "umad2", "issm0", "rdma_cm"):
        fake.put(f"dev/infiniband/{name}")
    return Host(root=root)


def test_a_container_has_the_verbs_of_its_cards_and_nothing_that_manages_the_fabric(tmp_path: Path) -> None:
    found = rdma.edits(host(tmp_path), ("mlx5_0", "mlx5_3"), CARDS)
    assert [(node.path, node.permissions) for node in found.device_nodes] == [
        ("/dev/infiniband/uverbs0", "rw"),
        ("/dev/infiniband/uverbs2", "rw"),
        ("/dev/infiniband/rdma_cm", "rw"),
    ]
    assert found.env == ("KERF_NICS=mlx5_0,mlx5_3",)


def test_without_cards_nothing_is_added(tmp_path: Path) -> None:
    assert rdma.edits(host(tmp_path), (), CARDS) == ContainerEdits()


def test_rdma_cm_may_be_missing(tmp_path: Path) -> None:
    there = host(tmp_path)
    (tmp_path / "dev/infiniband/rdma_cm").unlink()
    assert [node.path for node in rdma.edits(there, ("mlx5_0",), CARDS).device_nodes] == ["/dev/infiniband/uverbs0"]


@pytest.mark.parametrize(("name", "says"), [("mlx5_9", "is not there"), ("eth0", "no active port")])
def test_a_card_that_cannot_be_handed_over_is_named(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rdma.edits(host(tmp_path), (name,), CARDS)


def test_a_missing_device_node_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    there = host(tmp_path)
    (tmp_path / "dev/infiniband/uverbs2").unlink()
    with pytest.raises(ValueError, match=r"no device node /dev/infiniband/uverbs2 .* ib_uverbs"):
        rdma.edits(there, ("mlx5_3",), CARDS)
