"""Chooses the CPUs and memory nodes near a container's GPUs, if the container loses nothing by it. Pure.

A confined container must still get the CPU time that it was promised, and so must the containers that are confined near
it. The rule: the promises of all containers whose CPUs overlap with the new one's must together fit into the new one's
CPUs. Then there is always an assignment that gives each container its due. (By induction over the order of arrival: a
set of CPUs that is the union of some containers' CPUs holds those that overlap with the latest container, which fit
into its CPUs, and the others, which fitted into the rest before.) Containers that are not confined can move to other
CPUs. The same rule serves memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from shared.model.gpu import Gpu

Outcome = Literal["near", "own-cpuset", "whole-node", "too-few-cpus", "cpus-promised", "not-known"]

Numbers = frozenset[int]
"""Numbers of CPUs or of memory nodes."""
MAX_NUMBER = 1 << 16
"""Above any number of a CPU: Linux knows at most 8192. A list with larger ones would fill the agent's memory."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What a container was promised."""

    cpu_milli: int = 0
    """Its CPU limit, or its request if it has no limit."""
    memory_bytes: int = 0
    """Its memory limit; 0: none, so its use is not bounded."""


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """A container that may only use some CPUs or memory nodes."""

    promise: Promise
    cpus: Numbers
    mems: Numbers = frozenset()
    """Empty: all memory nodes."""


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and memory nodes that the pod's containers may use at all."""

    cpus: Numbers
    mems: Numbers
    node_bytes: Mapping[int, int] = {}
    """The size of each memory node, in bytes."""


def place(gpus: Iterable[Gpu], promise: Promise, allowed: Allowed, others: Collection[Confined]) -> Confined | Outcome:
    """The CPUs to which a container with these GPUs is confined, or why it is not."""
    near_gpus = [numbers(gpu.cpus) for gpu in gpus]
    near = frozenset[int]().union(*near_gpus) & allowed.cpus
    if not near or not all(near_gpus):
        return "not-known"
    if near == allowed.cpus:
        return "whole-node"
    if promise.cpu_milli > 1000 * len(near):
        return "too-few-cpus"
    found = Confined(promise=promise, cpus=near)
    return found if fits(found, allowed, others) else "cpus-promised"


def fits(confined: Confined, allowed: Allowed, others: Iterable[Confined]) -> bool:
    """Whether its CPUs suffice for its own promise and those of the containers that overlap with it.

    A container that may use all CPUs can move.
    """
    overlapping = (other for other in others if other.cpus & confined.cpus and not other.cpus >= allowed.cpus)
    return confined.promise.cpu_milli + sum(other.promise.cpu_milli for other in overlapping) <= 1000 * len(
        confined.cpus
    )


def bind_memory(confined: Confined, gpus: Iterable[Gpu], allowed: Allowed, others: Iterable[Confined]) -> Confined:
    """Adds the memory nodes near the GPUs, if its limit and those of the other containers there fit into them.

    A GPU's own memory may be a NUMA node if the GPU is attached to the CPU (C2C). Then nothing is bound, because the
    binding would leave that node out.
    """
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
    """Parses a list of numbers as the kernel writes it: "0-3,8". Raises ValueError, also on numbers that no CPU has."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not 0 <= begin <= end <= MAX_NUMBER:
            raise ValueError(f"{part[:40]!r} is no run of numbers from 0 to {MAX_NUMBER}")
        found.update(range(begin, end + 1))
    return frozenset(found)
