"""The simulated fleet: GPUs of four models, nodes without GPUs, and what the nodes offer under each strategy."""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.adaptive.truth import Link
from shared.book.book import Book
from shared.contracts.facts import Put
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Meta, Quantities
from shared.model.network import NetworkLink, RemoteAbility
from shared.model.objects import Node, NodeStatus

Offer = Literal["exclusive", "mig", "mps", "interposer", "time_slice", "gate"]
_STRATEGIES: dict[Offer, tuple[str, ...]] = {
    "exclusive": ("exclusive",),
    "mig": ("exclusive", "mig"),
    "mps": ("exclusive", "mps"),
    "interposer": ("exclusive", "interposer"),
    "time_slice": ("exclusive", "time_slice"),
    "gate": ("exclusive", "interposer", "time_slice"),
}
PRODUCTS = {
    "A100": ("NVIDIA-A100-SXM4-40GB", 40_960),
    "H100": ("NVIDIA-H100-80GB-HBM3", 81_559),
    "V100": ("Tesla-V100-SXM2-32GB", 32_768),
    "T4": ("Tesla-T4", 15_360),
}
MIG_MODELS = ("A100", "H100")
NEAR, FAR = Link(rtt_us=8.0, mib_s=10_000), Link(rtt_us=30.0, mib_s=4_000)
"""In one rack, and between racks: RDMA, and one more hop beside other traffic."""


class Machine(msgspec.Struct, frozen=True):
    name: str
    model: str
    """Empty: no GPUs."""
    gpus: int
    cpus: int
    rack: str
    mixed: Offer
    """What it offers in the mixed fleet, which the adaptive choice has."""


MACHINES = (
    Machine("a100-0", "A100", 4, 64, "r0", "mig"),
    Machine("a100-1", "A100", 4, 64, "r0", "mps"),
    Machine("a100-2", "A100", 4, 64, "r1", "mps"),
    Machine("h100-0", "H100", 4, 64, "r1", "mps"),
    Machine("h100-1", "H100", 4, 64, "r1", "gate"),
    Machine("v100-0", "V100", 4, 40, "r0", "mps"),
    Machine("v100-1", "V100", 4, 40, "r0", "mps"),
    Machine("v100-2", "V100", 4, 40, "r1", "mps"),
    Machine("v100-3", "V100", 4, 40, "r1", "gate"),
    Machine("t4-0", "T4", 4, 32, "r0", "mps"),
    Machine("t4-1", "T4", 4, 32, "r1", "gate"),
    Machine("cpu-0", "", 0, 96, "r0", "exclusive"),
    Machine("cpu-1", "", 0, 96, "r1", "exclusive"),
)
BY_NAME = {machine.name: machine for machine in MACHINES}


def make_book(offer: Offer | None, *, remote: bool = False) -> Book:
    """`offer`: what all nodes with GPUs offer; None: each what the mixed fleet has. GPUs that cannot be divided by MIG
    are given whole where the strategy is `mig`. `remote`: GPUs are served to other nodes, and all links are measured.
    """
    book = Book()
    for machine in MACHINES:
        allocatable: Quantities = {"cpu": str(machine.cpus), "memory": "2Ti", "pods": "1000"}
        meta = Meta(name=machine.name, uid=machine.name, resource_version="1")
        book.apply(Put(object=Node(metadata=meta, status=NodeStatus(allocatable=allocatable))))
        if not machine.gpus and not remote:
            continue
        kind = offer or machine.mixed
        if kind == "mig" and machine.model not in MIG_MODELS:
            kind = "exclusive"
        product, memory_mib = PRODUCTS.get(machine.model, ("", 0))
        cut = kind == "mig"
        gpus = tuple(
            Gpu(uuid=f"{machine.name}/{i}", index=i, model=product, memory_mib=memory_mib, mig_enabled=cut,
                mig_on_demand=cut)
            for i in range(machine.gpus)
        )  # fmt: skip
        inventory = Inventory(
            node=machine.name,
            boot_id="1",
            gpus=gpus,
            strategies=_STRATEGIES[kind],
            simulated=True,
            remote=_ability(machine) if remote else RemoteAbility(),
        )
        book.put_inventory(inventory)
        book.set_agent_trouble(machine.name, "")
    return book


def _ability(machine: Machine) -> RemoteAbility:
    others = (other.name for other in MACHINES if other.name != machine.name)
    network = {
        name: NetworkLink(rtt_us=round(link.rtt_us), mib_s=round(link.mib_s))
        for name in others
        for link in (link_between(machine.name, name),)
    }
    return RemoteAbility(address=f"{machine.name}:1" if machine.gpus else "", client=True, network=network)


def link_between(one: str, other: str) -> Link:
    return NEAR if BY_NAME[one].rack == BY_NAME[other].rack else FAR
