"""Builders for small objects in tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from shared.contracts.facts import Gone, Put
from shared.model import names
from shared.model.gpu import Gpu, HostMemory, Inventory, Link, Nic
from shared.model.grant import Grant, encode_grant
from shared.model.kube_object import Meta
from shared.model.objects import (
    ConfigMap,
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    Taint,
)
from shared.model.strategies import StrategyName

_versions = iter(range(1000, 10**9))


def next_version() -> str:
    return str(next(_versions))


def pod(
    name: str = "p",
    *,
    namespace: str = "team",
    uid: str = "",
    limits: dict[str, Any] | None = None,
    requests: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    node: str = "",
    phase: str = "Pending",
    scheduler: str = names.SCHEDULER_NAME,
    created: str = "2026-11-21T00:00:00Z",
    version: str = "",
    containers: tuple[Container, ...] = (),
    **spec: Any,
) -> Pod:
    """A pod of one container `c` with these limits, unless `containers` is given."""
    made = containers or (Container(name="c", resources=Resources(limits=limits or {}, requests=requests or {})),)
    meta = Meta(
        name=name,
        namespace=namespace,
        uid=uid or f"uid-{namespace}-{name}",
        resource_version=version or next_version(),
        creation_timestamp=created,
        annotations=annotations or {},
        labels=labels or {},
    )
    return Pod(
        metadata=meta,
        spec=PodSpec(scheduler_name=scheduler, node_name=node, containers=made, **spec),
        status=PodStatus(phase=phase),
    )


def gpu_pod(
    name: str = "p",
    *,
    gpus: int = 0,
    memory: str = "",
    compute: int = 0,
    memory_percent: int = 0,
    mig: str = "",
    **rest: Any,
) -> Pod:
    """`mig`: the profile of one instance, as "3g.20gb"."""
    limits: dict[str, Any] = {names.RESOURCE_SLOT: "1"}
    if mig:
        limits[names.PREFIX_MIG + mig] = "1"
    if gpus:
        limits[names.RESOURCE_GPU] = str(gpus)
    if memory:
        limits[names.RESOURCE_GPU_MEMORY] = memory
    if compute:
        limits[names.RESOURCE_GPU_COMPUTE] = str(compute)
    if memory_percent:
        limits[names.RESOURCE_GPU_MEMORY_PERCENT] = str(memory_percent)
    return pod(name, limits=limits, **rest)


def node(
    name: str = "n",
    *,
    cpu: str = "64",
    memory: str = "256Gi",
    pods: int = 110,
    labels: dict[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    unschedulable: bool = False,
    **allocatable: str,
) -> Node:
    amounts = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi", **allocatable}
    return Node(
        metadata=Meta(
            name=name,
            uid=f"uid-{name}",
            resource_version=next_version(),
            labels={"kubernetes.io/hostname": name, **(labels or {})},
        ),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
        status=NodeStatus(allocatable=amounts, capacity=amounts),
    )


def queues(text: str | None) -> ConfigMap:
    """Kerf's policy with this queues.yaml; None: without that key."""
    meta = Meta(name="kerf-policy", namespace="kerf-system", uid="uid-kerf-policy", resource_version=next_version())
    return ConfigMap(metadata=meta, data={} if text is None else {"queues.yaml": text})


def inventory(
    name: str = "n",
    *,
    gpus: int = 8,
    memory_mib: int = 81920,
    model: str = "NVIDIA-H100",
    boot: str = "boot-1",
    generation: int = 1,
    links: tuple[Link, ...] = (),
    strategies: tuple[StrategyName, ...] = ("exclusive", "advisory"),
    states: dict[int, str] | None = None,
    nics: tuple[Nic, ...] = (),
    park_mib: int = 0,
) -> Inventory:
    made = tuple(
        Gpu(uuid=f"{name}-gpu-{i}", index=i, model=model, memory_mib=memory_mib, state=(states or {}).get(i, "healthy"))  # type: ignore[arg-type]
        for i in range(gpus)
    )
    return Inventory(
        node=name,
        boot_id=boot,
        generation=generation,
        gpus=made,
        links=links,
        nics=nics,
        strategies=strategies,
        host_memory=HostMemory(park_mib=park_mib),
    )


def bound(seen: Pod, to: str, grant: Grant | None = None, **annotations: str) -> Pod:
    """The same pod as the API server shows it after its Binding."""
    notes = dict(seen.metadata.annotations) | annotations
    if grant is not None:
        notes[names.ANNOTATION_GRANT] = encode_grant(grant)
    meta = msgspec.structs.replace(seen.metadata, resource_version=next_version(), annotations=notes)
    return msgspec.structs.replace(seen, metadata=meta, spec=msgspec.structs.replace(seen.spec, node_name=to))


def ending(seen: Pod, by_s: float) -> Pod:
    """The same pod with a deletion timestamp: its grace period is over at `by_s`, in seconds since 1970."""
    return newer(seen, deletion_timestamp=datetime.fromtimestamp(by_s, UTC).isoformat())


def newer(seen: Pod, *, phase: str = "", **meta: Any) -> Pod:
    """The same pod after some other change."""
    changed = msgspec.structs.replace(seen.metadata, resource_version=next_version(), **meta)
    status = msgspec.structs.replace(seen.status, phase=phase) if phase else seen.status
    return msgspec.structs.replace(seen, metadata=changed, status=status)


def put(*objects: Any) -> tuple[Put, ...]:
    return tuple(Put(object=o) for o in objects)


def gone(*objects: Any, certain: bool = True) -> tuple[Gone, ...]:
    return tuple(Gone(object=o, certain=certain) for o in objects)
