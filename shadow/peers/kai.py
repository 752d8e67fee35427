"""KAI and Run:ai: sharing pods name a GPU group, and a reservation pod says which GPU that is.

kai-scheduler/KAI-Scheduler pkg/binder/binding/resourcereservation/resource_reservation.go: the label `runai-gpu-group`
on the pod, or `runai-gpu-group/<group>` for each of several GPUs; a pod of the same label in the namespace of
reservations holds one `nvidia.com/gpu` there and has the GPU's UUID in `run.ai/reserve_for_gpu_index`.
`received-resource-type` is `Fraction` or `Regular` (pkg/common/constants). The part of each GPU is the pod's own
annotation `gpu-fraction`, or `gpu-memory` in MiB. Whole GPUs are NVIDIA's resource, and which they are is not said.
"""

from __future__ import annotations

from shadow.objects import SeenPod
from shadow.peers.base import RESOURCE_GPU, Device, Given, Part, Surroundings, Unreadable, amount_of, whole_number
from shared.model.objects import Node
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, quantity

GROUP = "runai-gpu-group"
RESERVED_UUID = "run.ai/reserve_for_gpu_index"
RESERVATION_NAMESPACES = ("kai-resource-reservation", "runai-reservation")
RECEIVED = "received-resource-type"
FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
SCHEDULERS = ("kai-scheduler", "runai-scheduler")


class Kai:
    name = "kai"

    def devices(self, node: Node) -> tuple[Device, ...] | None:  # noqa: ARG002 - GPU feature discovery reports them
        return None

    def given(self, pod: SeenPod, around: Surroundings) -> Given | None:
        if is_reservation(pod) or not pod.spec.node_name:
            return None
        groups = groups_of(pod)
        if groups:
            part = _share(pod)
            return Given(
                peer=self.name,
                node=pod.spec.node_name,
                parts=tuple(_on(part, pod, group, around) for group in groups),
            )
        if pod.metadata.annotations.get(RECEIVED) == "Fraction":
            raise Unreadable(
                f"pod {pod.key} received a fraction on node {pod.spec.node_name} and has no label {GROUP}; which GPU "
                "it is on is not known"
            )
        if pod.spec.scheduler_name in SCHEDULERS and (count := amount_of(pod, RESOURCE_GPU)):
            return Given(peer=self.name, node=pod.spec.node_name, parts=(Part(whole=True),) * count)
        return None


def is_reservation(pod: SeenPod) -> bool:
    """Whether the pod only keeps a GPU for the pods of a group."""
    return pod.metadata.namespace in RESERVATION_NAMESPACES and bool(groups_of(pod))


def reservation(pod: SeenPod) -> tuple[str, tuple[str, str]]:
    """The group of a reservation pod, and (node, UUID) of its GPU; no UUID until it is known."""
    return groups_of(pod)[0], (pod.spec.node_name, pod.metadata.annotations.get(RESERVED_UUID, ""))


def groups_of(pod: SeenPod) -> list[str]:
    labels = pod.metadata.labels
    found = {labels[GROUP]: None} if labels.get(GROUP) else {}
    found |= {value: None for key, value in sorted(labels.items()) if key.startswith(f"{GROUP}/") and value}
    return list(found)


def _on(part: Part, pod: SeenPod, group: str, around: Surroundings) -> Part:
    node, uuid = around.reserved.get(group, (pod.spec.node_name, ""))
    if node and node != pod.spec.node_name:
        raise Unreadable(
            f"pod {pod.key} is on node {pod.spec.node_name}, and the reservation pod of its GPU group {group} on {node}"
        )
    # A group is one GPU, whether its UUID is known or not.
    return Part(
        uuid=uuid or f"group:{group}", memory_mib=part.memory_mib, milli=part.milli, memory_milli=part.memory_milli
    )


def _share(pod: SeenPod) -> Part:
    notes = pod.metadata.annotations
    if FRACTION in notes:
        try:
            milli = quantity(notes[FRACTION]) * WHOLE_GPU_MILLI
        except QuantityError:
            milli = quantity("0")
        if not 0 < milli <= WHOLE_GPU_MILLI:
            raise Unreadable(
                f"annotation {FRACTION} of pod {pod.key} is {notes[FRACTION]!r}; a part of 1 belongs there"
            )
        return Part(milli=round(milli), memory_milli=round(milli))
    if MEMORY in notes:
        return Part(memory_mib=whole_number(notes[MEMORY], f"annotation {MEMORY} of pod {pod.key}"))
    raise Unreadable(f"pod {pod.key} is in GPU group {groups_of(pod)[0]} and has neither {FRACTION} nor {MEMORY}")
