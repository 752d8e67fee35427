"""A full cluster of many nodes as facts, with names as long as clouds and controllers write them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shared.contracts.facts import Put
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.objects import Pod
from tests.support import build

MEMORY_MIB = 143_771
GPUS = 8


def node_name(number: int) -> str:
    return f"gke-production-eu-gpu-pool-h200-8g-{number // 100:04x}{number:05d}.europe-west4-b.example.internal"


def pod_name(number: int) -> tuple[str, str]:
    return f"team-{number % 40}-training", f"llm-finetune-experiment-{number:05d}-worker-{number % 8}-x7f2q"


def inventory(number: int) -> Inventory:
    name = node_name(number)
    made = build.inventory(name, gpus=GPUS, memory_mib=MEMORY_MIB, model="NVIDIA-H200-141GB-HBM3e")
    return msgspec.structs.replace(
        made, gpus=tuple(msgspec.structs.replace(gpu, uuid=_uuid(number, gpu.index)) for gpu in made.gpus)
    )


def facts(nodes: int, *, waiting: int = 20) -> Iterator[Put]:
    """Nodes, a pod on each GPU, and pods that fit nowhere."""
    for number in range(nodes):
        yield Put(object=build.node(node_name(number)))
    for number in range(nodes * GPUS):
        yield Put(object=_running(number))
    for number in range(waiting):
        namespace, name = pod_name(nodes * GPUS + number)
        yield Put(object=build.gpu_pod(name, namespace=namespace, gpus=1, memory="64Gi", priority=10))


def _running(number: int) -> Pod:
    namespace, name = pod_name(number)
    node, index = divmod(number, GPUS)
    share = GpuShare(node=node_name(node), uuid=_uuid(node, index), memory_mib=MEMORY_MIB - 1024, compute_milli=900)
    grant = Grant(
        grant_id=f"grant-{number:08x}", term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))}
    )
    made = build.gpu_pod(name, namespace=namespace, gpus=1, memory=f"{MEMORY_MIB - 1024}Mi", phase="Running")
    return build.bound(made, node_name(node), grant)


def _uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-7c1d-4e8a-9b52-{index:012x}"
