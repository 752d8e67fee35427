"""The fewest nodes on which Kerf places all pods at once, by its own scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from services.placement import messages as m
from services.placement.config import Config
from services.placement.core import Core
from shared.book.advertised import requested
from shared.contracts.facts import Put
from shared.contracts.log import LogMark
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Meta, Quantities
from shared.model.names import RESOURCE_QUOTA
from shared.model.objects import Node, NodeStatus, Pod


def placed_on(pods: Sequence[Pod], nodes: int, room: Quantities, gpus: int, memory_mib: int) -> int:
    """How many of these pods a leader places on so many empty nodes."""
    core = Core("bench", Config(max_holds=len(pods) + 1, advertise_capacity=False))
    sequence, decided, now = 2, 0, 0.0

    def say(event: m.Input) -> None:
        nonlocal sequence, decided, now
        todo = [event]
        while todo:
            for command in core.handle(todo.pop(0), now):
                match command:
                    case m.Append():
                        sequence += 1
                        todo.append(m.Appended(sequence))
                    case m.TakeSnapshot():
                        todo.append(m.SnapshotSeen((), 0))
                    case m.SendSync(sync):
                        boot = core.book.nodes[sync.node].inventory
                        answer = NodeSyncAnswer(
                            node=sync.node, boot_id=boot.boot_id if boot else "", term=sync.term, accepted=True,
                            number=sync.number,
                        )  # fmt: skip
                        todo.append(m.SyncAnswered(answer))
                    case m.SendBinds():
                        decided += len(command.binds)
                    case m.Later(seconds):
                        now += seconds
                        todo.append(m.Wake())
                    case m.Again():
                        todo.append(m.Tick())

    say(m.TermTaken(2, mark=LogMark(term=0, sequence=1)))
    for number in range(nodes):
        name = f"n{number}"
        meta = Meta(name=name, uid=name, resource_version=str(number + 3))
        say(m.FactsSeen((Put(object=Node(metadata=meta, status=NodeStatus(allocatable=room, capacity=room))),)))
        cards = tuple(Gpu(uuid=f"{name}-{i}", index=i, model="G2", memory_mib=memory_mib) for i in range(gpus))
        say(m.InventorySeen(Inventory(node=name, boot_id="1", generation=1, gpus=cards)))
    say(m.FactsSeen(tuple(Put(object=pod) for pod in pods)))
    return decided


def fewest(documents: Sequence[dict[str, Any]], room: Quantities, gpus: int, memory_mib: int) -> int:
    """`documents`: the pods as the API server has them. Nodes have `gpus` GPUs of `memory_mib` each, and `room`. Two
    orders are tried, by creation and the largest first; the smaller result counts."""
    pods = [msgspec.convert({k: v for k, v in d.items() if k in ("metadata", "spec")}, Pod) for d in documents]
    largest = sorted(pods, key=lambda pod: -requested(pod).get(RESOURCE_QUOTA, 0))
    created = "2026-01-01T00:{:02d}:{:02d}Z"  # in this order
    ordered = [
        replace(pod, metadata=replace(pod.metadata, creation_timestamp=created.format(*divmod(i, 60))))
        for i, pod in enumerate(largest)
    ]
    return min(_fewest(some, room, gpus, memory_mib) for some in (pods, ordered))


def _fewest(pods: Sequence[Pod], room: Quantities, gpus: int, memory_mib: int) -> int:
    low, high = 1, max(1, len(pods))
    while low < high:
        middle = (low + high) // 2
        if placed_on(pods, middle, room, gpus, memory_mib) == len(pods):
            high = middle
        else:
            low = middle + 1
    return low
