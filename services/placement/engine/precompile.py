"""One small decision of each kind, so that no loop is compiled while the cluster waits for a leader."""

from __future__ import annotations

from services.placement.engine.engine import Engine
from services.placement.policies.kerf.policy import Kerf
from shared.book.book import Book
from shared.book.states import PodState, pod_state
from shared.contracts.facts import Put
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, Resources


def exercise() -> None:
    asks: tuple[Quantities, ...] = ({}, {names.RESOURCE_GPU: 2}, {names.RESOURCE_GPU_COMPUTE: 50})
    _decide(_book(mig=False), asks)
    # where a GPU is in MIG mode the same loops are compiled once more
    _decide(_book(mig=True), (*asks, {f"{names.PREFIX_MIG}1g.6gb": 1}, {f"{names.PREFIX_MIG}1g.6gb": 2}))


def _book(*, mig: bool) -> Book:
    book = Book()
    allocatable: dict[str, str | int] = {"cpu": "8", "memory": "8Gi", "pods": "9"}
    book.apply(
        Put(
            object=Node(
                metadata=Meta(name="n", uid="n", resource_version="1"), status=NodeStatus(allocatable=allocatable)
            )
        )
    )
    modes = (False, False, mig)
    gpus = tuple(
        Gpu(uuid=f"gpu-{i}", index=i, model="A30", memory_mib=24_576, mig_enabled=cut, mig_on_demand=cut)
        for i, cut in enumerate(modes)
    )
    book.put_inventory(Inventory(node="n", boot_id="1", gpus=gpus, strategies=("exclusive", "advisory", "mig")))
    book.set_agent_trouble("n", "")
    return book


def _decide(book: Book, asks: tuple[Quantities, ...]) -> None:
    engine = Engine(book, Kerf.name)
    for number, limits in enumerate(asks):
        state = _pod(f"p{number}", limits)
        engine.decide(state)
        engine.meet(state, placed=True)
        engine.policy_of(state).words(state, book.nodes["n"].row)
    engine.policies[Kerf.name].learn()


def _pod(name: str, limits: Quantities) -> PodState:
    container = Container(name="c", resources=Resources(limits=limits, requests={"cpu": "1"}))
    return pod_state(
        Pod(
            metadata=Meta(name=name, uid=name, resource_version="1"),
            spec=PodSpec(containers=(container,), scheduler_name=names.SCHEDULER_NAME),
        )
    )


if __name__ == "__main__":
    exercise()
