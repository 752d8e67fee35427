"""A cluster for the placement core: nodes, GPUs, pods that run, and pods that wait."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from services.placement import messages as m
from shared.contracts.facts import Put
from shared.contracts.log import ReadyRecord, TermRecord
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant, decode_grant, encode_grant
from shared.model.kube_object import Meta, OwnerReference, Quantities
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, Resources
from shared.model.strategies import StrategyName
from tests.support.harness.placement import Placement, Respond

if TYPE_CHECKING:
    from bench.peercases.eviction import Eviction

CONTAINER = "main"
ROUNDS = 4
_ROUND_S = 15.0
"""Longer than any pause of a pod that did not fit."""
CASE_NAMESPACE = "cases"


class CaseCluster:
    """Objects are gathered, then `settle` lets the core decide, as a leader whose log and API server answer at once.

    `eviction`: what a preemptor adds; without one nothing is evicted.
    """

    def __init__(self, policy: str, eviction: Eviction | None = None) -> None:
        self.numbers = itertools.count(1001)
        """Of the versions of objects and of the plans."""
        self.eviction = eviction
        self.placement = Placement(
            records=((98, TermRecord(holder="before")), (99, ReadyRecord(term=98))),
            respond=self._respond,
            begins=False,
            policy=policy,
        )
        if eviction is not None:
            eviction.begin(self)
        self.nodes: list[Node] = []
        self.inventories: list[Inventory] = []
        self.pods: dict[str, Pod] = {}
        self.others: list[Any] = []
        self.bound: dict[str, tuple[str, Grant | None]] = {}
        """Node and grant of each pod that the core has placed, by name."""

    def version(self) -> str:
        return str(next(self.numbers))

    def add_node(self, name: str, gpus: tuple[Gpu, ...], *, allocatable: Quantities, labels: dict[str, str]) -> None:
        meta = Meta(
            name=name,
            uid=f"uid-{name}",
            resource_version=self.version(),
            labels={"kubernetes.io/hostname": name} | labels,
        )
        self.nodes.append(Node(metadata=meta, status=NodeStatus(allocatable=allocatable, capacity=allocatable)))
        self.inventories.append(
            Inventory(node=name, boot_id="boot", generation=1, gpus=gpus, strategies=("exclusive", "advisory", "mig"))
        )

    def add_pod(
        self,
        name: str,
        limits: Quantities,
        *,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        created: str = "2026-01-01T00:00:00Z",
        node: str = "",
        shares: tuple[GpuShare, ...] = (),
        deleted: str | None = None,
        namespace: str = CASE_NAMESPACE,
        job: str = "",
        beside: Mapping[str, Quantities] = MappingProxyType({}),
        inits: Mapping[str, Quantities] = MappingProxyType({}),
        **spec: Any,
    ) -> None:
        """With `node` it runs there, on these parts of GPUs. `job`: what makes it anew. `beside`, `inits`: further
        containers and init containers by name, with their limits."""
        notes = dict(annotations or {})
        if shares:
            strategy: StrategyName = (
                "mig" if shares[0].mig else "exclusive" if shares[0].compute_milli == 1000 else "advisory"
            )
            grant = Grant(
                grant_id=f"grant-{name}", term=1, containers={CONTAINER: ContainerGrant(strategy=strategy, gpus=shares)}
            )
            notes[names.ANNOTATION_GRANT] = encode_grant(grant)
        meta = Meta(
            name=name,
            namespace=namespace,
            uid=f"uid-{name}",
            resource_version=self.version(),
            creation_timestamp=created,
            annotations=notes,
            labels=labels or {},
            deletion_timestamp=deleted,
            owner_references=(OwnerReference(uid=f"job-{job}", kind="Job", name=job, controller=True),) if job else (),
        )
        self.pods[name] = Pod(
            metadata=meta,
            spec=PodSpec(
                scheduler_name=names.SCHEDULER_NAME,
                node_name=node,
                containers=tuple(_container(at, of) for at, of in {CONTAINER: limits, **beside}.items()),
                init_containers=tuple(_container(at, of) for at, of in inits.items()),
                **spec,
            ),
            status=PodStatus(phase="Running" if node else "Pending"),
        )

    def settle(self, *, within_s: float = ROUNDS * _ROUND_S) -> None:
        """Takes the lead and decides; then rounds in which placed pods run, and waiting ones are tried
        again; `within_s` later the preemptor plans."""
        for node in self.inventories:
            self.send(m.InventorySeen(node))
        self.send(self.placement.beginning)
        for _ in range(ROUNDS):
            self.run_bound()
            self.pass_time(within_s / ROUNDS)
            self.send(m.Tick())
        if self.eviction is not None:
            self.eviction.settle()

    def pass_time(self, seconds: float) -> None:
        self.placement.now += seconds
        self.send(m.BeatSeen(tuple(node.node for node in self.inventories)))

    def run_bound(self) -> None:
        for name, (node, grant) in self.bound.items():
            pod = self.pods[name]
            if pod.spec.node_name:
                continue
            notes = pod.metadata.annotations | ({names.ANNOTATION_GRANT: encode_grant(grant)} if grant else {})
            meta = msgspec.structs.replace(pod.metadata, resource_version=self.version(), annotations=notes)
            status = msgspec.structs.replace(pod.status, phase="Running")
            pod = self.pods[name] = msgspec.structs.replace(
                pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=node), status=status
            )
            self.send(m.FactsSeen((Put(object=pod),)))

    def send(self, event: m.Input) -> None:
        if self.eviction is not None:
            self.eviction.hear(event)
        self.placement.send(event)

    def _respond(self, command: m.Command, default: Respond) -> list[m.Input]:
        answers = self._answers(command, default)
        return answers if self.eviction is None else self.eviction.answers(command, answers)

    def _answers(self, command: m.Command, default: Respond) -> list[m.Input]:
        match command:
            case m.TakeSnapshot():
                objects = [*self.nodes, *self.others, *self.pods.values()]
                return [m.SnapshotSeen(tuple(Put(object=o) for o in objects), 0)]
            case m.SendBinds():
                for bind in command.binds:
                    self.bound[bind.name] = (bind.node, decode_grant(bind.grant) if bind.grant else None)
            case m.Later():
                self.pass_time(command.seconds)
                return [m.Wake()]
        return default(command)


def _container(name: str, limits: Quantities) -> Container:
    slot: Quantities = {names.RESOURCE_SLOT: "1"} if any(map(names.is_gpu_resource, limits)) else {}
    amounts: Quantities = limits | slot
    return Container(name=name, resources=Resources(limits=amounts, requests=amounts))


def plain_gpu(node: str, index: int, memory_mib: int, **more: Any) -> Gpu:
    defaults: dict[str, Any] = {"uuid": f"{node}-{index}", "model": "NVIDIA-GPU"}
    return Gpu(index=index, memory_mib=memory_mib, **(defaults | more))
