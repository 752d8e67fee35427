"""Which CPUs and memory nodes a container with GPUs is given: those beside its GPUs, where that takes nothing from it. Pure.

A container that is confined must still get the CPU time that it was promised, and so must those that are confined beside
it. The rule: of all containers whose CPUs overlap with the new one's, the promises together fit into the new one's CPUs.
Then there is always a way to give each its due (by induction over the order of their coming: a set of CPUs that is the
union of some containers' CPUs holds those that overlap with the latest, who fit into its CPUs, and the others, who fitted
into the rest before). Containers that are not confined give way to other CPUs. The same rule serves memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from shared.model.gpu import Gpu

Outcome = Literal["near", "own-cpuset", "whole-node", "too-few-cpus", "cpus-promised", "not-known"]

Numbers = frozenset[int]
"""Of CPUs, or of memory nodes."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What a container was promised."""

    cpu_milli: int = 0
    """Its limit, or its request where it has none."""
    memory_bytes: int = 0
    """Its limit; 0: none, so that nobody knows how much it will take."""


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """A container that may not run everywhere."""

    promise: Promise
    cpus: Numbers
    mems: Numbers = frozenset()
    """Empty: all."""


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod's containers may use at all."""

    cpus: Numbers
    mems: Numbers
    node_bytes: Mapping[int, int] = {}
    """The size of each memory node."""


def place(gpus: Iterable[Gpu], promise: Promise, allowed: Allowed, others: Collection[Confined]) -> Confined | Outcome:
    """Where a container with these GPUs is confined to, or why it is not."""
    beside = [numbers(gpu.cpus) for gpu in gpus]
    near = frozenset[int]().union(*beside) & allowed.cpus
    if not near or not all(beside):
        return "not-known"
    if near == allowed.cpus:
        return "whole-node"
    if promise.cpu_milli > 1000 * len(near):
        return "too-few-cpus"
    found = Confined(promise=promise, cpus=near)
    return found if fits(found, allowed, others) else "cpus-promised"


def fits(confined: Confined, allowed: Allowed, others: Iterable[Confined]) -> bool:
    """Whether its CPUs have what was promised to it and to those that overlap with it. One that has all CPUs can give way."""
    beside = (other for other in others if other.cpus & confined.cpus and not other.cpus >= allowed.cpus)
    return confined.promise.cpu_milli + sum(other.promise.cpu_milli for other in beside) <= 1000 * len(confined.cpus)


def bind_memory(confined: Confined, gpus: Iterable[Gpu], allowed: Allowed, others: Iterable[Confined]) -> Confined:
    """With the memory nodes beside the GPUs, too, where its limit and those of the others there fit into them. A GPU's own
    memory may be a node of the kernel's where it is joined to the CPU: there nothing is bound, for it would be left out."""
    every = tuple(gpus)
    nodes = frozenset(gpu.numa_node for gpu in every)
    if any(gpu.c2c for gpu in every) or not nodes < allowed.mems or not confined.promise.memory_bytes:
        return confined
    taken = confined.promise.memory_bytes + sum(
        o.promise.memory_bytes for o in others if o.mems & nodes and not o.mems >= allowed.mems
    )
    if taken > sum(allowed.node_bytes.get(node, 0) for node in nodes):
        return confined
    return msgspec.structs.replace(confined, mems=nodes)


def numbers(text: str) -> Numbers:
    """Of a list as the kernel writes it: "0-3,8". Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
