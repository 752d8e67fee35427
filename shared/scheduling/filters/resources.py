from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.units import MIB, format_cpu, format_mib
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Change, Remedy, no_change


def _demand_less(field: str, free: Callable[[NodeState], int]) -> Remedy:
    def make(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
        if (left := free(node)) > 0:
            yield Change(
                f"less-{reason.code}",
                reason.helps,
                replace(state, demand=replace(state.demand, **{field: left})),
                reason.lacking,
            )

    return make


def _less_extended(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    """Of each extended resource what there is left, provided that there is some."""
    left = {
        name: node.extended_total.get(name, 0) - node.extended_used.get(name, 0)
        for name, _ in state.demand.extended
        if node.extended_total.get(name) or (name in node.extended_total and name != names.RESOURCE_SLOT)
    }
    less = tuple((name, min(amount, left.get(name, amount))) for name, amount in state.demand.extended)
    if all(amount > 0 for _, amount in less):
        yield Change(
            "less-extended-resource", reason.helps, replace(state, demand=replace(state.demand, extended=less))
        )


class Resources(Filter):
    """CPU, memory, ephemeral storage, number of pods, and extended resources (kube-scheduler's NodeResourcesFit).

    The engine checks the same for all nodes at once on the book's arrays; this filter checks one node, and a test
    compares the two. A resource that the pod does not request is not checked, even if it is overcommitted.
    """

    name = "resources"
    scope = "room"
    remedies: ClassVar[Mapping[str, Remedy]] = {
        "too-many-pods": no_change,
        "cpu": _demand_less("cpu_milli", lambda node: node.cpu_total - node.cpu_used),
        "memory": _demand_less("memory_bytes", lambda node: (node.memory_total - node.memory_used) // MIB * MIB),
        "ephemeral-storage": _demand_less("ephemeral_bytes", lambda node: node.ephemeral_total - node.ephemeral_used),
        "extended-resource": _less_extended,
    }

    def prepare(self, pod: PodState, book: Book) -> Check:
        demand = pod.demand

        def check(node: NodeState) -> Reason | None:
            if node.object is None:
                return None
            if len(node.pods) >= node.pods_total:
                return Reason(
                    code="too-many-pods",
                    sentence=f"the node runs {len(node.pods)} of at most {node.pods_total} pods",
                    helps="let a pod on it end",
                )
            free = node.cpu_total - node.cpu_used
            if demand.cpu_milli and demand.cpu_milli > free:
                return Reason(
                    code="cpu",
                    sentence=f"needs {format_cpu(demand.cpu_milli)} CPU, {format_cpu(max(0, free))} free of "
                    f"{format_cpu(node.cpu_total)}",
                    helps=f"ask for {format_cpu(demand.cpu_milli - max(0, free))} CPU less",
                    lacking=demand.cpu_milli - max(0, free),
                )
            free = node.memory_total - node.memory_used
            if demand.memory_bytes and demand.memory_bytes > free:
                lacking = demand.memory_bytes - max(0, free)
                return Reason(
                    code="memory",
                    sentence=f"needs {format_mib(-(-demand.memory_bytes // MIB), up=True)} memory, "
                    f"{format_mib(max(0, free) // MIB)} free",
                    helps=f"ask for {format_mib(-(-lacking // MIB), up=True)} less memory",
                    lacking=lacking,
                )
            free = node.ephemeral_total - node.ephemeral_used
            if demand.ephemeral_bytes and demand.ephemeral_bytes > free:
                return Reason(
                    code="ephemeral-storage",
                    sentence=f"needs {format_mib(-(-demand.ephemeral_bytes // MIB), up=True)} ephemeral storage, "
                    f"{format_mib(max(0, free) // MIB)} free",
                    helps="ask for less ephemeral storage",
                )
            return _extended(pod, node)

        return check


def _extended(pod: PodState, node: NodeState) -> Reason | None:
    lacking = lacking_extended(pod.demand, node)
    if lacking is None:
        return None
    name, amount, free = lacking
    return Reason(
        code="extended-resource",
        sentence=f"needs {amount} of {name}, {max(0, free)} free",
        helps=f"ask for less of {name}, or for a node that has it",
    )


def lacking_extended(demand: Demand, node: NodeState) -> tuple[str, int, int] | None:
    """Returns the first extended resource that a node lacks: its name, the amount needed, and what is free."""
    for name, amount in demand.extended:
        if name == names.RESOURCE_SLOT and not node.extended_total.get(name):
            # A node whose agent serves no kubelet has none. Elsewhere the node's status, which the kubelet renews every
            # 10 s, may still be that of a moment without an agent; the agent itself says at once whether the kubelet
            # watches its slots, and its GPUs take no slices while it does not.
            continue
        free = node.extended_total.get(name, 0) - node.extended_used.get(name, 0)
        if amount > free:
            return name, amount, free
    return None
