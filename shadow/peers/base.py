"""What a peer is: a system that gives GPUs to pods, and says in their objects which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from shadow.objects import SeenPod
from shared.model.gpu import MOST_GPUS, Gpu, Inventory
from shared.model.objects import Node
from shared.model.units import WHOLE_GPU_MILLI

LABEL_PRODUCT = "nvidia.com/gpu.product"
LABEL_MEMORY = "nvidia.com/gpu.memory"
LABEL_COUNT = "nvidia.com/gpu.count"
LABEL_REPLICAS = "nvidia.com/gpu.replicas"
RESOURCE_GPU = "nvidia.com/gpu"
RESOURCE_SHARED = "nvidia.com/gpu.shared"
RESOURCES = (RESOURCE_GPU, RESOURCE_SHARED)
"""One of them, as the device plugin is set; a node may name the other one with 0."""
SHARED_SUFFIX = "-SHARED"
"""GPU feature discovery adds it to the product's name where GPUs are time-sliced under their own resource name."""


class Unreadable(ValueError):
    """An object that is not as its peer writes it.

    The text says which one, what is wrong, and what belongs there.
    """


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node as its peer, or GPU feature discovery, reports it."""

    node: str
    uuid: str
    index: int
    model: str
    memory_mib: int
    milli: int = WHOLE_GPU_MILLI
    """What the peer may give away of its compute, in thousandths."""
    max_sharers: int = 0
    """How many containers may share it; 0: no limit."""
    healthy: bool = True
    """Otherwise pods may still hold it, and no other is given it."""
    numbered: bool = False
    """Its UUID is not known, and `uuid` is a number that shadow mode gave."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod holds of one GPU."""

    uuid: str = ""
    """Empty: the node's objects do not say which GPU."""
    memory_mib: int = 0
    milli: int = 0
    whole: bool = False
    sharers: int = 1
    """Containers of the pod on it."""
    memory_milli: int = 0
    """Thousandths of that GPU's memory, instead of `memory_mib`."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer gave to a pod."""

    peer: str
    node: str
    parts: tuple[Part, ...]

    @property
    def known(self) -> bool:
        """Whether the objects say which GPUs."""
        return all(part.uuid for part in self.parts)


class Surroundings(msgspec.Struct):
    """What else than the pod a reader may need."""

    nodes: Mapping[str, Node] = {}
    reserved: Mapping[str, tuple[str, str]] = {}
    """KAI's reservation pods: (node, UUID) by the name of the GPU group."""


class Peer(Protocol):
    """One file each; registered in `__init__.py`. A reader raises nothing but Unreadable."""

    @property
    def name(self) -> str: ...

    def devices(self, node: Node) -> tuple[Device, ...] | None:
        """The node's GPUs as this peer reports them; None where it does not report the node."""

    def given(self, pod: SeenPod, around: Surroundings) -> Given | None:
        """What this peer has given to the pod; None where it has given nothing, or the pod is not this peer's."""


def whole_number(text: object, what: str) -> int:
    """Raises Unreadable."""
    written = str(text).strip()
    if not written.isascii() or not written.isdigit() or len(written) > 12:
        raise Unreadable(f"{what} is {str(text)[:60]!r}; a whole number belongs there")
    return int(written)


def amount_of(pod: SeenPod, resource: str) -> int:
    """How much of an extended resource the pod's containers and sidecars hold together while they run.

    Requests of extended resources equal their limits. Raises Unreadable.
    """
    sidecars = (init for init in pod.spec.init_containers if init.restart_policy == "Always")
    return sum(
        whole_number(value, f"{resource} of container {container.name!r} of pod {pod.key}")
        for container in (*sidecars, *pod.spec.containers)
        if (value := container.resources.limits.get(resource, container.resources.requests.get(resource))) is not None
    )


def effective(init: Iterable[Iterable[Part]], running: Iterable[Iterable[Part]]) -> tuple[Part, ...]:
    """What a pod holds of each GPU.

    Init containers run one after another and before the others, so of each GPU the larger of the two counts: the
    largest init container, or the others together.
    """
    held = _sum(part for container in running for part in container)
    for container in init:
        for uuid, part in _sum(container).items():
            before = held.get(uuid, Part(uuid=uuid, sharers=0))
            held[uuid] = Part(
                uuid=uuid,
                memory_mib=max(before.memory_mib, part.memory_mib),
                milli=max(before.milli, part.milli),
                sharers=max(before.sharers, part.sharers),
            )
    return tuple(held.values())


def _sum(parts: Iterable[Part]) -> dict[str, Part]:
    held: dict[str, Part] = {}
    for part in parts:
        before = held.get(part.uuid, Part(uuid=part.uuid, sharers=0))
        held[part.uuid] = Part(
            uuid=part.uuid,
            memory_mib=before.memory_mib + part.memory_mib,
            milli=before.milli + part.milli,
            sharers=before.sharers + part.sharers,
        )
    return held


def discovered(node: Node) -> tuple[Device, ...]:
    """GPUs by the labels of GPU feature discovery, numbered, for the labels name no UUID.

    NVIDIA/k8s-device-plugin docs/gpu-feature-discovery/README.md. The kubelet takes GPUs that the device plugin calls
    unhealthy off the allocatable ones, and the labels still count them. Which they are is not said: the last ones.

    Raises Unreadable where there are GPUs and no memory is named.
    """
    name, labels = node.metadata.name, node.metadata.labels
    replicas = replicas_of(node)
    counts = [allocatable(node, one) // replicas for one in RESOURCES if one in node.status.allocatable]
    count = healthy = max(counts, default=0)
    if LABEL_COUNT in labels:
        count = whole_number(labels[LABEL_COUNT], f"label {LABEL_COUNT} of node {name}")
        healthy = healthy if counts else count
    if not count:
        return ()
    if count > MOST_GPUS:
        raise Unreadable(f"node {name} has {count} GPUs by its labels or allocatable; a node has at most {MOST_GPUS}")
    if LABEL_MEMORY not in labels:
        raise Unreadable(
            f"node {name} has {count} GPUs and no label {LABEL_MEMORY}; install GPU feature discovery, or label the "
            "node with the MiB of one GPU"
        )
    memory_mib = whole_number(labels[LABEL_MEMORY], f"label {LABEL_MEMORY} of node {name}")
    model = labels.get(LABEL_PRODUCT, "GPU").removesuffix(SHARED_SUFFIX)
    return tuple(
        Device(
            node=name,
            uuid=f"{name}/gpu-{index}",
            index=index,
            model=model,
            memory_mib=memory_mib,
            max_sharers=replicas if replicas > 1 else 0,
            healthy=index < healthy,
            numbered=True,
        )
        for index in range(count)
    )


def inventory_of(node: str, devices: tuple[Device, ...], boot_id: str = "", generation: int = 0) -> Inventory:
    """What Kerf's agent would report of them. Raises ValueError where no node can have such GPUs."""
    gpus = tuple(
        Gpu(
            uuid=device.uuid,
            index=device.index,
            model=device.model,
            memory_mib=device.memory_mib,
            state="healthy" if device.healthy else "unhealthy",
            reason="" if device.healthy else "its node reports it so",
        )
        for device in devices
    )
    return Inventory(node=node, boot_id=boot_id, generation=generation, gpus=gpus, simulated=True)


def replicas_of(node: Node) -> int:
    """Replicas of each GPU by NVIDIA's device plugin; 1 where it slices none. Raises Unreadable."""
    text = node.metadata.labels.get(LABEL_REPLICAS)
    return 1 if text is None else max(1, whole_number(text, f"label {LABEL_REPLICAS} of node {node.metadata.name}"))


def allocatable(node: Node, resource: str) -> int:
    """Raises Unreadable."""
    return whole_number(
        node.status.allocatable.get(resource, 0), f"allocatable {resource} of node {node.metadata.name}"
    )
