"""Invariants of the cluster's objects, independent of placement's book. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from services.simulator.hollow import inventory_of
from shared.model import names
from shared.model.grant import decode_grant, serving_node
from shared.model.hollow_node import HollowNode
from shared.model.objects import Pod

WHOLE_MILLI = 1000

Gpus = dict[tuple[str, str], int]
"""(node, GPU uuid) to its memory in MiB."""


class Ask(msgspec.Struct, frozen=True):
    """What the load requested for one pod, per GPU; computed here and not by the code under test. `memory_mib` 0 and
    `milli` 1000: whole GPUs."""

    count: int
    memory_mib: int = 0
    milli: int = WHOLE_MILLI

    @property
    def whole(self) -> bool:
        return self.memory_mib == 0 and self.milli == WHOLE_MILLI

    def memory_on(self, size_mib: int) -> int:
        """Of each GPU of that size. Compute alone takes as much of the memory."""
        return self.memory_mib or size_mib * self.milli // WHOLE_MILLI

    def limits(self) -> dict[str, str]:
        if self.whole:
            return {names.RESOURCE_GPU: str(self.count), names.RESOURCE_SLOT: "1"}
        limits = {names.RESOURCE_GPU: str(self.count), names.RESOURCE_SLOT: "1"}
        if self.memory_mib:
            limits[names.RESOURCE_GPU_MEMORY] = f"{self.memory_mib * self.count}Mi"
        if self.milli:
            limits[names.RESOURCE_GPU_COMPUTE] = str(self.milli * self.count // 10)
        return limits


def inventory(nodes: Iterable[HollowNode]) -> Gpus:
    return {(node.name, gpu.uuid): gpu.memory_mib for node in nodes for gpu in inventory_of(node, "any").gpus}


def taken(pods: Iterable[Pod]) -> dict[tuple[str, str], tuple[int, int]]:
    """(MiB, milli) by GPU: the grants of pods that are bound and have not ended."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for pod in pods:
        text = pod.metadata.annotations.get(names.ANNOTATION_GRANT)
        if text is None or not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
            continue
        for container in decode_grant(text).containers.values():
            for share in container.gpus:
                sums[share.node, share.uuid][0] += share.memory_mib
                sums[share.node, share.uuid][1] += share.compute_milli
    return {gpu: (mib, milli) for gpu, (mib, milli) in sums.items()}


def double_bookings(pods: Iterable[Pod], gpus: Gpus) -> list[str]:
    return [
        f"{gpu}: {mib} of {gpus.get(gpu, 0)} MiB, {milli} milli"
        for gpu, (mib, milli) in taken(pods).items()
        if mib > gpus.get(gpu, 0) or milli > WHOLE_MILLI
    ]


def misfits(pods: Iterable[Pod], asks: dict[str, Ask], gpus: Gpus) -> list[str]:
    """Bound pods whose grant differs from the request, or names another node than the pod."""
    wrong = []
    for pod in pods:
        if not pod.spec.node_name or pod.metadata.name not in asks:
            continue
        ask = asks[pod.metadata.name]
        text = pod.metadata.annotations.get(names.ANNOTATION_GRANT, "")
        grant = decode_grant(text) if text else None
        shares = [share for part in (grant.containers if grant else {}).values() for share in part.gpus]
        node = pod.spec.node_name if grant is None else serving_node(grant) or pod.spec.node_name
        fair = [
            share.node == node and share.compute_milli == ask.milli
            and share.memory_mib == ask.memory_on(gpus.get((share.node, share.uuid), 0))
            for share in shares
        ]  # fmt: skip
        if len({share.uuid for share in shares}) != ask.count or not all(fair):
            wrong.append(f"{pod.metadata.name} asked {ask} and has {text or 'no grant'}")
    return wrong


def fitting(pods: Iterable[Pod], asks: dict[str, Ask], gpus: Gpus) -> list[str]:
    """Pods that are pending although each of them fits, by the cluster's objects alone."""
    everything = list(pods)
    used = taken(everything)
    nodes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for (node, uuid), size in gpus.items():
        mib, milli = used.get((node, uuid), (0, 0))
        nodes[node].append((size, size - mib, WHOLE_MILLI - milli))

    def fits(ask: Ask, room: tuple[int, int, int]) -> bool:
        size, free_mib, free_milli = room
        return free_mib >= ask.memory_on(size) and free_milli >= ask.milli

    waiting = [pod.metadata.name for pod in everything if not pod.spec.node_name]
    return [
        name
        for name in waiting
        if any(sum(fits(asks[name], room) for room in rooms) >= asks[name].count for rooms in nodes.values())
    ]


def silent(pods: Iterable[Pod]) -> list[str]:
    """Pending pods that have no reason on them."""
    return [
        pod.metadata.name
        for pod in pods
        if not pod.spec.node_name
        and not any(
            c.type == "PodScheduled" and c.status == "False" and c.reason and c.message for c in pod.status.conditions
        )
    ]
