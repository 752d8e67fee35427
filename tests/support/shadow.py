"""Pods, nodes and recordings as shadow mode sees them."""

from __future__ import annotations

from typing import Any

import msgspec

from shadow.objects import AnyFact, Began, Ended, NodeSeen, PodGone, PodSeen, SeenPod
from shared.model.objects import Node
from shared.model.timestamps import seconds_text

BEGAN_S = 1_790_000_000.0


def node(
    name: str = "n1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **allocatable: str,
) -> Node:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi", **allocatable}
    return msgspec.convert(
        {
            "kind": "Node",
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                "annotations": annotations or {},
            },
            "status": {"allocatable": amounts, "capacity": amounts},
        },
        Node,
    )


def gfd(count: int, memory_mib: int = 40_960, *, replicas: int = 1) -> dict[str, str]:
    """The labels of GPU feature discovery."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-PCIE-40GB",
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.count": str(count),
    }
    return labels | ({"nvidia.com/gpu.replicas": str(replicas)} if replicas > 1 else {})


def pod(
    name: str = "p",
    limits: dict[str, str] | None = None,
    *,
    on: str = "",
    scheduler: str = "default-scheduler",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    namespace: str = "team",
    created_s: float = BEGAN_S,
    bound_s: float | None = None,
    phase: str = "",
    inits: list[dict[str, Any]] | None = None,
    beside: list[dict[str, Any]] | None = None,
) -> SeenPod:
    """`on`: the node that it is bound to, since `bound_s`."""
    conditions = (
        [{"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds_text(bound_s)}]
        if bound_s is not None
        else []
    )
    containers = [{"name": "main", "resources": {"limits": limits or {}, "requests": limits or {}}}, *(beside or [])]
    return msgspec.convert(
        {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "creationTimestamp": seconds_text(created_s),
                "labels": labels or {},
                "annotations": annotations or {},
            },
            "spec": {
                "nodeName": on,
                "schedulerName": scheduler,
                "containers": containers,
                "initContainers": inits or [],
            },
            "status": {"phase": phase or ("Running" if on else "Pending"), "conditions": conditions},
        },
        SeenPod,
    )


class Recording:
    """Facts in the order of their times; times are seconds since the beginning."""

    def __init__(self, *nodes: Node) -> None:
        self.facts: list[AnyFact] = [Began(at_s=BEGAN_S, source="a test")]
        for one in nodes:
            self.facts.append(NodeSeen(at_s=BEGAN_S, node=one))

    def seen(self, at_s: float, *pods: SeenPod) -> Recording:
        self.facts += [PodSeen(at_s=BEGAN_S + at_s, pod=one) for one in pods]
        return self

    def gone(self, at_s: float, *names: str) -> Recording:
        self.facts += [PodGone(at_s=BEGAN_S + at_s, uid=f"uid-{name}") for name in names]
        return self

    def ended(self, at_s: float) -> list[AnyFact]:
        return [*self.facts, Ended(at_s=BEGAN_S + at_s)]
