"""A large fleet for the live page: inventories and slices on a real bus, and a stub of placement's figures."""

from __future__ import annotations

import random

from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import queries, subjects
from shared.contracts.base import encode
from shared.contracts.envelope import wrap
from shared.contracts.events import PlacementRejected, SliceEnforced
from shared.contracts.explain import PodExplanation, Reason
from shared.contracts.queries import QueuesAnswer, StatusAnswer
from shared.model.gpu import Gpu, Inventory

GPUS_PER_NODE = 8
MEMORY_MIB = 143_771
NAMESPACES = ("research", "vision", "speech", "serving", "ranking", "notebooks", "batch", "tests", "archive", "demo")


async def publish_fleet(bus: NatsBus, gpus: int, *, pending: int = 300, seed: int = 7) -> int:
    """Publishes inventories of so many GPUs, filled with slices; returns how many slices."""
    rng, kv, slices = random.Random(seed), bus.kv(subjects.KV_NODES), 0
    for number in range(gpus // GPUS_PER_NODE):
        node = f"gpu-{number:04d}"
        made = tuple(
            Gpu(uuid=f"GPU-{number:04d}-{i}", index=i, model="NVIDIA-H200" if number % 3 else "NVIDIA-L40S",
                memory_mib=MEMORY_MIB, state="unhealthy" if (number, i) == (5, 3) else "healthy")
            for i in range(GPUS_PER_NODE)
        )  # fmt: skip
        await kv.put(subjects.token(node), encode(Inventory(node=node, boot_id="b", gpus=made)))
        for gpu in made:
            left = 100
            while (share := rng.choice((0, 10, 15, 25, 50, 100))) and share <= left:
                left -= share
                slices += 1
                namespace = rng.choice(NAMESPACES)
                event = SliceEnforced(
                    node=node, uid=f"u-{slices}", namespace=namespace, name=f"{namespace}-{slices}", container="main",
                    grant_id=f"g-{slices}", strategy="advisory", promise="soft", model=gpu.model,
                    gpus={gpu.uuid: (MEMORY_MIB * share // 100, share * 10)},
                )  # fmt: skip
                publish(bus, event)
    for number in range(pending):
        why = PodExplanation(
            namespace="batch", name=f"wait-{number}", state="waiting", sentence="0 of 625 nodes can take the pod",
            summary=(Reason(code="gpu-full", sentence="too little memory"),),
        )  # fmt: skip
        publish(bus, PlacementRejected(uid=f"w-{number}", namespace="batch", name=f"wait-{number}", explanation=why))
    return slices


def publish(bus: NatsBus, event: SliceEnforced | PlacementRejected) -> None:
    identity, payload = wrap(event, source="/fleet", now_s=1_795_370_400.0)
    bus.publish_event(subjects.event_in_namespace(event.ENTITY, event.VERB, event.namespace), payload, identity)


async def answer_for_placement(bus: NatsBus, gpus: int, pending: int = 300) -> None:
    """Figures, where no placement runs."""
    figures = StatusAnswer(
        leader=True, term=1, nodes=gpus // GPUS_PER_NODE, gpus=gpus, gpu_milli_total=gpus * 1000,
        gpu_milli_allocated=gpus * 640, gpu_memory_mib_total=gpus * MEMORY_MIB,
        gpu_memory_mib_allocated=gpus * MEMORY_MIB * 64 // 100, pods_waiting=pending, pods_bound=gpus * 2,
        waiting_uids=tuple(f"w-{number}" for number in range(pending)),
    )  # fmt: skip

    async def status(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(figures))

    async def queues(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(QueuesAnswer()))

    await bus.subscribe(queries.STATUS.subject, status)
    await bus.subscribe(queries.QUEUES.subject, queues)
