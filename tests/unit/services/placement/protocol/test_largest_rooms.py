"""What a full node denies its suspended pods at once, and that it does so only while it is full."""

from __future__ import annotations

import pytest

from services.placement.protocol.largest_rooms import LargestRooms
from shared.book.book import Book
from shared.contracts.facts import Put
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import SuspendAction, Suspension
from tests.support import build

TOTAL_MIB = 81_920


class Node:
    """Two GPUs; slices of them are named by their share in quarters."""

    def __init__(self) -> None:
        self.book = Book()
        self.book.apply(Put(object=build.node("n")))
        self.book.put_inventory(build.inventory("n", gpus=2))
        self.rooms = LargestRooms(self.book)

    def run(self, name: str, gpu: int, quarters: int, compute_milli: int) -> None:
        share = GpuShare(
            node="n", uuid=f"n-gpu-{gpu}", memory_mib=quarters * TOTAL_MIB // 4, compute_milli=compute_milli
        )
        grant = Grant(grant_id=name, term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
        self.book.apply(Put(object=build.bound(build.gpu_pod(name, memory="1Mi"), "n", grant)))

    def suspend(self, name: str, action: SuspendAction) -> None:
        self.book.suspend(name, Suspension(action=action, plan_id="p"))

    def denies(self, name: str) -> bool:
        return self.rooms.deny(self.book.grants[name])


@pytest.fixture
def node() -> Node:
    found = Node()
    found.run("long", 0, 3, 750)
    found.suspend("long", "checkpoint")
    found.run("in-its-place", 0, 2, 250)
    return found


def test_a_pod_is_denied_while_no_gpu_has_room_for_it(node: Node) -> None:
    assert not node.denies("long"), "the other GPU is free"
    node.run("beside", 1, 2, 250)
    assert node.denies("long"), "half of the memory of each GPU is free, and it needs three quarters"
    node.book.release("beside")
    assert not node.denies("long")


def test_compute_is_looked_at_too(node: Node) -> None:
    node.run("beside", 1, 1, 500)
    assert node.denies("long")


def test_a_paused_pod_needs_compute_alone(node: Node) -> None:
    node.run("beside", 1, 4, 250)
    node.run("paused", 0, 2, 500)
    node.suspend("paused", "pause")
    assert not node.denies("paused"), "its memory is where it was, and half of the compute is free"


def test_a_pod_that_has_all_of_its_grant_again_lacks_nothing(node: Node) -> None:
    node.run("beside", 1, 2, 250)
    assert node.denies("long")
    node.book.release("in-its-place")
    node.book.suspend("long", None)
    assert not node.denies("long")
