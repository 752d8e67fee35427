"""Volcano's vGPUs: annotations of the pod, in HAMi's text, and of the node, in one of its own.

volcano-sh/volcano pkg/scheduler/api/devices/nvidia/vgpu/utils.go (decodeNodeDevices, decodePodDevices) and type.go:
`volcano.sh/vgpu-ids-new` is what was given; `volcano.sh/node-vgpu-register` has `UUID,count,memory,type,health,mode:` a
GPU (older device plugins write no mode). Memory is in the device plugin's unit, MiB by default, on both sides.
"""

from __future__ import annotations

from shadow.objects import SeenPod
from shadow.peers import vgpu
from shadow.peers.base import Device, Given, Surroundings, Unreadable, amount_of, whole_number
from shared.model.objects import Node

ASSIGNED = "volcano.sh/vgpu-ids-new"
RESOURCES = ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory")
NODE = "volcano.sh/vgpu-node"
REGISTER = "volcano.sh/node-vgpu-register"
_MIN_FIELDS = 5


class Volcano:
    name = "volcano"

    def devices(self, node: Node) -> tuple[Device, ...] | None:
        text = node.metadata.annotations.get(REGISTER, "").strip()
        if not text:
            return None
        what = f"annotation {REGISTER} of node {node.metadata.name}"
        found = []
        for index, device in enumerate(part for part in text.split(":") if part.strip()):
            fields = [field.strip() for field in device.split(",")]
            if len(fields) < _MIN_FIELDS or not fields[0]:
                raise Unreadable(f"{what} has {device[:80]!r}; UUID,count,memory,type,health,mode belongs there")
            found.append(
                Device(
                    node=node.metadata.name,
                    uuid=fields[0],
                    index=index,
                    model=fields[3].removeprefix("NVIDIA-").replace(" ", "-"),
                    memory_mib=whole_number(fields[2], f"the memory in {what}"),
                    max_sharers=whole_number(fields[1], f"the count in {what}"),
                    healthy=fields[4].lower() in ("true", "t", "1"),
                )
            )
        return tuple(found)

    def given(self, pod: SeenPod, around: Surroundings) -> Given | None:  # noqa: ARG002 - the form is the protocol's
        notes = pod.metadata.annotations
        if not notes.get(ASSIGNED, "").strip(" ;"):
            if pod.spec.node_name and any(amount_of(pod, resource) for resource in RESOURCES):
                raise Unreadable(
                    f"pod {pod.key} is bound to node {pod.spec.node_name} without annotation {ASSIGNED}: which GPU it "
                    "has is recorded nowhere"
                )
            return None
        parts = vgpu.parts_of(pod, notes[ASSIGNED], f"annotation {ASSIGNED} of pod {pod.key}")
        node = pod.spec.node_name or notes.get(NODE, "")
        if not node:
            raise Unreadable(f"pod {pod.key} has annotation {ASSIGNED} and no node; {NODE} belongs beside it")
        return Given(peer=self.name, node=node, parts=parts)
