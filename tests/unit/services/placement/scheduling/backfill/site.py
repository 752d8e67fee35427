"""A cluster with a clock, for tests of what is reserved for the head of the queue."""

from __future__ import annotations

from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.scheduling.backfill.reservations import LOOK_S, HeadReservation
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from shared.model.strategies import StrategyName
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import NOW, end, run
from tests.unit.services.placement.scheduling.gangs.members import members

AFTER_S = 60.0
"""How long the head of the queue waits before capacity is reserved for it."""


def created(second: int) -> str:
    return f"2026-11-21T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


class Site:
    """`nodes`: by name, its GPUs."""

    def __init__(self, nodes: dict[str, int], *, queues: str = "", **config: Any) -> None:
        self.placement = Placement(**{"reserve_after_s": AFTER_S, "max_reserved_share": 1.0, **config})
        for name, gpus in nodes.items():
            self.node(name, gpus)
        if queues:
            self.placement.facts(build.queues(queues))

    def node(self, name: str, gpus: int, labels: dict[str, str] | None = None) -> None:
        self.placement.facts(build.node(name, labels=labels))
        self.placement.send(m.InventorySeen(build.inventory(name, gpus=gpus)))

    def mig_node(self, name: str) -> None:
        """A node with one GPU of 40 GB that is divided into MIG instances on demand."""
        self.placement.facts(build.node(name))
        plain = build.inventory(name, gpus=1, model="NVIDIA-A100-SXM4-40GB", memory_mib=40960)
        gpu = msgspec.structs.replace(plain.gpus[0], mig_enabled=True, mig_on_demand=True)
        strategies: tuple[StrategyName, ...] = ("exclusive", "mig")
        self.placement.send(m.InventorySeen(msgspec.structs.replace(plain, gpus=(gpu,), strategies=strategies)))

    def daemon(self, name: str, *, on: str, cpu: str) -> None:
        """A pod of another scheduler, without GPUs, that runs for ever."""
        self.placement.facts(build.pod(name, node=on, scheduler="default-scheduler", requests={"cpu": cpu}))

    def wait(self, seconds: float = AFTER_S + LOOK_S, *, step_s: float = 1.0) -> None:
        """The agents live on, and the core has its ticks."""
        for _ in range(round(seconds / step_s)):
            self.placement.now += step_s
            self.placement.send(m.BeatSeen(tuple(self.placement.core.book.nodes)))
            self.placement.send(m.Tick(NOW + self.placement.now))

    def runs(
        self, name: str, *, on: str = "", started_s_ago: float = 0.0, owners: tuple[str, ...] = (), **pod: Any
    ) -> Pod:
        """`owners`: the kinds of its controllers."""
        selector = {"node_selector": {"kubernetes.io/hostname": on}} if on else {}
        asks = {} if {"memory", "compute", "mig"} & pod.keys() else {"gpus": 1}
        made = build.gpu_pod(name, **asks, **selector, **pod)
        references = tuple(OwnerReference(kind=kind, name="o", uid="o", controller=True) for kind in owners)
        made = msgspec.structs.replace(
            made, metadata=msgspec.structs.replace(made.metadata, owner_references=references)
        )
        return run(self.placement, made, started_s_ago=started_s_ago)[0]

    def ends(self, pod: Pod) -> None:
        end(self.placement, pod)

    def gang(self, count: int = 2, gpus: int = 2, *, at: int = 0, **rest: Any) -> list[Pod]:
        """Its pods arrive."""
        pods = members(count, prefix="g", gang="train", gpus=gpus, created=created(at), **rest)
        self.placement.facts(*pods)
        return pods

    def arrives(self, name: str, *, at: int = 3600, **pod: Any) -> Pod:
        asks = {} if {"memory", "compute", "gpus", "mig"} & pod.keys() else {"gpus": 1}
        made = build.gpu_pod(name, created=created(at), **asks, **pod)
        self.placement.facts(made)
        return made

    def node_of(self, pod: Pod) -> str:
        """Where the pod has a place; empty if it waits."""
        order = self.placement.binds().get(pod.metadata.uid)
        return "" if order is None else order.node

    @property
    def kept(self) -> list[HeadReservation]:
        return list(self.placement.core.backfill.kept.values())

    @property
    def nodes_kept(self) -> list[list[str]]:
        return [kept.nodes for kept in self.kept]
