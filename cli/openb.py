"""The openb trace as objects: its nodes as a cluster, its pods in their order of creation."""

from __future__ import annotations

import csv
import gzip
import io
from importlib import resources
from typing import Any

import msgspec

from shared.model import names

MEMORY_MIB = {
    "P100": 16384,
    "T4": 16384,
    "V100M16": 16384,
    "V100M32": 32768,
    "A10": 24576,
    "G1": 24576,
    "G2": 24576,
    "G3": 81920,
}
"""By model. G1 to G3 are anonymous in the trace; these are the sizes of cards of their time."""


class TraceNode(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    """Of each GPU; below 1000 only where there is one."""
    models: str
    qos: str


def _rows(file: str) -> list[dict[str, str]]:
    data = resources.files("cli").joinpath("data", file).read_bytes()
    return list(csv.DictReader(io.StringIO(gzip.decompress(data).decode())))


def nodes() -> list[TraceNode]:
    return [
        TraceNode(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"])
        for r in _rows("openb_nodes.csv.gz")
    ]


def pods(count: int) -> list[TracePod]:
    """The first `count`; after the last the first come again under other names."""
    rows = _rows("openb_pods.csv.gz")
    made = []
    for i in range(count):
        r, lap = rows[i % len(rows)], i // len(rows)
        name = r["name"] if not lap else f"{r['name']}-{lap}"
        made.append(
            TracePod(
                name,
                int(r["cpu_milli"]),
                int(r["memory_mib"]),
                int(r["num_gpu"]),
                int(r["gpu_milli"] or 0),
                r["gpu_spec"],
                r["qos"],
            )
        )
    return made


def subset(pods_: list[TracePod], *, supply: float) -> list[TraceNode]:
    """Nodes taken evenly from the whole cluster, so that their GPUs are `supply` times what the pods request."""
    everything = nodes()
    wanted = supply * sum(p.gpus * p.gpu_milli for p in pods_) / 1000
    total = sum(n.gpus for n in everything)
    chosen, debt, have = [], 0.0, 0
    for node in everything:
        debt += node.gpus * wanted / total
        if debt >= node.gpus and have < wanted:
            chosen.append(node)
            have += node.gpus
            debt -= node.gpus
    return chosen or everything[:1]


def hollow(node: TraceNode) -> dict[str, Any]:
    """What its agent reports."""
    return {
        "name": node.name,
        "model": node.model,
        "count": node.gpus,
        "memory_mib": MEMORY_MIB[node.model],
        "nvlinks": 0,
    }


def node_amounts(node: TraceNode) -> dict[str, str]:
    return {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi"}


def manifest(pod: TracePod, namespace: str) -> dict[str, Any]:
    """The pod as a user of Kerf writes it. A share of a GPU is a share of its compute, and as much of its memory."""
    limits: dict[str, str] = {}
    if pod.gpus:
        limits = (
            {names.RESOURCE_GPU: str(pod.gpus)}
            if pod.gpu_milli >= 1000
            else {names.RESOURCE_GPU_COMPUTE: str(pod.gpu_milli // 10)}
        )
    annotations = {names.ANNOTATION_GPU_MODEL: pod.models} if pod.models and pod.gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": namespace, "annotations": annotations, "labels": {"qos": pod.qos}},
        "spec": {
            # CPU-only pods are Kerf's too in this trace; GPU pods get the name from admission.
            **({} if pod.gpus else {"schedulerName": names.SCHEDULER_NAME}),
            "tolerations": [{"key": names.TAINT_MANAGED, "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "main",
                    "image": "pause",
                    "resources": {
                        "requests": {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"},
                        "limits": limits,
                    },
                }
            ],
        },
    }
